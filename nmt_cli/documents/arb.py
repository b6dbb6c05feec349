"""Flutter's application resource bundles: JSON of ICU messages, with notes under keys that begin with "@"."""

from nmt_cli.documents.json_messages import read_arb as read

__all__ = ["read"]
