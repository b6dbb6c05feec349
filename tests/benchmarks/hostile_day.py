"""Test `nmt serve` against hostile and broken clients on many connections while one honest client uses it.

    python tests/benchmarks/hostile_day.py MODEL MODEL [--minutes 30] [--connections 200] [--seed 1] [--log FILE]

The server has its default limits. The script prints the latency and failures of the honest client, the server's memory
and log, and the status codes of all answers. It also checks that no answer contains a secret file of the server. The
exit code is 1 if a limit is exceeded or a check fails.
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
SECONDS, MEGABYTES = 1.0, 300  # limits on caption latency, and on server memory without its child processes
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
    """Makes random hostile requests as bytes. No answer may contain the contents of `secret_file`."""

    def __init__(self, seed: int, port: int, secret_file: Path) -> None:
        self.rng, self.port, self.secret_file = random.Random(seed), port, str(secret_file)
        self.glossaries = ["x"]
        self.documents = [("x", "x")]  # IDs and keys
        self.kinds: list[Callable[[], bytes]] = [
            self.translate, self.translate, self.deepl, self.sentences, self.detect, self.file, self.file,
            self.glossary, self.use_glossary, self.headers, self.bodies, self.paths, self.multipart,
            self.route, self.dictionaries, self.document, self.use_document, self.suggestion,
        ]  # fmt: skip

    def text(self) -> str:
        size, rng = self.rng.choice(TEXT_SIZES), self.rng
        if rng.random() < 0.1:
            return self.secret_file
        if rng.random() < 0.2:
            return "".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(160, 0xD800)])) for _ in range(500))
        unit = "".join(rng.sample(UNITS, rng.choice([1, 1, 1, 2, 3])))
        return (rng.choice(["", *UNITS]) + unit * (size // len(unit) + 1) + rng.choice(["", *UNITS]))[:size]

    def request(self, method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", f"Content-Length: {len(body)}", *headers]
        return "\r\n".join([*lines, "", ""]).encode(errors="surrogateescape") + body

    def json(self, path: str, **fields: Any) -> bytes:
        return self.request("POST", path, json.dumps(fields).encode(), "Content-Type: application/json")

    def language(self) -> str:
        return self.rng.choice(["en", "de", "auto", "fr", "EN-GB", "", "x" * 1000, self.secret_file, "\u0130"])

    def flag(self) -> Any:
        return self.rng.choice(
            [True, False, 1, 0, "1", "0", "nonewlines", "xml", "html", None, [], {}, -1, 10**400, "x"]
        )

    def pair(self) -> tuple[str, str]:
        return ("en", "de") if self.rng.random() < 0.8 else (self.language(), self.language())

    def translate(self) -> bytes:
        q: Any = (
            self.text() if self.rng.random() < 0.8 else [self.text()[:100] for _ in range(self.rng.randrange(1100))]
        )
        source, target = self.pair()
        kind = self.rng.choice(["text", "html", "html", self.flag()])
        number = self.rng.choice([0, 0, 1, 10, self.flag()])
        return self.json("/translate", q=q, source=source, target=target, format=kind, alternatives=number)

    def deepl(self) -> bytes:
        source, target = self.pair()
        more = {"tag_handling": self.rng.choice(["xml", "html", None]), "split_sentences": self.flag()}
        return self.json("/v2/translate", text=[self.text()], source_lang=source, target_lang=target, **more)

    def sentences(self) -> bytes:
        return self.json("/sentences", q=self.text(), alternatives=self.rng.choice([0, 3, 10]), **PAIR)

    def detect(self) -> bytes:
        return self.json("/detect", q=self.text())

    def glossary(self) -> bytes:
        entries = "\n".join(f"the {number}\tdas {number}" for number in range(self.rng.choice([1, 100, 4900])))
        if self.rng.random() < 0.3:
            entries = self.text()
        fields = {"name": self.text()[:2000], "entries": entries, "entries_format": self.rng.choice(["tsv", "csv"])}
        return self.json("/v2/glossaries", source_lang="en", target_lang="de", **fields)

    def use_glossary(self) -> bytes:
        key = self.rng.choice([*self.glossaries[-200:], self.secret_file])
        if self.rng.random() < 0.5:
            path = f"/v2/glossaries/{key}"
            return self.request(self.rng.choice(["GET", "DELETE", "DELETE"]), path.replace(" ", "%20")[:1000])
        text = ["the 17 " * self.rng.choice([1, 100, 12_000])]
        return self.json("/v2/translate", text=text, source_lang="en", target_lang="de", glossary_id=key)

    def route(self) -> bytes:
        """Request language pairs that the server may translate through a third language."""
        source, target = self.rng.choice([("de", "fr"), ("fr", "de"), ("en", "en"), ("fr", "en"), ("auto", "fr")])
        kind = self.rng.choice(["text", "html"])
        return self.json("/translate", q=self.text(), source=source, target=target, format=kind, alternatives=3)

    def dictionaries(self) -> bytes:
        """Use version 3 of DeepL's glossary API."""
        rng = self.rng
        key = rng.choice([*self.glossaries[-200:], self.secret_file]).replace(" ", "%20")[:1000]
        pair = {"source_lang": self.language(), "target_lang": self.language()} if rng.random() < 0.3 else {}
        entries = "\n".join(f"the {number}\tdas {number}" for number in range(rng.choice([1, 100, 4900])))
        own = {"source_lang": "en", "target_lang": "de", "entries": entries, "entries_format": "tsv", **pair}
        path, method = rng.choice([("", "POST"), (f"/{key}", "PATCH"), (f"/{key}/dictionaries", "PUT"), ("", "GET")])
        fields = (
            own if method == "PUT" else {"name": "x", "dictionaries": rng.choice([[own], [own] * 60, [[]], own, None])}
        )
        body = json.dumps(fields).encode()
        return self.request(method, f"/v3/glossaries{path}", body, "Content-Type: application/json")

    def document(self) -> bytes:
        name = self.rng.choice(["a.html", "a.md", "a.po", "a.txt", "../../a.po", self.secret_file, "a.exe"])
        source, target = self.pair()
        return self.multipart_of(
            [
                (f'name="file"; filename="{name}"', self.text()),
                ('name="source_lang"', source),
                ('name="target_lang"', target),
            ],
            "/v2/document",
        )

    def use_document(self) -> bytes:
        key, secret = self.rng.choice([*self.documents[-50:], ("../..", self.secret_file)])
        path = f"/v2/document/{key}" + self.rng.choice(["", "/result"])
        return self.json(path, document_key=self.rng.choice([secret, secret, "x", None, 7]))

    def suggestion(self) -> bytes:
        return self.json("/suggest", q=self.text()[:500], s=self.text(), **PAIR)

    def multipart_of(self, parts: list[tuple[str, str]], path: str = "/translate_file") -> bytes:
        body = "".join(f"--b\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n" for head, value in parts)
        data = (body + "--b--\r\n").encode()
        return self.request("POST", path, data, "Content-Type: multipart/form-data; boundary=b")

    def file(self) -> bytes:
        name = self.rng.choice(["a.html", "a.md", "a.po", "a.po", "a.txt", "../../a.po", self.secret_file, "a.docx"])
        text = self.text()
        if name.endswith(".po") and self.rng.random() < 0.5:
            forms = self.rng.choice(["nplurals=3000000; plural=n", "nplurals=2; plural=n!=1", "nplurals=" + "9" * 5000])
            head = f'msgid ""\nmsgstr "Plural-Forms: {forms};\\n"\n\n'
            text = f'{head}msgid "{text[:500]}"\nmsgid_plural "b"\nmsgstr[0] ""\n'
        return self.multipart_of(
            [(f'name="file"; filename="{name}"', text), ('name="source"', "en"), ('name="target"', "de")]
        )

    def multipart(self) -> bytes:
        return self.multipart_of(
            [(f'name="{self.rng.choice(UNITS)}"', "\r\n--" * 100)] * self.rng.choice([1, 60, 3000])
        )

    def headers(self) -> bytes:
        rng = self.rng
        return rng.choice([
            b"GET /health HTTP/1.1\r\n" + b"X: a\r\n" * rng.choice([100, 100_000]),
            b"GET /health HTTP/1.1\r\nX: " + b"a" * rng.choice([1000, 1_000_000]),
            b"GET /" + b"a" * rng.choice([1000, 1_000_000]),
            b"POST /translate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: a\r\n" * 100_000,
            b"POST /translate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"a" * 500_000,
            b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" * 1000,
            b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", rng.randbytes(2000),
            self.request("OPTIONS", "/translate", b"", "Origin: http://evil", "Access-Control-Request-Method: POST"),
            self.request("GET", "/metrics", b"", "Host: evil"),
            self.request("TRACE", "/"), self.request("PUT", "/translate"),
        ])  # fmt: skip

    def bodies(self) -> bytes:
        wrong: list[bytes] = [
            b"[" * 100_000, b'{"q":' * 50_000, b'{"q": ' + b"9" * 5000 + b"}", b'{"q": "\\ud800"}', b'{"q": "\\u0000"}',
            b"\xff\xfe", b"q=" + b"%41" * 400_000, b"q=a&" * 5000, b"{}", b"null", b"",
        ]  # fmt: skip
        kind = self.rng.choice(
            ["application/json", "application/x-www-form-urlencoded", "multipart/form-data", "x" * 500]
        )
        whole = self.request("POST", "/translate", self.rng.choice(wrong), f"Content-Type: {kind}")
        return whole[: self.rng.choice([len(whole), len(whole) // 2])]

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
        return self.request("GET", self.rng.choice(tries) + self.rng.choice([file, file.replace("/", "%2f"), "x"]))


async def client(hostile: Hostile, until: float, secret: bytes, statuses: collections.Counter[str]) -> None:
    """Open one connection after another: send slowly or at once, read part of the answer or nothing, and disconnect."""
    rng = hostile.rng
    while time.monotonic() < until:
        writer = None
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", hostile.port), 10)
            data = rng.choice(hostile.kinds)()
            behavior = rng.random()
            for start in range(0, len(data), step := (50 if behavior < 0.1 else 1 << 20)):
                writer.write(data[start : start + step])
                await asyncio.wait_for(writer.drain(), 30)
                if behavior < 0.1:
                    await asyncio.sleep(0.2)
                    if start > 2000:
                        break
            if behavior < 0.2:  # an idle connection, which may have an unread answer
                await asyncio.sleep(rng.choice([1, 20]))
            elif behavior > 0.3:
                answer = await asyncio.wait_for(reader.read(1 << 16), rng.choice([1, 5, 90]))
                statuses[answer[9:12].decode(errors="replace")] += 1
                if secret in answer:
                    statuses["SECRET"] += 1
                if found := re.search(rb'"glossary_id":"([^"]+)"', answer):
                    hostile.glossaries.append(found[1].decode())
                if found := re.search(rb'"document_id":"([^"]+)","document_key":"([^"]+)"', answer):
                    hostile.documents.append((found[1].decode(), found[2].decode()))
        if writer:
            writer.transport.abort()
        await asyncio.sleep(0)


def attack(seed: int, port: int, file: Path, connections: int, until: float, secret: bytes, results: Any) -> None:
    statuses, hostile = collections.Counter[str](), Hostile(seed, port, file)

    async def run_clients() -> None:
        await asyncio.gather(*(client(hostile, until, secret, statuses) for _ in range(connections)))

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(run_clients())
    results.put(statuses)


def honest(port: int, until: float) -> tuple[list[float], list[float], list[str]]:
    """Translate a caption and get /health every second; return the latencies of both in seconds, and the failures."""
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
    """Return the proportional memory (PSS) of a process in MB, without and with its children."""
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
    parser.add_argument("--log", type=Path, help="keep the server's log in this file")
    parser.add_argument("--database", action="store_true", help="give the server a database file")
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
        if options.database:
            command += ["--database", str(Path(directory) / "nmt.db")]
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
            percentile_99 = statistics.quantiles(values, n=100)[98]
            print(
                f"{name}: {len(values):,}, median {statistics.median(values):.3f} s, "
                f"99th percentile {percentile_99:.3f}, maximum {max(values):.3f}"
            )
        print(f"failures of the honest client: {len(failures)}", *failures[:5], sep="\n  ")
        print(f"peak memory: {highest[0]:.0f} MB, {highest[1]:.0f} MB with its child processes")
        print(f"log: {len(lines)} lines; exit code {code}", *lines[:20], sep="\n  ")
        exceeded = [
            name
            for name, wrong in {
                "caption latency": statistics.quantiles(seconds, n=100)[98] > SECONDS,
                "failures of the honest client": bool(failures),
                "memory": highest[0] > MEGABYTES,
                "length of the log": len(lines) > options.minutes + 1,
                "server file in an answer": statuses["SECRET"] > 0,
                "server exit": not alive or code != 0,
            }.items()
            if wrong
        ]
        print("limits exceeded: " + ", ".join(exceeded) if exceeded else "all limits met")
        return bool(exceeded)


if __name__ == "__main__":
    sys.exit(main())
