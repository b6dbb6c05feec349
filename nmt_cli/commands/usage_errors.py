"""Reword command-line errors as a single line that ends with the help command."""

import re
import shlex
from collections.abc import Sequence
from typing import Any

from typer.core import TyperArgument

from nmt_cli.system.errors import UsageError, meant


def usage_error(error: Any) -> UsageError:
    """Reword a Typer error. Suggest the nearest valid name, or the command that the user probably meant."""
    context: Any = getattr(error, "ctx", None)
    command_path = context.command_path if context else "nmt"
    message = _message(error).rstrip(".").replace("Got unexpected extra argument(s) (", "Unexpected argument (")
    advice = _advice(command_path, context, message)
    text = f"{message}. {advice}" if advice else message
    end = "" if text.endswith("?") else "."
    return UsageError(f"{text}{end} See: {command_path} --help")


def _message(error: Any) -> str:
    parameter: Any = getattr(error, "param", None)
    possibilities = getattr(error, "possibilities", None)
    if possibilities:
        return f"{error.message}. Did you mean {_alternatives(sorted(possibilities))}?"
    if parameter is None:
        return str(error.format_message())
    is_argument = isinstance(parameter, TyperArgument)
    name = str(parameter.metavar or parameter.name).upper() if is_argument else parameter.opts[0]
    kind = parameter.type
    choices = list(getattr(kind, "choices", ()))
    if hasattr(error, "param_type"):  # a required option or argument is missing
        missing = f"Missing {'argument' if is_argument else 'option'} {name}"
        return f"{missing}: {_alternatives(choices)}" if choices else missing
    if not (found := re.match(r"(.*) is not (one of|a valid|in the range) ", error.message)):
        return str(error.format_message())
    if choices:
        question = meant(found[1].strip("'"), choices)
        return f"{name} must be {_alternatives(choices)}, not {found[1]}. {question}".rstrip(" .")
    number = "a whole number" if "int" in kind.name else "a number"
    return f"{name} must be {number}{_bounds(kind)}, not {found[1]}"


def _bounds(kind: Any) -> str:
    low = getattr(kind, "min", None)
    high = getattr(kind, "max", None)
    if low is not None and high is not None:
        return f" from {low} to {high}"
    return "" if low is None else f" of {low} or more"


def _alternatives(names: Sequence[str]) -> str:
    """Return names as a list in words: "a, b or c"."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def _advice(command_path: str, context: Any, message: str) -> str:
    """Return a sentence with the command that a user with an extra argument probably meant, or ""."""
    extra = re.match(r"Unexpected argument \((.*)\)", message)
    if not extra:
        return ""
    word = extra[1] if " " not in extra[1] else "FILE"
    if command_path == "nmt prepare":
        source = shlex.join([context.params.get("corpus") or "FILE"])
        return f"To prepare your own text: nmt prepare --src {source} --tgt {word}"
    if command_path == "nmt translate":
        return "To translate text from the command line: echo TEXT | nmt translate"
    if command_path == "nmt score":
        hypothesis = shlex.join([str(context.params.get("hypothesis") or "FILE")])
        return f"Pass the reference with an option: nmt score {hypothesis} --reference {word}"
    return ""
