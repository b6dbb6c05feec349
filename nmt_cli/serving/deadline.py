"""Middleware that limits the time of a request."""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Refuse = Callable[[Request, int, str], Response]  # builds an error response from a status and a message


class Deadline:
    """Cancels a request after `seconds`, and responds with 504 unless the response has already begun."""

    def __init__(self, app: ASGIApp, seconds: float, refuse: Refuse) -> None:
        self.app = app
        self.seconds = seconds
        self.refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = False

        async def send_and_note(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        if await self._in_time(self.app(scope, receive, send_and_note)) or begun:
            return
        text = f"The request took longer than {self.seconds:g} seconds. Send less text per request, or try again later"
        await self.refuse(Request(scope), 504, text)(scope, receive, send)

    async def _in_time(self, work: Awaitable[None]) -> bool:
        try:
            async with asyncio.timeout(self.seconds) as timeout:
                await work
        except TimeoutError:
            if timeout.expired():
                return False
            raise
        return True
