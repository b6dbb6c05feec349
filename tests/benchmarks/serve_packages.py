"""Compare `nmt serve` with LibreTranslate on the same directory of Argos packages.

    PYTHONPATH=. python tests/benchmarks/serve_packages.py PACKAGE --texts captions FILE --texts news FILE \
        --libretranslate PYTHON [--seconds 20] [--clients 1 8 32] [--models 2 20]

PACKAGE is an `.argosmodel` file, as `nmt export --to argos` writes. Its model is installed for several language pairs,
two of which form a route. Both steps of the route use the same model, so only the speed of the route is meaningful.
PYTHON belongs to an environment with `pip install libretranslate`. LibreTranslate's sentence splitter is off because it
needs a download. This favors LibreTranslate, and the files of texts should have one sentence per line.

The script prints texts/s, the median and the 99th percentile of the latency for each number of clients, directly and
by the route; then the memory with each number of models, at the start and after each model was used once.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

LIBRETRANSLATE = """
import sys
from argostranslate import sbd
sbd.MiniSBDSentencizer.split_sentences = lambda self, text: [text]
from libretranslate.main import main
sys.argv = ["libretranslate", "--port", sys.argv[1], "--disable-web-ui", "--disable-files-translation"]
main()
"""
CODES = re.findall("..", "fresitptnlsvdafiplcsskhurobgelukrutretlvlt")
START_SECONDS = 300


def install(package: Path, to: Path, pairs: list[tuple[str, str]]) -> None:
    """Unpack a package once for each pair of languages, as argostranslate does."""
    with zipfile.ZipFile(package) as archive:
        [metadata_file] = [name for name in archive.namelist() if re.fullmatch("[^/]+/metadata.json", name)]
        root = metadata_file.removesuffix("metadata.json")
        for source, target in pairs:
            folder = to / f"translate-{source}_{target}-1_0"
            for name in archive.namelist():
                file = folder / name.removeprefix(root)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(archive.read(name))
            metadata = json.loads((folder / "metadata.json").read_text())
            metadata |= {"from_code": source, "from_name": source, "to_code": target, "to_name": target}
            (folder / "metadata.json").write_text(json.dumps(metadata))


def languages_of(package: Path) -> tuple[str, str]:
    with zipfile.ZipFile(package) as archive:
        [file] = [name for name in archive.namelist() if re.fullmatch("[^/]+/metadata.json", name)]
        metadata = json.loads(archive.read(file))
    return metadata["from_code"], metadata["to_code"]


class Client:
    def __init__(self, port: int, pair: tuple[str, str]) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port)
        self.source, self.target = pair

    def ask(self, text: str) -> str:
        body = json.dumps({"q": text, "source": self.source, "target": self.target})
        self.connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {content[:200]!r}")
        return str(json.loads(content)["translatedText"])


def megabytes(process: int) -> float:
    """Return the proportional memory (PSS) of a process and its children in MB."""
    total = int(re.search(r"(?m)^Pss:\s+(\d+)", Path(f"/proc/{process}/smaps_rollup").read_text())[1])  # type: ignore[index]
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return total / 1024 + sum(megabytes(int(child)) for child in children)


@contextlib.contextmanager
def running(name: str, command: list[str], home: Path, port: int) -> Iterator[int]:
    """Start a server, wait until it answers, and yield its process ID."""
    names = "HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"
    own = {"ARGOS_PACKAGES_DIR": str(home / "packages"), **dict.fromkeys(names, str(home))}
    own["PYTHONPATH"] = str(Path(__file__).parents[2])  # to find nmt, since the server runs in another directory
    with (home / "log").open("w") as log:
        process = subprocess.Popen(command, env=os.environ | own, cwd=home, stdout=log, stderr=log)
    begun = time.perf_counter()
    try:
        while True:
            with contextlib.suppress(OSError):
                http.client.HTTPConnection("127.0.0.1", port, timeout=5).connect()
                break
            if process.poll() is not None or time.perf_counter() - begun > START_SECONDS:
                raise RuntimeError(f"{name} does not start:\n{(home / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        print(f"{name}: start {time.perf_counter() - begun:.1f} s, {megabytes(process.pid):.0f} MB", flush=True)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def measure(
    port: int, pair: tuple[str, str], lines: list[str], clients: int, seconds: float
) -> tuple[list[float], float]:
    """Return the latency of each answer in milliseconds, and texts/s."""
    took = list[float]()
    begun = time.perf_counter()

    def work(number: int) -> None:
        client = Client(port, pair)
        draw = random.Random(number)
        while (asked := time.perf_counter()) < begun + seconds:
            client.ask(draw.choice(lines))
            took.append(1000 * (time.perf_counter() - asked))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took, len(took) / (time.perf_counter() - begun)


def speeds(options: argparse.Namespace, commands: dict[str, list[str]], home: Path) -> None:
    """Print texts/s and latencies of each server, kind of text, way and number of clients."""
    source, target = languages_of(options.package)
    last = next(code for code in CODES if code not in (source, target))
    install(options.package, home / "packages", [(source, target), (target, last)])
    ways = {"direct": (source, target), "by route": (source, last)}
    texts = {name: Path(file).read_text().splitlines() for name, file in options.texts}
    for name, command in commands.items():
        with running(name, command, home, options.port) as process:
            for pair in ways.values():
                begun = time.perf_counter()
                Client(options.port, pair).ask("Hello.")
                print(f"  first answer {'-'.join(pair)}: {time.perf_counter() - begun:.2f} s", flush=True)
            for (kind, lines), way, clients in itertools.product(texts.items(), ways, options.clients):
                measure(options.port, ways[way], lines, clients, min(1, options.seconds))
                took, rate = measure(options.port, ways[way], lines, clients, options.seconds)
                high = sorted(took)[int(len(took) * 0.99)]
                print(
                    f"  {kind}, {way}, {clients:2} clients: {rate:7.1f} texts/s, median {statistics.median(took):.1f} "
                    f"ms, 99 % {high:.1f} ms ({len(took)} texts)",
                    flush=True,
                )
            print(f"  memory: {megabytes(process):.0f} MB", flush=True)


def memories(options: argparse.Namespace, commands: dict[str, list[str]], home: Path, count: int) -> None:
    """Print the memory of each server with a number of models, at the start and after each model was used once."""
    source, target = languages_of(options.package)
    pairs = [(source, code) for code in dict.fromkeys([target, *CODES]) if code != source][:count]
    install(options.package, home / "packages", pairs)
    for name, command in commands.items():
        print(f"{count} models: ", end="")
        with running(name, command, home, options.port) as process:
            for pair in pairs:
                Client(options.port, pair).ask("Hello.")
            print(f"  all used once: {megabytes(process):.0f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--texts", nargs=2, action="append", required=True, metavar=("NAME", "FILE"))
    parser.add_argument("--libretranslate", metavar="PYTHON")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--models", type=int, nargs="*", default=[2, 20], help="numbers of models for measuring memory")
    parser.add_argument("--port", type=int, default=5078)
    options = parser.parse_args()
    port = str(options.port)
    commands = {"nmt serve": [sys.executable, "-m", "nmt_cli", "serve", "packages", "--quiet", "--port", port]}
    commands["nmt serve"] += ["--timeout", "600"]  # the first request for a package imports it
    if options.libretranslate:
        commands["libretranslate"] = [options.libretranslate, "-c", LIBRETRANSLATE, port]
        commands["libretranslate 2x1"] = ["env", "ARGOS_INTER_THREADS=2", "ARGOS_INTRA_THREADS=1"]
        commands["libretranslate 2x1"] += commands["libretranslate"]
    with tempfile.TemporaryDirectory() as directory:
        for count in (0, *options.models):
            home = Path(directory) / str(count)
            home.mkdir()
            if count:
                memories(options, commands, home, count)
            elif options.clients:
                speeds(options, commands, home)


if __name__ == "__main__":
    main()
