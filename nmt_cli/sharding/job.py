"""Translation jobs that several workers share. A job is divided into units of lines, and stored in these files:

    units/job.json              the input files, the model and the options, which determine the output
    units/counts/00003.json     [lines, bytes] of each unit of one input file
    units/plan.json             [lines, bytes] of each unit of all files, written when all files are counted
    units/012/0012345.json      the sidecar of a unit, which marks the unit as finished
    units/012/0012345-HASH      the translated lines of a unit; HASH is the start of their SHA-256, as in the sidecar
    units/012/0012345.claim     marks a unit that a worker has begun; this worker may have been killed since
    units/012/0012345.failed    the reason why the translation of a unit failed
    units/parts/                temporary files

If several workers translate the same unit, the last sidecar replaces the others. All sidecars refer to complete files.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from nmt_cli import __version__
from nmt_cli.recipe.limits import Range
from nmt_cli.sharding import units
from nmt_cli.sharding.inputs import Input
from nmt_cli.sharding.store import Directory, Store, store_of
from nmt_cli.sharding.units import Unit
from nmt_cli.storage import artefact, records
from nmt_cli.storage.manifests import Count, InsideDirectory, Sha256, Size
from nmt_cli.system.console import counted, say
from nmt_cli.system.errors import DataError, MissingError, OutputError, UsageError, printable

FORMAT = 1
FOLDER, JOB, PLAN, PARTS = "units", "units/job.json", "units/plan.json", "units/parts"
PER_FOLDER = 1000  # units in one directory
MAX_UNITS = 1_000_000
MAX_JSON_BYTES = 1 << 26
SHOWN = 60  # maximum characters of a value in a message

T = TypeVar("T")


@dataclass(frozen=True)
class StoredFile:
    name: str
    bytes: Count


@dataclass(frozen=True)
class Description:
    """Everything that determines the output of a job. `identity` has the model, the options and the version of nmt."""

    format: int
    identity: dict[str, Any]
    unit_lines: Size
    files: list[StoredFile]


@dataclass(frozen=True)
class Plan:
    counts: list[list[list[Annotated[int, Range(1)]]]]  # for each file, for each of its units: [lines, bytes]


@dataclass(frozen=True)
class Sidecar:
    """The record of a finished unit."""

    input: str
    first_line: Size
    lines: Size
    input_sha256: Annotated[str, Sha256()]
    output: Annotated[str, InsideDirectory()]
    output_bytes: Count
    output_lines: Count
    output_sha256: Annotated[str, Sha256()]
    job: Annotated[str, Sha256()]  # the digest of the job's Description
    nmt: str


@dataclass(frozen=True)
class Failure:
    reason: str
    exit_code: Annotated[int, Range(1, 255)] = 1


class States(NamedTuple):
    """Sets of unit numbers: finished units, failed units, and units that workers have claimed."""

    done: set[int]
    failed: set[int]
    claimed: set[int]


class Job:
    """The units of the input files, and a store with their results."""

    def __init__(self, store: Store, files: Sequence[Input], description: Description) -> None:
        self.store = store
        self.files = list(files)
        self.description = description
        self.digest = artefact.digest(dataclasses.asdict(description))
        self._units: list[Unit] | None = None

    @property
    def units(self) -> list[Unit]:
        """The units of all files, in order. If no worker has counted the lines of the files, count them now."""
        if self._units is None:
            self.plan()
        return self._units or []

    def plan(self, start: int = 0) -> None:
        """Read the plan of the units. If there is none, count the lines of all files and write it.

        Counting begins with file `start`. Workers begin with different files, and use the counts of other workers.
        """
        if stored := self._read(PLAN, Plan):
            counts = stored.counts
        else:
            counts = self._counted(start)
            self.store.replace(PLAN, _compact({"counts": counts}))
        if len(counts) != len(self.files) or any(len(pair) != 2 for file in counts for pair in file):
            raise DataError(f"{self.store.place}/{PLAN} is damaged. Delete it: the next worker counts the lines again")
        self._units = units.numbered(counts)

    def _counted(self, start: int) -> list[list[list[int]]]:
        counts: dict[int, list[list[int]]] = {}
        for number in [*range(start, len(self.files)), *range(start)]:
            name = f"{FOLDER}/counts/{number:05}.json"
            if stored := self._read(name, Plan):
                counts[number] = stored.counts[0] if stored.counts else []
                continue
            say(f"counting the lines of {self.files[number].place}")
            counts[number] = [list(pair) for pair in units.count(self.files[number], self.description.unit_lines)]
            if sum(map(len, counts.values())) > MAX_UNITS:
                raise UsageError(f"there are more than {MAX_UNITS:,} units. Use a larger --unit-lines")
            self.store.replace(name, _compact({"counts": [counts[number]]}))
        return [counts[number] for number in range(len(self.files))]

    def _read(self, name: str, kind: type[T]) -> T | None:
        """Return the record in a file, or None if the file does not exist. Raise DataError if the file is damaged."""
        try:
            with self.store.open(name) as file:
                data = file.read(MAX_JSON_BYTES + 1)
        except FileNotFoundError:
            return None
        place = f"{self.store.place}/{name}"
        try:
            if len(data) > MAX_JSON_BYTES or not isinstance(value := json.loads(data), dict):
                raise ValueError
        except (ValueError, RecursionError):
            raise DataError(f"{place} is damaged: it is not a JSON object. Delete it") from None
        return records.from_json(kind, value, Path(place))

    def states(self) -> States:
        """Return the states of all units, which follow from the names of the files in the store."""
        states = States(set(), set(), set())
        kinds = {"json": states.done, "failed": states.failed, "claim": states.claimed}
        for folder in range(0, len(self.units), PER_FOLDER):
            for name in self.store.names(_folder(folder)):
                number, _, suffix = name.partition(".")
                if suffix in kinds and number.isdecimal():
                    kinds[suffix].add(int(number))
        return states

    def is_done(self, unit: Unit) -> bool:
        return self.store.exists(_name(unit, ".json"))

    def sidecar(self, unit: Unit) -> Sidecar | None:
        """Return the sidecar of a unit, or None if the unit has no sidecar.

        Raise DataError if the sidecar is damaged, and OutputError if it belongs to another job.
        """
        found = self._read(_name(unit, ".json"), Sidecar)
        if found and found.job != self.digest:
            place = f"{self.store.place}/{_name(unit, '.json')}"
            raise OutputError(f"{place} was made with another model or other options. Choose another --output")
        expected = (self.files[unit.file].name, unit.first, unit.lines)
        if found and (found.input, found.first_line, found.lines) != expected:
            raise DataError(f"{self.store.place}/{_name(unit, '.json')} is damaged: it belongs to other lines")
        return found

    def open_output(self, unit: Unit, sidecar: Sidecar) -> Any:
        """Open the translated lines of a finished unit. Raise FileNotFoundError if they are missing."""
        return self.store.open(f"{_folder(unit.number)}/{sidecar.output}")

    def forget(self, unit: Unit) -> None:
        """Remove the sidecar of a unit whose result is damaged."""
        self.store.remove(_name(unit, ".json"))

    def claim(self, unit: Unit) -> bool:
        """Claim a unit. Return False if another worker has claimed it."""
        return self.store.claim(_name(unit, ".claim"), f"{artefact.HOST} {os.getpid()}\n".encode())

    def release(self, unit: Unit) -> None:
        self.store.remove(_name(unit, ".claim"))

    def finish(self, unit: Unit, part: Path, input_sha256: str) -> None:
        """Move the translated lines of a unit from the local file `part` into the store, then write the sidecar."""
        sha256, size, lines = summary(part)
        output = f"{unit.number:07}-{sha256[:16]}"
        self.store.keep(part, f"{_folder(unit.number)}/{output}")
        name = self.files[unit.file].name
        record = Sidecar(
            name, unit.first, unit.lines, input_sha256, output, size, lines, sha256, self.digest, __version__
        )
        self.store.replace(_name(unit, ".json"), artefact.json_bytes(dataclasses.asdict(record)))
        self.store.remove(_name(unit, ".failed"))
        self.release(unit)

    def fail(self, unit: Unit, failure: Failure) -> None:
        """Record why the translation of a unit failed, and release the unit."""
        self.store.replace(_name(unit, ".failed"), artefact.json_bytes(dataclasses.asdict(failure)))
        self.release(unit)

    def failure(self, unit: Unit) -> Failure | None:
        return self._read(_name(unit, ".failed"), Failure)

    def lines_of(self, unit: Unit) -> str:
        """Return a description of a unit's lines for messages."""
        return f"{self.files[unit.file].name}, lines {unit.first:,} to {unit.last:,}"


def begin(output: str, files: Sequence[Input], identity: Mapping[str, Any], unit_lines: int | None) -> Job:
    """Return the job in the store `output`. If the store has no job, create one.

    If `unit_lines` is None, an existing job keeps its number of lines per unit. Raise OutputError if the store has a
    different job or contains an input file. Raise UsageError if the name of an input begins with the directory "units".
    """
    store = store_of(output, PARTS)
    if reserved := next((file.name for file in files if file.name.split("/")[0] == FOLDER), None):
        raise UsageError(f"{reserved} must be renamed, because {FOLDER} is the directory of the units")
    if isinstance(store, Directory):
        _check_apart(store.path, files)
        store.remove_leftovers()
    values = json.loads(json.dumps(identity))  # convert to JSON types, to compare with stored values
    own = Description(FORMAT, values, unit_lines or units.UNIT_LINES, _stored(files))
    job = Job(store, files, own)
    stored = job._read(JOB, Description)
    if not stored:
        store.create(JOB, artefact.json_bytes(dataclasses.asdict(own)))
        stored = job._read(JOB, Description) or own
    if unit_lines is None:
        own = dataclasses.replace(own, unit_lines=stored.unit_lines)
    if differences := [*_differences(dataclasses.asdict(stored), dataclasses.asdict(own))]:
        found = f"{output} holds units of another job ({'; '.join(differences)})"
        raise OutputError(f"{printable(found, 400)}. Choose another --output, or pass the same options")
    return Job(store, files, own)


def resume(output: str, files: Sequence[Input]) -> Job:
    """Return the existing job in a store.

    Raise MissingError if the store has no job, and DataError if its job has other input files.
    """
    job = Job(store_of(output, PARTS), files, Description(FORMAT, {}, 1, []))  # only to read the stored description
    stored = job._read(JOB, Description)
    if not stored:
        raise MissingError(f"{output} has no units. Create them with nmt translate ... --shard I/N --output {output}")
    own = dataclasses.replace(stored, format=FORMAT, files=_stored(files))
    if differences := [*_differences(dataclasses.asdict(stored), dataclasses.asdict(own))]:
        raise DataError(
            f"{output} has units of other input files ({printable('; '.join(differences), 400)}). Pass the job's files"
        )
    return Job(job.store, files, stored)


def summary(path: Path) -> tuple[str, int, int]:
    """Return the SHA-256, the number of bytes and the number of line feeds of a local file."""
    hashed, size, lines = hashlib.sha256(), 0, 0
    with path.open("rb") as file:
        while block := file.read(units.BLOCK):
            hashed.update(block)
            size += len(block)
            lines += block.count(b"\n")
    return hashed.hexdigest(), size, lines


def _stored(files: Sequence[Input]) -> list[StoredFile]:
    return [StoredFile(file.name, file.bytes) for file in files]


def _check_apart(output: Path, files: Sequence[Input]) -> None:
    """Raise OutputError if the output is a file, or if it contains an input file, because joining could replace it."""
    if output.exists() and not output.is_dir():
        raise OutputError(f"{output} is a file, but units need a directory. Choose another --output")
    inside = os.path.realpath(output) + os.sep
    for file in files:
        if os.path.realpath(file.place).startswith(inside):
            raise OutputError(f"the input {file.place} is in the output directory {output}. Choose another --output")


def _differences(stored: Mapping[str, Any], own: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield a message for each difference between two job descriptions."""
    for key in dict.fromkeys([*stored, *own]):
        old, new = stored.get(key), own.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, "" if key == "identity" else f"{key} ")
        elif key == "files" and old != new:
            both = [{(file["name"], file["bytes"]) for file in files} for files in (old or [], new or [])]
            changed = sorted({name for name, _ in both[0] ^ both[1]})
            yield f"{counted(len(changed), 'input file')} added, removed or resized: {', '.join(changed)[:SHOWN]}"
        elif old != new:
            yield f"{before}{key} was {str(old)[:SHOWN]}, now {str(new)[:SHOWN]}"


def _folder(number: int) -> str:
    return f"{FOLDER}/{number // PER_FOLDER:03}"


def _name(unit: Unit, suffix: str) -> str:
    return f"{_folder(unit.number)}/{unit.number:07}{suffix}"


def _compact(value: Any) -> bytes:
    return (json.dumps(value, separators=(",", ":")) + "\n").encode()
