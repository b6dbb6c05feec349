"""Constituency parsing as translation (section 6.3 of the paper): trees to train on, and their scores."""
