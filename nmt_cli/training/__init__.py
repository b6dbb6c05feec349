"""Training: `train` loops, `trainer` computes steps, `batches` selects sentences, `checkpoints` saves progress."""
