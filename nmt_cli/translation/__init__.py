"""Search, and the translate command."""
