"""The command `nmt keys` and its subcommands."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt_cli.commands.help_pages import Command, Group
from nmt_cli.commands.options import DATABASE_VARIABLE, number_option
from nmt_cli.system import console
from nmt_cli.system.errors import MissingError

if TYPE_CHECKING:
    from nmt_cli.serving.key_store import ApiKey, KeyStore

app = typer.Typer(help="Manage the API keys of nmt serve --database.", cls=Group, rich_markup_mode=None)
command = partial(app.command, cls=Command)

MAX_LIMIT = 2**63 - 1  # the largest number that the database can store

Database = Annotated[
    str,
    typer.Option(
        help="The server's database: an SQLite file or postgresql://USER:PASSWORD@HOST/NAME",
        metavar="FILE",
        envvar=DATABASE_VARIABLE,
        show_default="$NMT_DATABASE",
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the key")]
PerMinute = Annotated[
    int | None, number_option("Maximum requests per minute", default="no limit", min=0, max=MAX_LIMIT)
]
PerDay = Annotated[int | None, number_option("Maximum characters per day", default="no limit", min=0, max=MAX_LIMIT)]
LIMIT_DEFAULT = "unchanged; no limit if both are omitted"
NewPerMinute = Annotated[
    int | None,
    number_option("Maximum requests per minute", default=LIMIT_DEFAULT, min=0, max=MAX_LIMIT),
]
NewPerDay = Annotated[
    int | None,
    number_option("Maximum characters per day", default=LIMIT_DEFAULT, min=0, max=MAX_LIMIT),
]


def _keys(database: str, *, create: bool = False) -> "KeyStore":
    from nmt_cli.serving.database import Database, is_url
    from nmt_cli.serving.key_store import KeyStore

    if not create and not is_url(database) and not Path(database).exists():
        raise MissingError(f"no database {database}. To make one: nmt keys add NAME --database {database}")
    return KeyStore(Database(database))


@command()
def add(name: Name, database: Database, per_minute: PerMinute = None, per_day: PerDay = None) -> None:
    """Make a key and print it.

    The database stores only a hash, so the key cannot be shown again. As soon as the database has a key, every request
    must have a valid key.
    """
    typer.echo(_keys(database, create=True).add(name, per_minute, per_day))


@command("list")
def list_keys(database: Database) -> None:
    """List keys with their limits."""
    for key in _keys(database):
        state = f"revoked {key.revoked}" if key.revoked else f"created {key.created}"
        typer.echo("\t".join([key.name, *_limits(key), state]))


def _limits(key: "ApiKey") -> list[str]:
    limits = (key.per_minute, "requests/minute"), (key.per_day, "characters/day")
    return [f"{'no limit on' if limit is None else f'{limit:,}'} {what}" for limit, what in limits]


@command()
def revoke(name: Name, database: Database) -> None:
    """Revoke a key for good. Running servers refuse a revoked key within a second."""
    _keys(database).revoke(name)
    console.say(f"revoked {name}")


@command()
def limit(name: Name, database: Database, per_minute: NewPerMinute = None, per_day: NewPerDay = None) -> None:
    """Set the limits of a key.

    If only one limit is given, the other is kept. If neither is given, both are removed.
    """
    key = _keys(database).limit(name, per_minute, per_day)
    console.say(f"{key.name}: {', '.join(_limits(key))}")


@command()
def usage(database: Database) -> None:
    """List requests and characters per day and key, newest day first."""
    for day, name, requests, characters in _keys(database).usage():
        typer.echo(f"{day}\t{name}\t{requests:,} requests\t{characters:,} characters")
