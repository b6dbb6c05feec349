"""Training: from token ids to checkpoints."""
