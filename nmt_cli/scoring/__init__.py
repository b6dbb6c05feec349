"""Metrics of translation quality and the `nmt score` command."""
