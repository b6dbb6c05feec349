"""Training: `train` has the loop, `trainer` computes a step, `batches` selects its sentences, `checkpoints` saves."""
