"""Prove that each line of the input has exactly one translation, in order, and join the units."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from nmt_cli.corpus.opening import compressing
from nmt_cli.sharding.bucket import is_url
from nmt_cli.sharding.job import Job, Sidecar
from nmt_cli.sharding.store import Directory, Store, store_of
from nmt_cli.sharding.units import BLOCK, Reader, Unit
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, OutputError, UsageError

MISSING = "not translated"


def problems(job: Job) -> Iterator[tuple[Unit, str]]:
    """Yield each unit without a valid result, and the reason. Read input and output once, and compare all hashes."""
    with Reader(job.files) as reader:
        for unit in job.units:
            if reason := _problem(job, unit, reader)[1]:
                yield unit, reason


def join(job: Job, output: str | None) -> list[str]:
    """Write the outputs of all files, and return their paths or URLs.

    `output` is a directory, or a file if there is only one input. None means the job's own directory. An output is
    compressed according to the suffix of its name. If a unit has no valid result, write nothing and raise DataError.
    Raise UsageError if `output` is a file but there are several inputs, and OutputError if an output would replace
    an input or a special file.
    """
    store, names = _outputs(job, output)
    for name in names:
        _check_replaceable(store, name, job)
    units = {file: list[Unit]() for file in range(len(job.files))}
    for unit in job.units:
        units[unit.file].append(unit)
    parts = list[Path]()
    try:
        with Reader(job.files) as reader:
            for file, name in enumerate(names):
                parts.append(store.part())
                with parts[-1].open("xb") as raw, compressing(raw, name) as target:
                    for unit in units[file]:
                        _copy(job, unit, reader, target)
        for part, name in zip(parts, names, strict=True):
            store.keep(part, name)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    return [f"{store.place}/{name}".removeprefix("./") for name in names]


def _check_replaceable(store: Store, name: str, job: Job) -> None:
    """Raise OutputError if an output would replace an input or a special file. `Directory.keep` refuses directories."""
    if not isinstance(store, Directory) or not (target := store.path / name).exists():
        return
    if artefact.is_one_of(target, (Path(file.place) for file in job.files if not is_url(file.place))):
        raise OutputError(f"{target} is also the input. Choose another --output")
    if not target.is_file() and not target.is_dir():
        raise OutputError(f"{target} is not a file. Choose another --output")


def _outputs(job: Job, output: str | None) -> tuple[Store, list[str]]:
    names = [file.name for file in job.files]
    if output is None:
        return job.store, names
    is_directory = output.endswith("/") or (not is_url(output) and Path(output).is_dir())
    if len(names) > 1 and not is_url(output) and Path(output).is_file():
        raise UsageError(f"{output} is a file, but there are {len(names):,} outputs. Pass a directory")
    if len(names) > 1 or is_directory:
        return store_of(output.rstrip("/") or "/"), names
    parent, _, name = output.rpartition("/")
    return store_of(parent or ("/" if output.startswith("/") else ".")), [name]


def _copy(job: Job, unit: Unit, reader: Reader, target: IO[bytes]) -> None:
    sidecar, reason = _problem(job, unit, reader)
    if not sidecar or reason:
        advice = "Run nmt translate ... --check to list all missing lines"
        raise DataError(f"{job.lines_of(unit)}: {reason}. {advice}")
    hashed = hashlib.sha256()
    with job.open_output(unit, sidecar) as lines:
        while block := lines.read(BLOCK):
            hashed.update(block)
            target.write(block)
    if hashed.hexdigest() != sidecar.output_sha256:
        raise DataError(f"{job.lines_of(unit)} changed while they were joined. Join them again")


def _problem(job: Job, unit: Unit, reader: Reader) -> tuple[Sidecar | None, str]:
    """Read a unit's input and output. Return its sidecar, and the reason why its result is invalid.

    The sidecar is None if it is missing or if reading fails. The reason is "" if the result is valid.
    """
    content = reader.read(unit)
    try:
        sidecar = job.sidecar(unit)
        if not sidecar:
            failure = job.failure(unit)
            return None, f"failed: {failure.reason}" if failure else MISSING
        if sidecar.input_sha256 != content.sha256:
            return sidecar, "the input has changed since these lines were translated"
        return sidecar, damage_of(job, unit, sidecar)
    except (DataError, OutputError) as error:
        return None, str(error)


def damage_of(job: Job, unit: Unit, sidecar: Sidecar) -> str:
    """Return a description of the damage to a unit's translated lines, or "" if they match their sidecar."""
    try:
        with job.open_output(unit, sidecar) as lines:
            sha256 = hashlib.file_digest(lines, "sha256").hexdigest()
    except FileNotFoundError:
        return f"{sidecar.output} is missing"
    return "" if sha256 == sidecar.output_sha256 else f"{sidecar.output} is damaged"
