"""Served answers: about ninety requests to `nmt serve`, with their statuses, headers and bodies."""

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from same.translation import DOCUMENTS
from same.tree import MODEL, REVERSE_MODEL, Tree

HEADERS = "content-type", "content-disposition", "retry-after", "allow", "connection", "cache-control"
HEADERS += "content-security-policy", "x-content-type-options", "referrer-policy"
HEADERS += "access-control-allow-origin", "access-control-allow-methods", "access-control-allow-headers", "vary"
# IDs of glossaries, times, names of translated files, and ports differ from run to run.
RANDOM = (
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    r"\d{4}-\d\d-\d\dT[\d:.+]+",
    r"/download_file/[\w-]{22}",
    r":\d{5}\b",
)
DOG, WHY, BOTH = "The dog was tired.", "Why was she tired?", "The dog was tired.\n\nWhy was she tired? 3.14"
EN_DE = {"source": "en", "target": "de"}
DEEPL = {"source_lang": "EN", "target_lang": "DE"}
MARKED = 'The <b>dog</b> <x id="3"></x> was <i>tired</i>.'
STARTED_IN = 60  # seconds


@dataclass(frozen=True)
class Request:
    """A request; `fields` are sent as JSON, or as a form if `form` is set."""

    path: str
    fields: dict[str, object] | None = None
    form: bool = False
    method: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def send(self, port: int) -> tuple[int, dict[str, str], bytes]:
        headers, body = dict(self.headers), self.body
        if self.fields is not None:
            kind = "application/x-www-form-urlencoded" if self.form else "application/json"
            text = urllib.parse.urlencode(self.fields, doseq=True) if self.form else json.dumps(self.fields)
            headers, body = {"Content-Type": kind, **headers}, text.encode()
        method = self.method or ("POST" if body else "GET")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def file_form(name: str, content: bytes, **fields: str) -> Request:
    """Return a request that uploads a file for translation."""
    parts = [f'Content-Disposition: form-data; name="{key}"\r\n\r\n{value}'.encode() for key, value in fields.items()]
    parts.append(f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode() + content)
    body = b"".join(b"--limit\r\n" + part + b"\r\n" for part in parts) + b"--limit--\r\n"
    return Request("/translate_file", body=body, headers={"Content-Type": "multipart/form-data; boundary=limit"})


def libre(form: bool = False, **fields: object) -> Request:
    return Request("/translate", {"q": DOG, **EN_DE, **fields}, form)


def deepl(**fields: object) -> Request:
    return Request("/v2/translate", {"text": [DOG], **DEEPL, **fields})


def glossary(name: str, entries: str, **fields: object) -> Request:
    return Request("/v2/glossaries", {"name": name, "entries": entries, "entries_format": "tsv", **DEEPL, **fields})


PLAIN: dict[str, Request] = {
    "translate": libre(),
    "translate a form": libre(True, q=WHY),
    "translate a query string": Request("/translate?" + urllib.parse.urlencode({"q": WHY, **EN_DE}), method="POST"),
    "translate a list": libre(q=[DOG, WHY, "", "3.14"]),
    "translate lines": libre(q=BOTH),
    "translate html": libre(q=f"<p>{MARKED}</p>", format="html"),
    "translate several html": libre(q=[MARKED, "<p>Why", DOCUMENTS["page.html"]], format="html"),
    "translate with alternatives": libre(q=[DOG, WHY], alternatives=3),
    "translate one with alternatives": libre(alternatives=2),
    "translate from auto": libre(source="auto", q="Will I wait in the forest? The dog did not cross the street."),
    "translate from auto, German": libre(source="auto", target="en", q="Der Hund ist müde und wartet im Wald."),
    "translate to the same language": libre(target="en"),
    "translate German": libre(source="de", target="en", q="Der Hund war müde."),
    "translate with a country": libre(source="en-GB", target="de-AT"),
    "translate placeholders": libre(q="The dog %s was {tired}: https://example.org"),
    "translate emoji": libre(q="The dog \U0001f600 was tired."),
    "translate an empty text": libre(q=""),
    "translate without q": Request("/translate", {**EN_DE}),
    "translate without target": Request("/translate", {"q": DOG, "source": "en"}),
    "translate to an unknown language": libre(target="xx"),
    "translate to an odd language": libre(target="\u0130" * 50),
    "translate an unknown format": libre(format="pdf"),
    "translate a number": libre(q=5),
    "translate a mapping": libre(q={"a": 1}),
    "translate too many alternatives": libre(alternatives=11),
    "translate wrong alternatives": libre(alternatives="x"),
    "translate too long a text": libre(q="a" * 100_001),
    "translate too many texts": libre(q=["a"] * 1001),
    "translate too costly a text": libre(q="a\n" * 8_000, alternatives=9),
    "translate broken JSON": Request("/translate", body=b"{", headers={"Content-Type": "application/json"}),
    "translate a JSON list": Request("/translate", body=b"[1]", headers={"Content-Type": "application/json"}),
    "translate broken multipart": Request("/translate", body=b"x", headers={"Content-Type": "multipart/form-data"}),
    "translate by GET": Request("/translate", method="GET"),
    "detect": Request("/detect", {"q": "Der Hund ist müde und wartet im Wald."}),
    "detect nothing": Request("/detect", {"q": " 3.14 "}),
    "detect without q": Request("/detect", {}),
    "languages": Request("/languages"),
    "health": Request("/health"),
    "settings": Request("/frontend/settings"),
    "the page": Request("/", method="HEAD"),
    "an unknown page": Request("/nothing"),
    "a page outside": Request("/page/../app.py"),
    "sentences": Request("/sentences", {"q": f"{DOG}  {WHY}\nThe <b> street.", **EN_DE}),
    "sentences with alternatives": Request("/sentences", {"q": f"{DOG} {WHY}", **EN_DE, "alternatives": 2}),
    "sentences from auto": Request("/sentences", {"q": f"{DOG} {WHY}", "source": "auto", "target": "de"}),
    "sentences without q": Request("/sentences", EN_DE),
    **{f"file {name}": file_form(name, text.encode(), **EN_DE) for name, text in DOCUMENTS.items()},
    "file of text": file_form("A.TXT", f"\ufeff{BOTH}\n".encode(), **EN_DE),
    "file of an unknown kind": file_form("a.docx", b"x", **EN_DE),
    "file that is not UTF-8": file_form("a.txt", b"\xff", **EN_DE),
    "file without a language": file_form("a.txt", b"a"),
    "a file that is not there": Request("/download_file/nothing"),
    "DeepL translate": deepl(),
    "DeepL translate a form": Request("/v2/translate", {"text": [DOG, WHY], **DEEPL}, True),
    "DeepL detect": deepl(source_lang=None, text=["Will I wait in the forest? The dog did not cross the street."]),
    "DeepL html": deepl(text=[MARKED, f"<p>{DOG}</p><p>{WHY}"], tag_handling="html"),
    "DeepL xml": deepl(text=[f"<r>{MARKED}</r>", "<a>The dog<b/>was tired.</a>"], tag_handling="xml"),
    "DeepL broken xml": deepl(text=["<r>The dog", "a < b & c"], tag_handling="xml"),
    "DeepL xml, tags": deepl(text=[f"<r>{MARKED}<k>the street</k></r>"], tag_handling="xml", ignore_tags="k",
                             splitting_tags=["r"], non_splitting_tags="i", outline_detection=False),
    "DeepL lines": deepl(text=[BOTH], split_sentences="0", preserve_formatting=True),
    "DeepL nonewlines": deepl(text=[BOTH], split_sentences="nonewlines"),
    "DeepL billed": deepl(show_billed_characters=True),
    "DeepL ignored fields": deepl(formality="more", context="x", model_type="y"),
    "DeepL without text": Request("/v2/translate", DEEPL),
    "DeepL unknown language": deepl(target_lang="XX"),
    "DeepL wrong tag_handling": deepl(tag_handling="pdf"),
    "DeepL glossary_ids": deepl(glossary_ids=["a"]),
    "DeepL unknown glossary": deepl(glossary_id="a"),
    "DeepL source languages": Request("/v2/languages"),
    "DeepL target languages": Request("/v2/languages?type=target"),
    "DeepL wrong languages": Request("/v2/languages?type=both"),
    "DeepL usage": Request("/v2/usage"),
    "DeepL glossary pairs": Request("/v2/glossary-language-pairs"),
    "DeepL no glossaries": Request("/v2/glossaries"),
    "glossary without entries": glossary("empty", ""),
    "glossary with a phrase twice": glossary("twice", "dog\tHund\ndog\tKöter"),
    "glossary with a wrong line": glossary("wrong", "dog\tHund\nstreet"),
    "glossary in broken csv": glossary("csv", '"dog,Hund', entries_format="csv"),
    "glossary without a name": glossary(" ", "dog\tHund"),
    "glossary for no model": glossary("pair", "dog\tHund", target_lang="FR"),
    "an unknown glossary": Request("/v2/glossaries/a/entries"),
    "another host": Request("/languages", headers={"Host": "example.org"}),
    "another origin": Request("/translate", {"q": DOG, **EN_DE}, headers={"Origin": "http://example.org"}),
    "too long a header": Request("/health", headers={"X-Long": "x" * 500_000}),
}  # fmt: skip

KEY = {"Authorization": "DeepL-Auth-Key secret"}
GUARDED: dict[str, Request] = {
    "no key": libre(),
    "a wrong key": libre(api_key="wrong"),
    "a key in a field": libre(api_key="secret"),
    "a key in a header": Request("/translate", {"q": DOG, **EN_DE}, headers={"Authorization": "Bearer secret"}),
    "DeepL, no key": deepl(),
    "DeepL, a key": Request("/v2/translate", {"text": DOG, **DEEPL}, headers=KEY),
    "DeepL, auth_key": deepl(auth_key="secret"),
    "languages without a key": Request("/languages"),
    "settings without a key": Request("/frontend/settings"),
    "metrics without a key": Request("/metrics"),
    "protected": libre(api_key="secret", q="The dog %s was {tired}: https://example.org"),
    "over --char-limit": libre(api_key="secret", q="a" * 201),
    "over --batch-limit": libre(api_key="secret", q=["a"] * 4),
    "an allowed origin": Request("/translate", {"q": DOG, **EN_DE, "api_key": "secret"}, headers={"Origin": "https://site.example"}),
    "another origin": Request("/translate", {"q": DOG, **EN_DE, "api_key": "secret"}, headers={"Origin": "https://other.example"}),
    "a preflight": Request("/translate", method="OPTIONS", headers={
        "Origin": "https://site.example", "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type"}),
    "an allowed host": Request("/languages", headers={"Host": "mt.example"}),
    "another host": Request("/languages", headers={"Host": "other.example"}),
}  # fmt: skip


@contextlib.contextmanager
def server(tree: Tree, *options: object) -> Iterator[int]:
    """Run `nmt serve` and yield its port; raise RuntimeError if it does not start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "nmt_cli", "serve", *map(str, options), "--port", str(port), "--precision", "fp32"]
    # The log is a file: a full pipe without a reader would block the server.
    with (tree.folder / "serve.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=tree.folder, env=tree.environment({}), stdout=log, stderr=log)
    try:
        for _ in range(STARTED_IN * 10):
            with contextlib.suppress(OSError):
                if Request("/health").send(port)[0] == 200:
                    break
            if process.poll() is not None:
                raise RuntimeError(f"{tree.name}: nmt serve ended with {process.returncode}: see {log.name}")
            time.sleep(0.1)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def answer(request: Request, port: int) -> dict[str, object]:
    """Send a request, and return its answer. The message of a refusal counts as words: it may change."""
    status, headers, body = request.send(port)
    text = body.decode(errors="replace").replace(f":{port}", ":(port)")
    for pattern in RANDOM:
        text = re.sub(pattern, "(random)", text)
    with contextlib.suppress(ValueError):
        content = json.loads(text)
        if status >= 400 and isinstance(content, dict) and len(content) == 1:
            [(name, words)] = content.items()
            return {"status": status, "headers": chosen(headers), "body": [name], "words": words}
        return {"status": status, "headers": chosen(headers), "body": content}
    return {"status": status, "headers": chosen(headers), "body": text.split("\n")}


def chosen(headers: dict[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in HEADERS if name in headers}


def answers(tree: Tree) -> Iterator[tuple[str, object]]:
    """Send all requests to a server with default options, then create and use glossaries, and translate files."""
    with server(tree, MODEL, REVERSE_MODEL) as port:
        for name, request in PLAIN.items():
            yield name, answer(request, port)
        yield from glossary_life(port)
        yield from file_life(port)
        yield "metrics", metric_names(port)
        yield "usage afterwards", answer(Request("/v2/usage"), port)


def guarded(tree: Tree) -> Iterator[tuple[str, object]]:
    """Send requests to a server with keys, origins, hosts and small limits."""
    (tree.folder / "keys").write_text("other\nsecret\n")
    options = ["--api-key-file", "keys", "--cors", "https://site.example", "--allow-host", "mt.example", "--protect"]
    with server(tree, MODEL, *options, "--char-limit", 200, "--batch-limit", 3, "--workers", 1) as port:
        for name, request in GUARDED.items():
            yield f"guarded: {name}", answer(request, port)


def glossary_life(port: int) -> Iterator[tuple[str, object]]:
    """Create glossaries in two formats; use, show, list and delete them."""
    for kind, entries in {"tsv": "dog\tKöter|Hund\nforest\tWalde", "csv": "dog,Köter\nstreet,Gasse,en,de\n"}.items():
        request = glossary(f"my {kind}", entries, entries_format=kind)
        yield f"glossary in {kind}: created", answer(request, port)
        created = json.loads(request.send(port)[2])
        key = created["glossary_id"]
        place = f"/v2/glossaries/{key}"
        steps = {
            "used": deepl(text=[DOG, WHY, "The street"], glossary_id=key),
            "used without a source": deepl(glossary_id=key, source_lang=None),
            "used for another pair": deepl(glossary_id=key, source_lang="DE", target_lang="EN"),
            "shown": Request(place),
            "entries": Request(f"{place}/entries"),
            "listed": Request("/v2/glossaries"),
            "deleted": Request(place, method="DELETE"),
            "deleted again": Request(place, method="DELETE"),
        }
        for name, request in steps.items():
            yield f"glossary in {kind}: {name}", answer(request, port)


def file_life(port: int) -> Iterator[tuple[str, object]]:
    """Upload files, and fetch their translations."""
    for name, text in {**DOCUMENTS, "a.txt": BOTH}.items():
        status, _, body = file_form(name, text.encode(), **EN_DE).send(port)
        path = urllib.parse.urlsplit(json.loads(body).get("translatedFileUrl", "")).path
        yield f"file {name}: fetched", answer(Request(path), port) if status == 200 else {"status": status}


def metric_names(port: int) -> object:
    """Return the metrics' names with their labels."""
    _, headers, body = Request("/metrics").send(port)
    lines = [line.rpartition(" ")[0] for line in body.decode().splitlines() if not line.startswith("#")]
    own = sorted({line for line in lines if not line.startswith(("python_", "process_")) and "bucket" not in line})
    return {"headers": chosen(headers), "names": own}


CHECKS: dict[str, Callable[[Tree], object]] = {
    "answers": lambda tree: dict(answers(tree)),
    "answers of a guarded server": lambda tree: dict(guarded(tree)),
}
