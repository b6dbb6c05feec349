"""The Translator, its search, and the translate command."""
