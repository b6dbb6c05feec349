"""A hostile day for `nmt serve`: hostile and broken clients on many connections beside one honest client.

    python tests/benchmarks/hostile_day.py MODEL MODEL [--minutes 30] [--connections 200] [--seed 1] [--log FILE]

The server has its default limits. Prints how the honest client fared, the server's memory, its log, the statuses of all
answers, and whether an answer held the contents of a file of the server. Exits with 1 where a bar is missed.
"""

import argparse
import asyncio
import collections
import contextlib
import http.client
import json
import multiprocessing
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CAPTIONS = [
    "Why was she tired?",
    "The dog did not cross the street because it was too wide.",
    "Will I wait in the forest?",
]
SECONDS, MEGABYTES = 1.0, 300  # the bars: of captions, and of the server without its processes
PAIR = {"source": "en", "target": "de"}
MARKS = (
    r"%0 [^ [ ![ <b> <b </b> <!-- <code> & &a { {{ } ( %s %(a :a $a $ ` * _ ~ \ > | +++ ::: --- $$ <0> <x/> <![CDATA["
)
WORDS = ["xy. ", ". ", "a\n", "ab: ", "zq", "# ", "- ", "1. ", "| a | b |\n", "www.a", "a@a", "http://a", "<a href="]
SENTENCES = ["<p>The dog <b>was</b> tired.</p>", "The dog was tired. ", 'msgid "a"\nmsgstr ""\n\n']
LETTERS = ["a\u0301", "\u0301", "e\u0323\u0301", "\u200d", "\u00ad", "\u202e", "\u6f22", "\U0001f600", "\u0130", "ß"]
UNITS = [*MARKS.split(), *WORDS, *SENTENCES, *LETTERS]
TEXT_SIZES = 10, 500, 5_000, 99_000


class Hostile:
    """Requests as bytes, drawn at random; `secret_file` is a file of the server whose contents nobody must get."""

    def __init__(self, seed: int, port: int, secret_file: Path) -> None:
        self.draw, self.port, self.secret_file = random.Random(seed), port, str(secret_file)
        self.glossaries = ["x"]
        self.kinds: list[Callable[[], bytes]] = [
            self.translate, self.translate, self.deepl, self.sentences, self.detect, self.file, self.file,
            self.glossary, self.use_glossary, self.headers, self.bodies, self.paths, self.multipart,
        ]  # fmt: skip

    def text(self) -> str:
        size, draw = self.draw.choice(TEXT_SIZES), self.draw
        if draw.random() < 0.1:
            return self.secret_file
        if draw.random() < 0.2:
            return "".join(chr(draw.choice([draw.randrange(32, 127), draw.randrange(160, 0xD800)])) for _ in range(500))
        unit = "".join(draw.sample(UNITS, draw.choice([1, 1, 1, 2, 3])))
        return (draw.choice(["", *UNITS]) + unit * (size // len(unit) + 1) + draw.choice(["", *UNITS]))[:size]

    def request(self, method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", f"Content-Length: {len(body)}", *headers]
        return "\r\n".join([*lines, "", ""]).encode(errors="surrogateescape") + body

    def json(self, path: str, **fields: Any) -> bytes:
        return self.request("POST", path, json.dumps(fields).encode(), "Content-Type: application/json")

    def language(self) -> str:
        return self.draw.choice(["en", "de", "auto", "fr", "EN-GB", "", "x" * 1000, self.secret_file, "\u0130"])

    def flag(self) -> Any:
        return self.draw.choice(
            [True, False, 1, 0, "1", "0", "nonewlines", "xml", "html", None, [], {}, -1, 10**400, "x"]
        )

    def pair(self) -> tuple[str, str]:
        return ("en", "de") if self.draw.random() < 0.8 else (self.language(), self.language())

    def translate(self) -> bytes:
        q: Any = (
            self.text() if self.draw.random() < 0.8 else [self.text()[:100] for _ in range(self.draw.randrange(1100))]
        )
        source, target = self.pair()
        kind = self.draw.choice(["text", "html", "html", self.flag()])
        number = self.draw.choice([0, 0, 1, 10, self.flag()])
        return self.json("/translate", q=q, source=source, target=target, format=kind, alternatives=number)

    def deepl(self) -> bytes:
        source, target = self.pair()
        more = {"tag_handling": self.draw.choice(["xml", "html", None]), "split_sentences": self.flag()}
        return self.json("/v2/translate", text=[self.text()], source_lang=source, target_lang=target, **more)

    def sentences(self) -> bytes:
        return self.json("/sentences", q=self.text(), alternatives=self.draw.choice([0, 3, 10]), **PAIR)

    def detect(self) -> bytes:
        return self.json("/detect", q=self.text())

    def glossary(self) -> bytes:
        entries = "\n".join(f"the {number}\tdas {number}" for number in range(self.draw.choice([1, 100, 4900])))
        if self.draw.random() < 0.3:
            entries = self.text()
        fields = {"name": self.text()[:2000], "entries": entries, "entries_format": self.draw.choice(["tsv", "csv"])}
        return self.json("/v2/glossaries", source_lang="en", target_lang="de", **fields)

    def use_glossary(self) -> bytes:
        key = self.draw.choice([*self.glossaries[-200:], self.secret_file])
        if self.draw.random() < 0.5:
            path = f"/v2/glossaries/{key}"
            return self.request(self.draw.choice(["GET", "DELETE", "DELETE"]), path.replace(" ", "%20")[:1000])
        text = ["the 17 " * self.draw.choice([1, 100, 12_000])]
        return self.json("/v2/translate", text=text, source_lang="en", target_lang="de", glossary_id=key)

    def multipart_of(self, parts: list[tuple[str, str]]) -> bytes:
        body = "".join(f"--b\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n" for head, value in parts)
        data = (body + "--b--\r\n").encode()
        return self.request("POST", "/translate_file", data, "Content-Type: multipart/form-data; boundary=b")

    def file(self) -> bytes:
        name = self.draw.choice(["a.html", "a.md", "a.po", "a.po", "a.txt", "../../a.po", self.secret_file, "a.docx"])
        text = self.text()
        if name.endswith(".po") and self.draw.random() < 0.5:
            forms = self.draw.choice(
                ["nplurals=3000000; plural=n", "nplurals=2; plural=n!=1", "nplurals=" + "9" * 5000]
            )
            head = f'msgid ""\nmsgstr "Plural-Forms: {forms};\\n"\n\n'
            text = f'{head}msgid "{text[:500]}"\nmsgid_plural "b"\nmsgstr[0] ""\n'
        return self.multipart_of(
            [(f'name="file"; filename="{name}"', text), ('name="source"', "en"), ('name="target"', "de")]
        )

    def multipart(self) -> bytes:
        return self.multipart_of(
            [(f'name="{self.draw.choice(UNITS)}"', "\r\n--" * 100)] * self.draw.choice([1, 60, 3000])
        )

    def headers(self) -> bytes:
        draw = self.draw
        return draw.choice([
            b"GET /health HTTP/1.1\r\n" + b"X: a\r\n" * draw.choice([100, 100_000]),
            b"GET /health HTTP/1.1\r\nX: " + b"a" * draw.choice([1000, 1_000_000]),
            b"GET /" + b"a" * draw.choice([1000, 1_000_000]),
            b"POST /translate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: a\r\n" * 100_000,
            b"POST /translate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"a" * 500_000,
            b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" * 1000,
            b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", draw.randbytes(2000),
            self.request("OPTIONS", "/translate", b"", "Origin: http://evil", "Access-Control-Request-Method: POST"),
            self.request("GET", "/metrics", b"", "Host: evil"),
            self.request("TRACE", "/"), self.request("PUT", "/translate"),
        ])  # fmt: skip

    def bodies(self) -> bytes:
        wrong: list[bytes] = [
            b"[" * 100_000, b'{"q":' * 50_000, b'{"q": ' + b"9" * 5000 + b"}", b'{"q": "\\ud800"}', b'{"q": "\\u0000"}',
            b"\xff\xfe", b"q=" + b"%41" * 400_000, b"q=a&" * 5000, b"{}", b"null", b"",
        ]  # fmt: skip
        kind = self.draw.choice(
            ["application/json", "application/x-www-form-urlencoded", "multipart/form-data", "x" * 500]
        )
        whole = self.request("POST", "/translate", self.draw.choice(wrong), f"Content-Type: {kind}")
        return whole[: self.draw.choice([len(whole), len(whole) // 2])]

    def paths(self) -> bytes:
        file = self.secret_file.lstrip("/")
        tries = [
            "/page/",
            "/page/../",
            "/page/%2e%2e/%2e%2e/",
            "/download_file/",
            "/download_file/..%2f..%2f",
            "//",
            "/v2/",
        ]
        return self.request("GET", self.draw.choice(tries) + self.draw.choice([file, file.replace("/", "%2f"), "x"]))


async def client(hostile: Hostile, until: float, secret: bytes, statuses: collections.Counter[str]) -> None:
    """Open one connection after the other: send slowly or at once, read all, some, or nothing, and leave."""
    draw = hostile.draw
    while time.monotonic() < until:
        writer = None
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", hostile.port), 10)
            data = draw.choice(hostile.kinds)()
            manner = draw.random()
            for start in range(0, len(data), step := (50 if manner < 0.1 else 1 << 20)):
                writer.write(data[start : start + step])
                await asyncio.wait_for(writer.drain(), 30)
                if manner < 0.1:
                    await asyncio.sleep(0.2)
                    if start > 2000:
                        break
            if manner < 0.2:  # an idle connection, which may have an answer to read
                await asyncio.sleep(draw.choice([1, 20]))
            elif manner > 0.3:
                answer = await asyncio.wait_for(reader.read(1 << 16), draw.choice([1, 5, 90]))
                statuses[answer[9:12].decode(errors="replace")] += 1
                if secret in answer:
                    statuses["SECRET"] += 1
                if found := re.search(rb'"glossary_id":"([^"]+)"', answer):
                    hostile.glossaries.append(found[1].decode())
        if writer:
            writer.transport.abort()
        await asyncio.sleep(0)


def attack(seed: int, port: int, file: Path, connections: int, until: float, secret: bytes, results: Any) -> None:
    statuses, hostile = collections.Counter[str](), Hostile(seed, port, file)

    async def all_of_them() -> None:
        await asyncio.gather(*(client(hostile, until, secret, statuses) for _ in range(connections)))

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(all_of_them())
    results.put(statuses)


def honest(port: int, until: float) -> tuple[list[float], list[float], list[str]]:
    """Translate a caption and ask for /health each second; return the seconds of both, and what failed."""
    seconds, healths, failures = list[float](), list[float](), list[str]()
    while time.monotonic() < until:
        begun = time.monotonic()
        for method, path, body, kept in (
            ("POST", "/translate", {"q": CAPTIONS[len(seconds) % len(CAPTIONS)], **PAIR}, seconds),
            ("GET", "/health", None, healths),
        ):
            start = time.monotonic()
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                connection.request(
                    method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"}
                )
                answer = connection.getresponse()
                text = answer.read()
                if answer.status != 200:
                    failures.append(f"{answer.status} {text[:200]!r}")
                connection.close()
            except (OSError, http.client.HTTPException) as error:
                failures.append(repr(error))
            kept.append(time.monotonic() - start)
        time.sleep(max(0.0, 1 - (time.monotonic() - begun)))
    return seconds, healths, failures


def megabytes(process: int) -> tuple[float, float]:
    """Return the proportional memory of a process, and of it with its children."""
    found = []
    for each in [process, *map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]:
        with contextlib.suppress(OSError):
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
            found.append(int(re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[1]) / 1024)  # type: ignore[index]
    return found[0], sum(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, help="Keep the server's log in this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        secret = os.urandom(16).hex()
        file = Path(directory) / "secret.po"
        file.write_text(
            f'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "{secret}"\nmsgstr ""\n'
        )
        log = options.log or Path(directory) / "log"
        port = 20_000 + os.getpid() % 10_000
        command = [sys.executable, "-m", "nmt_cli", "serve", *options.models, "--port", str(port), "--quiet"]
        with log.open("w") as stderr:
            server = subprocess.Popen(command, stderr=stderr)
        while True:
            with contextlib.suppress(OSError):
                http.client.HTTPConnection("127.0.0.1", port, timeout=1).connect()
                break
            time.sleep(0.2)
        until = time.monotonic() + 60 * options.minutes
        results: Any = multiprocessing.Queue()
        attacker = multiprocessing.Process(
            target=attack, args=(options.seed, port, file, options.connections, until, secret.encode(), results)
        )
        attacker.start()
        highest = 0.0, 0.0
        with multiprocessing.Pool(1) as one:
            running = one.apply_async(honest, (port, until))
            while not running.ready():
                highest = max(highest, megabytes(server.pid), key=sum)
                running.wait(1)
            seconds, healths, failures = running.get()
        statuses = results.get(timeout=200)
        attacker.join()
        alive = server.poll() is None
        server.send_signal(signal.SIGTERM)
        code = server.wait(120)
        lines = log.read_text(errors="replace").splitlines()
        answers = sum(statuses.values())
        print(
            f"{answers:,} answers: "
            + ", ".join(f"{name or 'none'} {count:,}" for name, count in statuses.most_common())
        )
        for name, values in (("captions", seconds), ("/health", healths)):
            late = statistics.quantiles(values, n=100)[98]
            print(
                f"{name}: {len(values):,}, median {statistics.median(values):.3f} s, "
                f"99th {late:.3f}, most {max(values):.3f}"
            )
        print(f"failures of the honest client: {len(failures)}", *failures[:5], sep="\n  ")
        print(f"memory: at most {highest[0]:.0f} MB, {highest[1]:.0f} with its processes")
        print(f"log: {len(lines)} lines; exit code {code}", *lines[:20], sep="\n  ")
        missed = [
            name
            for name, wrong in {
                "a caption takes too long": statistics.quantiles(seconds, n=100)[98] > SECONDS,
                "the honest client was refused": bool(failures),
                "memory": highest[0] > MEGABYTES,
                "the log": len(lines) > options.minutes + 1,
                "a file of the server in an answer": statuses["SECRET"] > 0,
                "the server ended": not alive or code != 0,
            }.items()
            if wrong
        ]
        print("missed: " + ", ".join(missed) if missed else "all bars are met")
        return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
