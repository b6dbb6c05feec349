"""Constituency parsing as translation (section 6.3 of the paper): trees to train on, and their scores.

`trees.py` reads and writes trees. `brackets.py` counts brackets as evalb does, and penalizes lines that are not
trees. `score.py` reports the counts.
"""
