"""Lay out help pages, with names in a narrow column and descriptions in a wide one."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.exceptions import TyperException

from nmt_cli.system.errors import UsageError

NAME_COLUMNS = 24  # a longer name gets a line of its own
LARGEST_SHOWN_BOUND = 1 << 32  # a larger maximum is only the limit of an integer type
NON_BREAKING_HYPHEN = "\u2011"  # keeps names such as toy-en-de whole when lines are wrapped


class Command(TyperCommand):
    """A command whose help shows most options on one line each."""

    def get_help(self, ctx: Any) -> str:
        return _plain(super().get_help(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except TyperException as error:
            if getattr(error, "ctx", ctx) is None:  # if an option lacks its value; `usage_error` needs it
                error.ctx = ctx  # type: ignore[attr-defined]
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [self.options_metavar or "", *_usage(self, ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)


class Group(TyperGroup):
    """A group of commands, which its help lists."""

    def get_help(self, ctx: Any) -> str:
        return _plain(super().get_help(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)
        commands = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        visible = [command for command in commands if command and not command.hidden]
        with formatter.section(_bold("Commands")):
            rows = [(_bold(command.name or ""), (command.help or "").partition("\n\n")[0]) for command in visible]
            formatter.write_dl(rows)


def help_of(root: Any, names: Sequence[str]) -> str:
    """Return the help of a command, given its names, such as ["recipes", "show"].

    For a wrong name, raise UsageError or Typer's own error.
    """
    context = root
    for name in names:
        if not isinstance(context.command, TyperGroup):
            raise UsageError(f"{context.command_path} has no command {name[:40]!r}. See: {context.command_path} --help")
        command: Any = context.command.resolve_command(context, [name])[1]
        context = typer.Context(command, info_name=name, parent=context)
    return str(context.get_help())


def _write_parameters(command: Any, context: Any, formatter: Any) -> None:
    panels = dict[str, list[tuple[str, str]]]()
    for parameter in command.get_params(context):
        title = "Arguments" if isinstance(parameter, TyperArgument) else "Options"
        if not parameter.hidden:
            row = _names(parameter), _description(parameter, context)
            panels.setdefault(parameter.rich_help_panel or title, []).append(row)
    lengths = [len(names) for rows in panels.values() for names, _ in rows]
    width = max(length for length in lengths if length <= NAME_COLUMNS)
    for title in sorted(panels, key=lambda title: title != "Arguments"):
        with formatter.section(_bold(title)):
            formatter.write_dl([(_bold(f"{names:{width}}"), text) for names, text in panels[title]], col_max=width)


def _names(parameter: Any) -> str:
    """Return the names of an option or argument: "-o, --output FILE"."""
    if isinstance(parameter, TyperArgument):
        return _argument_name(parameter)
    long = [name for name in parameter.opts if name.startswith("--")]
    short = [name for name in parameter.opts if name not in long]
    if parameter.secondary_opts:
        long[0] = f"--[no-]{long[0][2:]}"
    names = ", ".join([*short, *long]) if short else f"    {', '.join(long)}"
    return names if parameter.is_flag else f"{names} {parameter.metavar or 'NAME'}"


def _description(parameter: Any, context: Any) -> str:
    """Return the help of an option or argument, such as "TCP port [0 to 65535; default: 5000]"."""
    kind = parameter.type
    notes = list[str]()
    if choices := getattr(kind, "choices", ()):
        notes.append(", ".join(choices))
    elif hasattr(kind, "min") and (bounds := _range(kind.min, kind.max)):
        notes.append(bounds)
    if default := _default(parameter, context):
        notes.append(f"default: {default}")
    if isinstance(parameter, TyperOption) and parameter.required:
        notes.append("required")
    text = parameter.help or ""
    description = f"{text} [{'; '.join(notes)}]" if notes else text
    return re.sub(r"(?<=\w)-(?=\w)", NON_BREAKING_HYPHEN, description)


def _range(low: float | None, high: float | None) -> str:
    """Return "LOW to HIGH" or "LOW or more".

    Return "" without a lower bound, and for "0 or more" and "1 or more", which readers can guess.
    """
    if low is not None and high is not None and high <= LARGEST_SHOWN_BOUND:
        return f"{low:g} to {high:g}"
    return f"{low:g} or more" if low not in (None, 0, 1) else ""


def _default(parameter: Any, context: Any) -> str:
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    value = parameter.get_default(context, call=False) if parameter.show_default else None
    if isinstance(value, bool):
        return "on" if value else ""
    return "" if value is None or value == [] else str(value)


def _usage(command: Any, context: Any) -> Iterator[str]:
    for parameter in command.get_params(context):
        if isinstance(parameter, TyperArgument):
            name = _argument_name(parameter) + ("..." if parameter.nargs == -1 else "")
            yield name if parameter.required else f"[{name}]"


def _argument_name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _bold(text: str) -> str:
    colored = sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return typer.style(text, bold=True) if colored else text


def _plain(text: str) -> str:
    """Restore ordinary hyphens, and escape characters that the terminal cannot encode. Typer would write UTF-8."""
    text = text.replace(NON_BREAKING_HYPHEN, "-")
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
