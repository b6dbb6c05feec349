"""Reproduce a recipe from raw text to its scores.

`reproduce.py` runs the five stages, and a second time without synthetic text if the recipe has any. `held_out.py` scores
the held-out sets. `score_table.py` and `synthetic_gain.py` print the tables.
"""
