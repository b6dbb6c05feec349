"""Read, clean and tokenize parallel text, and store it for training."""
