"""Training: `train` is the loop, `trainer` computes steps, `batches` selects sentences, `checkpoints` save progress."""
