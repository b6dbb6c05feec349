"""From ids to checkpoints."""
