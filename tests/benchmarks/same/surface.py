"""The surface of the commands and recipes: option names, settings, fields of JSON."""

import json
import re
from collections.abc import Callable

import yaml

from same import digests
from same.scoring import PROSE
from same.tree import Tree

COMMANDS = ["prepare", "train", "average-checkpoints", "translate", "serve", "reproduce", "score", "report", "doctor"]
COMMANDS += ["attend", "export", "import", "env", "recipes", "recipes show", "recipes copy"]
MACHINE = {"nmt", "cpu"}  # fields of `nmt env` whose values may differ


def options(tree: Tree, command: str) -> object:
    """Return the names of a command's options, sorted."""
    done = tree.nmt(*command.split(), "--help")
    heads = re.findall(r"^ +(-.*?)(?:  .*)?$", done.stdout, re.MULTILINE)
    names = {name for head in heads for name in re.findall(r"(?<!\S)(-[a-zA-Z]\b|--[^\s,]+)", head)}
    return {"exit code": done.code, "names": sorted(names)}


def commands(tree: Tree) -> object:
    """Return the names of all commands."""
    return sorted(re.findall(r"^  ([a-z][a-z-]+)  ", tree.nmt("--help").stdout.partition("Commands:")[2], re.MULTILINE))


def recipes(tree: Tree) -> object:
    """Return the names of all recipes, and all settings of those outside of `table3/`."""
    names = re.findall(r"^([\w/.-]+)  ", tree.nmt("recipes").stdout, re.MULTILINE)
    shown = {name: tree.nmt("recipes", "show", name) for name in names if not name.startswith("table3/")}
    settings = {name: yaml.safe_load(done.stdout) if not done.code else done.code for name, done in shown.items()}
    return {"names": names, "settings": settings}


def schema(tree: Tree) -> object:
    return digests.without(json.loads(tree.nmt("recipes", "show", "toy", "--format", "json").stdout), PROSE)


def environment(tree: Tree) -> object:
    fields = json.loads(tree.nmt("env", "--json").stdout)
    return {name: "" if name in MACHINE else value for name, value in fields.items()}


CHECKS: dict[str, Callable[[Tree], object]] = {
    "commands": commands,
    **{f"options of {name}": (lambda tree, name=name: options(tree, name)) for name in COMMANDS},
    "recipes": recipes,
    "schema of recipes": schema,
    "env --json": environment,
}
