"""Flutter's application resource bundles: JSON with ICU messages. Keys that begin with "@" contain notes."""

from nmt_cli.documents.json_messages import read_arb as read

__all__ = ["read"]
