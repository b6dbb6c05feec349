"""Constituency parsing as translation (section 6.3 of the paper): trees to train on, and their scores.

`trees.py` reads and writes trees. `brackets.py` counts brackets as evalb does, and decides what a line costs if it is
not a tree. `score.py` reports the counts.
"""
