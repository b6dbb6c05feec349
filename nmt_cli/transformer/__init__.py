"""The model of section 3 of the paper."""
