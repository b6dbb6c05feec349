"""Constituency parsing as translation, as in section 6.3 of "Attention Is All You Need".

`trees.py` reads and writes trees. `brackets.py` counts brackets as evalb does, and penalizes lines that are not
trees. `score.py` scores parses by these counts.
"""
