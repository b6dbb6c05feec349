"""Reproduce a recipe from raw text to its scores: the stages, the table of scores, and comparisons of models."""
