"""Constituency parsing as translation (section 6.3 of the paper): two filters beside an ordinary corpus."""
