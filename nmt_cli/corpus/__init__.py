"""From raw text to training ids."""
