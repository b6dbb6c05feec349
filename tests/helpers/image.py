"""Builds a Dockerfile's images in directories, as a container builder would, and runs commands in them with chroot.

This needs root, debootstrap and Linux namespaces. The builder knows only the instructions that our Dockerfile uses and
fails at any other instruction.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

IGNORED = "VOLUME", "EXPOSE"
# A shell of the host runs this in new namespaces. Without the host's network, only the loopback device is up.
RUN = """
mount --rbind /dev "$ROOT/dev"; mount -t proc proc "$ROOT/proc"; mount -t tmpfs tmpfs "$ROOT/tmp"
chmod 1777 "$ROOT/tmp"
for directory in $BINDS; do mkdir -p "$ROOT$directory"; mount --bind -o ro "$directory" "$ROOT$directory"; done
exec chroot --userspec="$RUN_AS" "$ROOT" /usr/bin/env -i -C "$RUN_IN" "$@"
"""


class Image:
    """A root directory and the settings that a Dockerfile gives its image."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.variables = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root"}
        self.directory = "/"
        self.user = "0"
        self.entry: list[str] = []
        self.command: list[str] = []
        self.check: list[str] = []  # of HEALTHCHECK

    def run(self, words: list[str], *, network: bool = False, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end. Without `network`, the command has only a loopback interface of its own."""
        settings = {"ROOT": self.root, "RUN_AS": f"{self.user}:{self.user}", "RUN_IN": self.directory}
        binds = _pip_directories() if network else []
        host = {**os.environ, "BINDS": " ".join(binds), **{name: str(value) for name, value in settings.items()}}
        inside = [f"{name}={value}" for name, value in (self.variables | variables).items()]
        isolated = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *([] if network else ["--net"])]
        loopback = "" if network else "ip link set lo up\n"
        command = [*isolated, "sh", "-ec", loopback + RUN, "sh", *inside, *words]
        return subprocess.run(command, env=host, capture_output=True, text=True, check=False, timeout=1500)


def build(dockerfile: Path, context: Path, base: Path, work: Path, arguments: dict[str, str]) -> Image:
    """Build each stage from a copy of `base` in `work`, and return the last one."""
    stages = dict[str, Image]()
    values = dict[str, str]()
    image: Image | None = None
    for instruction, rest in _instructions(dockerfile.read_text()):
        if instruction == "ARG":
            name, _, default = rest.partition("=")
            values[name] = arguments.get(name, default)
        elif instruction == "FROM":
            name = rest.partition(" AS ")[2] or "last"
            subprocess.run(["cp", "-a", "--reflink=auto", base, work / name], check=True)  # copies device files too
            image = stages[name] = Image(work / name)
        elif image is None:
            raise AssertionError(f"{instruction} stands before the first FROM")
        elif instruction == "RUN":
            done = image.run(["sh", "-c", rest], network=True, **values, **_pip_settings())
            assert done.returncode == 0, f"{rest}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        elif instruction == "COPY":
            _copy(rest, image, stages, context, dockerfile)
        elif instruction not in IGNORED:
            _set(image, instruction, rest)
    assert image
    return image


def _set(image: Image, instruction: str, rest: str) -> None:
    if instruction == "WORKDIR":
        image.directory = rest
        (image.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
    elif instruction == "USER":
        image.user = rest
        image.variables["HOME"] = "/home/nmt"
    elif instruction == "ENV":
        for word in shlex.split(rest):
            name, _, value = word.partition("=")
            image.variables[name] = value.replace("$PATH", image.variables["PATH"])
    elif instruction == "HEALTHCHECK":
        image.check = json.loads(rest.partition(" CMD ")[2])
    elif instruction == "ENTRYPOINT":
        image.entry = json.loads(rest)
    elif instruction == "CMD":
        image.command = json.loads(rest)
    else:
        raise AssertionError(f"this builder has no {instruction}")


def _instructions(text: str) -> list[tuple[str, str]]:
    lines = "\n".join(line for line in text.split("\n") if not line.startswith("#")).replace("\\\n", " ").split("\n")
    pairs = [line.partition(" ") for line in lines if line.strip()]
    return [(instruction, rest.strip()) for instruction, _, rest in pairs]


def _copy(rest: str, image: Image, stages: dict[str, Image], context: Path, dockerfile: Path) -> None:
    """Copy from the context, without the files that .dockerignore names, or from an earlier stage."""
    if rest.startswith("--from="):
        stage, source, target = rest.removeprefix("--from=").split()
        (stages[stage].root / source.lstrip("/")).rename(image.root / target.lstrip("/"))  # the stage is not used again
        return
    source, target = rest.split()
    ignored = dockerfile.with_name(f"{dockerfile.name}.dockerignore").read_text().split("\n")
    kept = {line[1:] for line in ignored if line.startswith("!")}
    to = image.root / image.directory.lstrip("/") / target
    for name in sorted(kept) if source == "." else [source]:
        assert name in kept, f"{name} is not sent to the builder"
        if (context / name).is_dir():
            shutil.copytree(context / name, to / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(context / name, to / name)


def _pip_settings() -> dict[str, str]:
    """Return pip's settings on this machine as environment variables, so that it finds packages where the host does."""
    done = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    pairs = re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", done.stdout, re.MULTILINE)
    return {f"PIP_{name.replace('-', '_').upper()}": value.replace("\\n", " ") for name, value in pairs}


def _pip_directories() -> list[str]:
    """Return the host's directories that a build reads: its local packages and the certificates of registries."""
    named = {path for value in _pip_settings().values() for path in re.findall(r"(?:file://[^/\s]*)?(/[^\s']+)", value)}
    directories = {path if Path(path).is_dir() else str(Path(path).parent) for path in named if Path(path).exists()}
    # Two levels suffice: an index names its files by relative links.
    directories |= {str(Path(path).parent) for path in directories if path.endswith("/simple")}
    return sorted({*directories, "/etc/ssl/certs"}, key=len)


def debian(directory: Path) -> Path:
    """Make a root directory with Debian and, as in the image python:slim, Python and pip in /usr/local."""
    include = "python3,python3-venv,ca-certificates"
    command = ["debootstrap", "--variant=minbase", f"--include={include}", "bookworm", str(directory)]
    subprocess.run(command, check=True, capture_output=True)
    for name in ("resolv.conf", "hosts"):
        shutil.copy(f"/etc/{name}", directory / "etc")
    done = Image(directory).run(["python3", "-m", "venv", "/usr/local"])
    assert done.returncode == 0, done.stderr
    return directory
