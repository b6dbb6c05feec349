"""Metrics, and the score command."""
