"""Training: the loop (`train`), its steps (`trainer`), their sentences (`batches`), saved progress (`checkpoints`)."""
