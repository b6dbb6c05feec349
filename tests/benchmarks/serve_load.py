"""Measure texts/s and latency of `nmt serve`, a small server around CTranslate2, and LibreTranslate under load.

    PYTHONPATH=. python tests/benchmarks/serve_load.py MODEL CT2_DIRECTORY LINES_FILE [--libretranslate PYTHON]

Make CT2_DIRECTORY with `nmt export MODEL --to ctranslate2 --quantization int8 --out DIR`. PYTHON belongs to an
environment with `pip install libretranslate`; it uses the same model, as a package for argostranslate. LibreTranslate's
sentence splitter is off because it needs a download, so LINES_FILE should have one sentence per line. Unless
`--load-only` is given, the script also measures the latency of short texts while a text of 50,000 characters is being
translated (`nmt serve` and CTranslate2), and of `Translator` in this process. Needs the extras `serve` and `export`.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

LONG = 50_000  # characters
LONG_TEXTS = 4  # of each kind, one after another
CTRANSLATE2 = """
import asyncio, sys
import ctranslate2, sentencepiece, uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.routing import Route

directory, port = sys.argv[1:]
tokenizer = sentencepiece.SentencePieceProcessor(model_file=directory + "/tokenizer.model")
translator = ctranslate2.Translator(directory, inter_threads=2, intra_threads=1, compute_type="int8")

def work(text):
    lines = [tokenizer.encode(line, out_type=str) + ["</s>"] for line in text.split("\\n")]
    found = translator.translate_batch(lines, beam_size=BEAM, length_penalty=0, max_batch_size=1024,
                                       batch_type="tokens", max_decoding_length=max(map(len, lines)) + 50)
    return "\\n".join(tokenizer.decode(one.hypotheses[0]) for one in found)

async def translate(request):
    return JSONResponse({"translatedText": await run_in_threadpool(work, (await request.json())["q"])})

work("Hello.")
app = Starlette(routes=[Route("/translate", translate, methods=["POST"])])
uvicorn.run(app, port=int(port), log_level="error")
"""

LIBRETRANSLATE = """
import sys
from argostranslate import sbd
sbd.MiniSBDSentencizer.split_sentences = lambda self, text: [text]
from libretranslate.main import main
sys.argv = ["libretranslate", "--port", sys.argv[1], "--disable-web-ui", "--disable-files-translation"]
main()
"""


class Client:
    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(self, text: str) -> str:
        body = json.dumps({"q": text, "source": "en", "target": "de"})
        self.connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {content[:200]!r}")
        return str(json.loads(content)["translatedText"])


@contextlib.contextmanager
def running(command: list[str], port: int, home: Path | None = None) -> Iterator[float]:
    """Start a server and yield the seconds until its first answer. With `home`, it has that home and no output."""
    begun = time.perf_counter()
    if home:
        names = "HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"
        own = {"ARGOS_PACKAGES_DIR": str(home / "packages"), **dict.fromkeys(names, str(home))}
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, env=os.environ | own, cwd=home, **silent)
    else:
        process = subprocess.Popen(command)
    try:
        while True:
            try:
                Client(port).ask("Hello.")
                break
            except OSError:
                if process.poll() is not None:
                    raise RuntimeError(f"{command[0]} ended") from None
                time.sleep(0.005)
        yield time.perf_counter() - begun
    finally:
        process.terminate()
        process.wait()


def load(port: int, lines: list[str], clients: int, stop: threading.Event) -> list[float]:
    """Return the latency of each answer in milliseconds while `clients` threads send lines until `stop` is set."""
    took = list[float]()

    def work(number: int) -> None:
        client, choose = Client(port), random.Random(number)
        while not stop.is_set():
            begun = time.perf_counter()
            client.ask(choose.choice(lines))
            took.append(1000 * (time.perf_counter() - begun))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took


def timed(port: int, lines: list[str], clients: int, seconds: float) -> tuple[list[float], float]:
    """Return the latency of each answer in milliseconds, and texts/s."""
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set)
    timer.start()
    begun = time.perf_counter()
    took = load(port, lines, clients, stop)
    return took, len(took) / (time.perf_counter() - begun)


def shown(took: list[float]) -> str:
    return (
        f"median {statistics.median(took):.2f} ms, 99 % {sorted(took)[int(len(took) * 0.99)]:.2f} ms, {len(took)} texts"
    )


def beside_long(port: int, lines: list[str], separator: str) -> None:
    """Print the latency of short texts during long requests, which join `lines` with `separator`."""
    lengths = itertools.accumulate(len(line) + 1 for line in lines)
    text = separator.join(line for line, length in zip(lines, lengths, strict=True) if length <= LONG)
    stop, begun = threading.Event(), time.perf_counter()

    def send() -> None:
        for _ in range(LONG_TEXTS):
            Client(port).ask(text)
        stop.set()

    sender = threading.Thread(target=send)
    sender.start()
    took = load(port, lines, 1, stop)
    sender.join()
    each = (time.perf_counter() - begun) / LONG_TEXTS
    print(f"during {len(text):,} characters joined by {separator!r} ({each:.2f} s each): {shown(took)}", flush=True)


def engine(model: Path, lines: list[str]) -> None:
    from nmt_cli import Translator

    took = list[float]()
    with Translator(model) as translator:
        translator.submit("Hello.").result()
        choose = random.Random(0)
        for line in [choose.choice(lines) for _ in range(300)]:
            begun = time.perf_counter()
            translator.submit(line).result()
            took.append(1000 * (time.perf_counter() - begun))
    print(f"Translator in this process: {shown(took)}", flush=True)


def packages(ct2: Path, home: Path) -> Path:
    """Write the exported model as packages for argostranslate, which needs both directions; return `home`."""
    for source, target in ("en", "de"), ("de", "en"):
        package = home / "packages" / f"{source}_{target}"
        shutil.copytree(ct2, package / "model")
        shutil.copy(ct2 / "tokenizer.model", package / "sentencepiece.model")
        package_data = {"package_version": "1.0", "argos_version": "1.9", "from_code": source, "to_code": target}
        names = {"from_name": source, "to_name": target}
        (package / "metadata.json").write_text(json.dumps(package_data | names))
        config = json.loads((ct2 / "config.json").read_text()) | {"add_source_eos": True}
        (package / "model" / "config.json").write_text(json.dumps(config))
    return home


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("ct2")
    parser.add_argument("lines", type=Path)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--port", type=int, default=5077)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--libretranslate", metavar="PYTHON")
    parser.add_argument("--load-only", action="store_true")
    options = parser.parse_args()
    lines, port = options.lines.read_text().splitlines(), options.port
    commands = {
        "nmt serve": [sys.executable, "-m", "nmt_cli", "serve", str(options.model), "--port", str(port), "--quiet"],
        "ctranslate2": [
            sys.executable, "-c", CTRANSLATE2.replace("BEAM", str(options.beam)), options.ct2, str(port)
        ],
    }  # fmt: skip
    if options.libretranslate:
        own = [options.libretranslate, "-c", LIBRETRANSLATE, str(port)]
        commands["libretranslate"] = own  # its defaults: one search at a time with four threads
        commands["libretranslate 2x1"] = ["env", "ARGOS_INTER_THREADS=2", "ARGOS_INTRA_THREADS=1", *own]
    with tempfile.TemporaryDirectory() as directory:
        home = packages(Path(options.ct2), Path(directory))
        compare(commands, port, lines, options.seconds, home)
    if options.load_only:
        return
    for name, command in list(commands.items())[:2]:
        with running(command, port):
            timed(port, lines, 1, 0.3)
            print(f"{name}, alone: {shown(timed(port, lines, 1, options.seconds)[0])}", flush=True)
            for separator in ("\n", " ") if name == "nmt serve" else "\n":
                beside_long(port, lines * (LONG // 1000), separator)
    engine(options.model, lines)


def compare(commands: dict[str, list[str]], port: int, lines: list[str], seconds: float, home: Path) -> None:
    for clients in (1, 8, 32):
        for name, command in commands.items():
            with running(command, port, home if "libre" in name else None) as first:
                timed(port, lines, clients, 0.3)
                took, rate = timed(port, lines, clients, seconds)
            print(
                f"{clients:2} clients, {name:18}: {rate:6.1f} texts/s, {shown(took)}; first answer {first:.2f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
