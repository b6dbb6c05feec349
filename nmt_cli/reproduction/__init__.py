"""Reproduce a recipe from raw text to its scores.

`reproduce.py` runs the five stages, and runs them again without synthetic text if the recipe has any. `held_out.py`
stores translations of the held-out text. `score_table.py` and `synthetic_gain.py` print the tables.
"""
