"""Training: the loop (`train`), its steps (`trainer`), the sentences of each step (`batches`), and `checkpoints`."""
