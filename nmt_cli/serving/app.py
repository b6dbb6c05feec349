"""The application: its routes, what every answer has, and the words of errors."""

import time
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nmt_cli.serving import deepl, files, libretranslate, sentences
from nmt_cli.serving.deadline import Deadline
from nmt_cli.serving.fields import Fields, Refusal
from nmt_cli.serving.origins import Access
from nmt_cli.serving.service import Service
from nmt_cli.system.console import counted, say
from nmt_cli.system.errors import printable

PAGE = Path(__file__).parent / "page"
CLIENT_GONE = 499  # as nginx counts those
SAFE = {
    "Cache-Control": "no-cache",  # a newer version's page is taken at once
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "
    "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

EVERY_HOST = Access()


class PageFiles(StaticFiles):
    """The files of the page, as they lie in `page/`; none may load anything from elsewhere, nor hold scripts inline."""

    def file_response(self, *arguments: object, **options: object) -> Response:
        response = super().file_response(*arguments, **options)  # type: ignore[arg-type]
        response.headers.update(SAFE)
        return response


async def page(request: Request) -> Response:
    return FileResponse(PAGE / "index.html", headers=SAFE)


async def metrics(request: Request) -> Response:
    service: Service = request.app.state.service
    service.check_key(request, Fields({}))
    return Response(service.metrics.page(), media_type=service.metrics.content_type)


ROUTES: list[BaseRoute] = [
    *libretranslate.ROUTES,
    *files.ROUTES,
    *deepl.ROUTES,
    *sentences.ROUTES,
    Route("/metrics", metrics),
    Route("/", page),
    Mount("/page", PageFiles(directory=PAGE)),  # what it loads
]


def create_app(service: Service, access: Access = EVERY_HOST) -> Starlette:
    """Return the application; `access` decides which hosts and pages may ask it."""
    middleware = [Middleware(Watch, service=service), Middleware(Guard, service=service, access=access)]
    if access.origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=access.origins,
            allow_methods=["*"],
            allow_headers=["*"],
            allow_private_network=True,
        )
        middleware.append(cors)
    middleware.append(Middleware(Deadline, seconds=service.limits.seconds, refuse=_error))
    handlers = {HTTPException: _http_error, Refusal: _refusal, ClientDisconnect: _gone, Exception: _failure}
    app = Starlette(routes=ROUTES, middleware=middleware, exception_handlers=handlers)  # type: ignore[arg-type]
    app.state.service, app.state.shelf = service, files.Shelf()
    return app


def _error(request: Request, status: int, text: str, headers: dict[str, str] | None = None) -> JSONResponse:
    name = "message" if request.url.path.startswith(deepl.PREFIX) else "error"
    return JSONResponse({name: text}, status, headers)


async def _http_error(request: Request, error: HTTPException) -> Response:
    return _error(request, error.status_code, error.detail, dict(error.headers or {}))


async def _refusal(request: Request, error: Refusal) -> Response:
    return _error(request, error.status, error.text, error.headers)


async def _gone(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=CLIENT_GONE)  # nobody hears it


async def _failure(request: Request, error: Exception) -> Response:
    return _error(request, 500, "The server failed: this is a bug of nmt serve")


class Guard:
    """Refuses requests that use another host's name, and requests from other sites' pages."""

    def __init__(self, app: ASGIApp, service: Service, access: Access) -> None:
        self.app, self.service, self.access = app, service, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None
        if scope["type"] == "http":
            refusal = self.access.refuse(scope["method"], Headers(scope=scope), bool(self.service.keys))
        if refusal:
            response = _error(Request(scope), *refusal, {"Connection": "close"})  # the body is not read
            await response(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class Watch:
    """Counts every request and says one line of it, without any of its text."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service
        self.paths = {route.path for route in ROUTES if isinstance(route, Route)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = time.monotonic(), CLIENT_GONE

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception:
            status = 500
            raise
        finally:
            path = scope["path"] if scope["path"] in self.paths else "(other)"
            self.service.metrics.requests.labels(path, status).inc()
            state = scope.get("state", {})
            texts = ""
            if "texts" in state:
                texts = f" {counted(state['texts'], 'text')} {counted(state['characters'], 'character')}"
            milliseconds = 1000 * (time.monotonic() - begun)
            say(f"{printable(scope['method'], 20)} {path} {status}{texts} {milliseconds:.1f} ms")
