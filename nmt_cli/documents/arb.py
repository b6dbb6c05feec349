"""Flutter's application resource bundles: JSON with ICU messages, and with notes under keys that begin with "@"."""

from nmt_cli.documents.json_messages import read_arb as read

__all__ = ["read"]
