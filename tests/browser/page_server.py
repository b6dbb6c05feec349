"""A server for tests of the page: the real application, which tests can delay, replace, stop and restart."""

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
import urllib.request

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse

from nmt_cli.serving.app import create_app
from nmt_cli.translation.segmenter import sentences_of


class Server:
    """Serves the application on its own port, records the times of requests, and lets tests interfere with answers."""

    def __init__(self, service):
        self.app, self.asked, self.port = create_app(service), [], 0
        self.held = None  # an event that the next answer waits for
        self.instead = None  # an application that answers instead
        self.start()

    async def __call__(self, scope, receive, send):
        if scope["path"] not in ("/sentences", "/translate_file"):
            return await self.app(scope, receive, send)
        self.asked.append(time.monotonic())
        held, self.held = self.held, None
        if held:
            await asyncio.to_thread(held.wait, 60)
        return await (self.instead or self.app)(scope, receive, send)

    def start(self):
        listening = socket.create_server(("127.0.0.1", self.port), reuse_port=True)
        self.port = listening.getsockname()[1]
        self.server = uvicorn.Server(uvicorn.Config(self, log_config=None, lifespan="off", ws="none"))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]})
        self.thread.start()

    def stop(self):
        self.server.should_exit = True
        self.thread.join(30)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/"

    def hypotheses(self, text, **fields):
        """Return the server's hypotheses for each sentence of a text, the best one first."""
        answer = self._ask("sentences", q=text, alternatives=3, **fields)
        return [sentence["hypotheses"] for sentence in answer["sentences"]]

    def _ask(self, path, **fields):
        content = json.dumps({"source": "en", "target": "de", **fields}).encode()
        request = urllib.request.Request(f"{self.url}{path}", content, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    def translated(self, text, **fields):
        return self._ask("translate", q=text, **fields)["translatedText"]

    def best(self, text, **fields):
        return [hypotheses[0]["text"] for hypotheses in self.hypotheses(text, **fields)]


async def backwards(scope, receive, send):
    """Answer POST /sentences with the words capitalized and in reverse order. Alternatives end with "AUCH"."""
    fields = await Request(scope, receive).json()
    text, found, end = fields["q"], [], 0
    for start, stop in sentences_of(text):
        words = text[start:stop].upper().split()
        sources = [match.start() for match in re.finditer(r"\S+", text[start:stop])]
        targets = [match.start() for match in re.finditer(r"\S+", " ".join(reversed(words)))]
        pairs = list(zip(sources, reversed(targets), strict=True))
        texts = [" ".join([*reversed(words), *["AUCH"] * rank]) for rank in range(fields["alternatives"] + 1)]
        hypotheses = [{"text": each, "alignment": pairs} for each in texts]
        found.append({"before": text[end:start], "source": text[start:stop], "hypotheses": hypotheses})
        end = stop
    await JSONResponse({"sentences": found, "after": text[end:]})(scope, receive, send)


@contextlib.contextmanager
def serving(service):
    server = Server(service)
    try:
        yield server
    finally:
        server.stop()
