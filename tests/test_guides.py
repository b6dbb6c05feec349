"""The README and the guides: commands exist, links have targets, and the README's session prints its output."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from nmt_cli.commands.app import app

ROOT = Path(__file__).parents[1]
GUIDES = [path for path in ROOT.rglob("*.md") if not {"data", ".venv", ".git"} & {*path.relative_to(ROOT).parts}]
SESSION = re.compile(r"```console\n(.*?)```", re.S)


def commands_of(page: Path) -> list[list[str]]:
    """Return the words of every `nmt` command in a page's code blocks, with continuation lines joined."""
    blocks = re.findall(r"```(?:bash|console|yaml)\n(.*?)```", page.read_text("utf-8"), re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").split("\n")
    words = [shlex.split(line.removeprefix("$ ").removeprefix("- run: "), comments=True) for line in lines]
    found = []
    for line in words:
        for start, word in enumerate(line):
            if word.rpartition("/")[2] == "nmt" or word == "nmt_cli":
                ends = [
                    i
                    for i in range(start, len(line))
                    if line[i] in ("|", "<", ">", ">>", "&", "&&") or line[i][-1:] == ";"
                ]
                found.append([each.rstrip(";") for each in line[start + 1 : min(ends, default=len(line))]])
                break
    return [words for words in found if words]


def unknown_options(words: list[str]) -> list[str]:
    """Return the first unknown command among the words, or else the unknown options."""
    group: Any = typer.main.get_command(app)
    command, rest = group, list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        if rest[0] not in command.commands:
            return [rest[0]]
        command = command.commands[rest.pop(0)]
    known = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
    return [word for word in rest if word.startswith("-") and word.partition("=")[0] not in known | {"--help", "-v"}]


def test_the_commands_of_the_guides_have_known_names_and_options() -> None:
    commands = [(page, words) for page in GUIDES for words in commands_of(page)]
    assert len(commands) >= 40
    wrong = [(page.name, words, unknown) for page, words in commands if (unknown := unknown_options(words))]
    assert not wrong
    assert unknown_options(["translate", "--bean", "4"]) == ["--bean"]
    assert unknown_options(["translat"]) == ["translat"]


def test_links_of_the_guides_have_targets() -> None:
    for page in GUIDES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_session_of_the_readme_prints_its_output(tmp_path: Path) -> None:
    """Once the toy recipe is reproduced, each command of the session prints the lines below it."""
    bin_directory = tmp_path / ".venv" / "bin"
    bin_directory.mkdir(parents=True)
    (bin_directory / "nmt").write_text(f'#!/bin/sh\nexec {sys.executable} -m nmt_cli "$@"\n')
    (bin_directory / "nmt").chmod(0o755)
    environment = {"PATH": f"{bin_directory}:/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    subprocess.run(["nmt", "reproduce", "recipes/toy.yaml"], cwd=tmp_path, env=environment, check=True)
    [session] = SESSION.findall((ROOT / "README.md").read_text("utf-8"))
    for command, output in re.findall(r"\$ (.*)\n((?:[^$].*\n)*)", session):
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        printed, expected = (re.sub(r"\d+", "0", text) for text in (done.stdout, output))  # scores vary with the CPU
        assert (done.returncode, printed) == (0, expected), (command, done.stderr)
