"""Models and recipes from untrusted sources work, or are refused in one line, quickly and without much memory."""

import inspect
import json
import multiprocessing
import random
import resource
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_model import make_model

from nmt_cli.interop import hub, marian_files
from nmt_cli.recipe import loading, yaml_file
from nmt_cli.system.errors import DataError, UsageError
from nmt_cli.transformer.config import read_model_json

GIGABYTE = 1 << 30
Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
ESCAPE = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e"
EXTREME: list[Any] = [
    *(
        1 << 20,
        1 << 40,
        -1,
        0,
        10**300,
        float("nan"),
        float("inf"),
        1e308,
        "",
        None,
        True,
        [],
        [[]],
        {},
        {"a": {"b": 1}},
    ),
    *("x" * 5000, ESCAPE, "2001-99-99", "1:2:3", "../../etc/passwd", "/etc/passwd"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


def seal(directory: Path, manifest: dict[str, Any] | None = None) -> None:
    """Write a manifest with the right hashes, as an attacker would."""
    manifest = manifest or json.loads((directory / "manifest.json").read_text())
    for name, entry in manifest["files"].items():
        data = (directory / name).read_bytes()
        entry |= {"bytes": len(data), "sha256": sha256(data).hexdigest()}
    (directory / "manifest.json").write_text(json.dumps(manifest))


def copied(model: Path, to: Path) -> Path:
    to.mkdir()
    for file in model.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def highest() -> float:
    """Return the peak memory in megabytes. ru_maxrss would include the memory of the parent process."""
    with open("/proc/self/status") as file:  # noqa: PTH123
        [line] = [line for line in file if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


# Opens the directory that each line of stdin names, translates a line, and prints the outcome, the time and the memory.
OPENER = """
    import json, sys, time
    from nmt_cli import Translator
    from nmt_cli.system.errors import NmtError
    for line in sys.stdin:
        start, outcome = time.process_time(), "works"
        try:
            with Translator(line.strip(), workers=1, precision="fp32") as translator:
                [*translator.translate(["der Hund"], beam=2, extra_length=9)]
        except NmtError as error:
            outcome = f"refused: {error}"
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
        megabytes = highest()
        print(json.dumps([outcome[:300], time.process_time() - start, megabytes]), flush=True)
"""


class Opener:
    """A process that opens models. It is started again if a model ends it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def open(self, directory: Path) -> tuple[str, float, float]:
        if not self.process or self.process.poll() is not None:
            limit = 4 * GIGABYTE
            self.process = subprocess.Popen(
                [sys.executable, "-c", inspect.getsource(highest) + textwrap.dedent(OPENER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
            )
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{directory}\n")
        self.process.stdin.flush()
        if answer := self.process.stdout.readline():
            outcome, seconds, megabytes = json.loads(answer)
            return outcome, seconds, megabytes
        return f"ended by {self.process.wait()}", 0.0, 0.0

    def close(self) -> None:
        if self.process and self.process.stdin:
            self.process.stdin.close()
            self.process.wait()


@pytest.fixture(scope="module")
def opener() -> Iterator[Opener]:
    process = Opener()
    yield process
    process.close()


def assert_harmless(answer: tuple[str, float, float], case: object) -> None:
    outcome, seconds, megabytes = answer
    assert outcome == "works" or outcome.startswith("refused: "), f"{case}: {outcome}"
    assert seconds < 10, f"{case}: {seconds:.1f} s"
    assert megabytes < 1024, f"{case}: {megabytes:.0f} MB"


def paths_of(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in nested mappings and lists."""
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from paths_of(value, (*path, key))


def changed(values: Any, path: tuple[Any, ...], value: Any) -> Any:
    values = json.loads(json.dumps(values))
    inner = values
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return values


# Sections of a recipe that translation reads where there is no model.json.
READ = {"model", "decoding"}


def of_nmt_0_1(model: Path, to: Path) -> Path:
    """Copy a model without its model.json, as nmt 0.1 wrote models."""
    copied(model, to)
    manifest = json.loads((to / "manifest.json").read_text())
    del manifest["files"]["model.json"]
    (to / "model.json").unlink()
    seal(to, manifest)
    return to


def test_no_value_in_model_json_crashes_its_reader_or_fills_memory(model: Path, opener: Opener, tmp_path: Path) -> None:
    values, directory = json.loads((model / "model.json").read_text()), copied(model, tmp_path / "changed")
    for path in paths_of(values):
        for value in EXTREME:
            (directory / "model.json").write_text(json.dumps(changed(values, path, value)))
            seal(directory)
            assert_harmless(opener.open(directory), (path, value))


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "[" * 100_000, '{"a":' * 100_000, '{"format": 1}', "9" * 5000, '{"src": "\\ud800"}', "\0"]
)
def test_an_invalid_model_json_is_refused(model: Path, opener: Opener, tmp_path: Path, text: str) -> None:
    directory = copied(model, tmp_path / "changed")
    (directory / "model.json").write_text(text)
    seal(directory)
    answer = opener.open(directory)
    assert_harmless(answer, text[:20])
    assert answer[0].startswith("refused: ")


def test_no_value_in_a_stored_recipe_crashes_its_reader_or_fills_memory(
    model: Path, opener: Opener, tmp_path: Path
) -> None:
    values, draw = yaml.safe_load((model / "recipe.yaml").read_text()), random.Random(1)
    place = of_nmt_0_1(model, tmp_path / "changed")
    for path in paths_of(values):
        read = path[0] in READ or path[-1] in ("src", "tgt", "max_tokens")
        each = draw.sample(EXTREME, 7 if read else 1)
        for value in each:
            text = yaml.dump(changed(values, path, value), Dumper=Dumper, sort_keys=False)
            (place / "recipe.yaml").write_text(text)
            seal(place)
            assert_harmless(opener.open(place), (path, value))


def test_extreme_values_in_a_manifest_do_no_harm(model: Path, opener: Opener, tmp_path: Path) -> None:
    manifest, place = json.loads((model / "manifest.json").read_text()), copied(model, tmp_path / "changed")
    for path in paths_of(manifest):
        for value in EXTREME:
            (place / "manifest.json").write_text(json.dumps(changed(manifest, path, value)))
            assert_harmless(opener.open(place), (path, value))


def texts_of_yaml() -> dict[str, str]:
    return {
        "nested lists": "a: " + "[" * 30_000,
        "nested mappings": "{a: " * 30_000,
        "nested by indentation": "- " * 30_000,
        "nested keys": "? " * 30_000,
        "aliases": "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{f'*a{i - 1},' * 9}]\n" for i in range(1, 40)),
        "an alias of itself": "a: &a [*a]",
        "merged keys": "a: &a {b: 1}\nc: {<<: *a}",
        "many values": "a: [" + "x," * 500_000 + "]",
        "many anchors": "a: [" + ",".join(f"&a{i} x" for i in range(90_000)) + "]",
        "digits": "a: " + "9" * 5000,
        "a date": "a: 2001-99-99",
        "an object": "!!python/object/apply:os.system [touch pwned]",
        "many documents": "---\n" * 100_000,
        "megabytes": "#" * (2 << 20),
    }


@pytest.mark.parametrize("text", texts_of_yaml().values(), ids=texts_of_yaml().keys())
def test_expensive_yaml_is_refused(model: Path, opener: Opener, tmp_path: Path, text: str) -> None:
    place = of_nmt_0_1(model, tmp_path / "changed")
    (place / "recipe.yaml").write_text(text)
    seal(place)
    answer = opener.open(place)
    assert_harmless(answer, text[:20])
    assert answer[0].startswith("refused: ")


def read_yaml(directory: Path) -> tuple[str, str, float, float]:
    """Return the message of an error, the license, the time, and the highest memory so far."""
    start, message = time.process_time(), ""
    try:
        options = marian_files.parse_yaml((directory / "text").read_bytes(), "model.npz")
        marian_files.check_options(options, "model.npz")
    except DataError as error:
        message = str(error)
    return message, hub.license_of(directory), time.process_time() - start, highest()


def test_expensive_yaml_in_marian_options_and_model_cards(tmp_path: Path) -> None:
    """They are read in a fork, so that imports take no time. It begins with this process's memory."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as process:
        before = process.submit(highest).result()
        for name, text in texts_of_yaml().items():
            (tmp_path / "text").write_text(text)
            (tmp_path / "README.md").write_text(f"---\n{text}\n---\n")
            message, license, seconds, megabytes = process.submit(read_yaml, tmp_path).result(300)
            assert (0 < len(message) < 500, len(license) < 500) == (True, True), name
            assert seconds < 20, f"{name}: {seconds:.1f} s"
            assert megabytes - before < 700, f"{name}: {megabytes - before:.0f} MB"  # the imports took 300


def test_products_of_sizes_have_the_same_limit_in_model_json_and_in_recipes(model: Path, tmp_path: Path) -> None:
    """The positions would take a gigabyte. A language that YAML reads as a number stays text. Nesting is limited."""
    text = (model / "recipe.yaml").read_text()
    (tmp_path / "long.yaml").write_text(
        text.replace("max_length: 128", f"max_length: {1 << 20}").replace("d_model: 16", "d_model: 256")
    )
    values = json.loads((model / "model.json").read_text())
    values["architecture"] |= {"max_length": 1 << 20, "d_model": 256}
    (tmp_path / "model.json").write_text(json.dumps(values))
    for read, name in ((read_model_json, "model.json"), (loading.load_stored, "long.yaml")):
        with pytest.raises(DataError, match=r"max_length x model.d_model must be at most 67,108,864"):
            read(tmp_path / name)
    (tmp_path / "five.yaml").write_text((model / "recipe.yaml").read_text().replace("  src: en\n", "  src: 5\n"))
    assert loading.load_stored(tmp_path / "five.yaml").corpus.src == "5"
    with pytest.raises(UsageError, match="nested 50 or more levels deep"):
        yaml_file.parse_mapping(b"a: " + b"[" * 60, "a test")
    assert yaml_file.parse_mapping(b"a: " + b"[" * 40 + b"]" * 40, "a test")
