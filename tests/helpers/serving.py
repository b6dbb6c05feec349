"""Helpers for the tests of `nmt serve`: applications and server processes."""

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from in_process import run_nmt
from starlette.testclient import TestClient
from texts import ROOT

from nmt_cli import Translator
from nmt_cli.serving.app import ANY_HOST, create_app
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.origins import Access
from nmt_cli.serving.pool import ModelPool, load
from nmt_cli.serving.service import Limits, Service

TEXTS = ["der Hund geht.", "rot und", "die Katze ist nicht rot, das Haus"]
LONG = "der Hund geht. " * 300
PAIR = {"source": "en", "target": "de"}
DAY = 20_000 * 24 * 3600.0  # Unix time at the beginning of a day


@contextlib.contextmanager
def service_of(
    *models: Path, queue: int = 1000, limits: Limits | None = None, pivot: bool = True, **options: Any
) -> Iterator[Service]:
    loaded = [one for model in models for one in load(model, "fp32", 2)]
    with ModelPool(loaded, Metrics(), queue=queue, pivot=pivot) as pool:
        yield Service(pool, pool.metrics, limits or Limits(5000, 50), **options)
        assert pool.texts == 0, "requests that ended are still counted"


@contextlib.contextmanager
def client_of(*models: Path, access: Access = ANY_HOST, **options: Any) -> Iterator[TestClient]:
    with service_of(*models, **options) as service:
        with TestClient(create_app(service, access), raise_server_exceptions=True) as client:
            yield client


def hypotheses(translator: Translator, *lines: str, **options: Any) -> list[list[str]]:
    """Return the texts of each line's hypotheses, best first."""
    return [[each.text for each in line.hypotheses] for line in translator.translate(lines, **options)]


def resident(process: int | str = "self") -> int:
    """Return the resident memory of a process in pages."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1])


def start(*words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "nmt_cli", "serve", "--workers", "2", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def server(*words: str) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    """Start a server; yield its process, which already listens, and its address."""
    process = start("--port", "0", *words)
    try:
        assert process.stderr
        while (line := process.stderr.readline()).startswith("nmt: warning: "):
            pass
        assert line.startswith("serving "), line + process.stderr.read()
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.communicate()


def ask(address: str, text: str) -> str:
    body = json.dumps({"q": text, "source": "en", "target": "de"}).encode()
    request = urllib.request.Request(f"{address}/translate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["translatedText"])


def failed(*words: object) -> tuple[int, str]:
    """Run `nmt serve` with arguments that must fail; return the exit code and the error line."""
    code, stdout, stderr = run_nmt("serve", *words)
    [line] = [line for line in stderr.strip().split("\n") if "error:" in line]
    assert not stdout
    return code, line
