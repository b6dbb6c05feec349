"""The Starlette application: routes, middleware and error responses."""

import time
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nmt_cli.serving import deepl, deepl_documents, deepl_glossaries, files, libretranslate, sentences, suggestions
from nmt_cli.serving.deadline import Deadline
from nmt_cli.serving.fields import Fields, Refusal
from nmt_cli.serving.origins import Access
from nmt_cli.serving.service import Service
from nmt_cli.system.console import counted, say
from nmt_cli.system.errors import printable

PAGE = Path(__file__).parent / "page"
CLIENT_CLOSED_REQUEST = 499  # nginx's status, for the log, if the client has disconnected
ROUTE_HEADER = "X-NMT-Route"  # the languages through which a text was translated
PAGE_HEADERS = {
    "Cache-Control": "no-cache",  # so that browsers fetch the new page after an upgrade
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "
    "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

ANY_HOST = Access()


class PageFiles(StaticFiles):
    """Serves the files in `page/` with PAGE_HEADERS."""

    def file_response(self, *arguments: object, **options: object) -> Response:
        response = super().file_response(*arguments, **options)  # type: ignore[arg-type]
        response.headers.update(PAGE_HEADERS)
        return response


async def page(request: Request) -> Response:
    return FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)


async def metrics(request: Request) -> Response:
    service: Service = request.app.state.service
    await service.identify(request, Fields({}))
    service.check_key(request, Fields({}))
    return Response(service.metrics.page(), media_type=service.metrics.content_type)


ROUTES: list[BaseRoute] = [
    *libretranslate.ROUTES,
    *files.ROUTES,
    *deepl.ROUTES,
    *deepl_glossaries.ROUTES,
    *deepl_documents.ROUTES,
    *sentences.ROUTES,
    *suggestions.ROUTES,
    Route("/metrics", metrics),
    Route("/", page),
    Mount("/page", PageFiles(directory=PAGE)),
]


def create_app(service: Service, access: Access = ANY_HOST) -> Starlette:
    """Return the application, which refuses requests that `access` does not allow."""
    middleware = [Middleware(RequestLog, service=service), Middleware(AccessCheck, service=service, access=access)]
    if access.origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=access.origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=[ROUTE_HEADER],
            allow_private_network=True,
        )
        middleware.append(cors)
    middleware.append(Middleware(Deadline, seconds=service.limits.seconds, refuse=_error))
    handlers = {HTTPException: _http_error, Refusal: _refusal, ClientDisconnect: _disconnected, Exception: _failure}
    app = Starlette(routes=ROUTES, middleware=middleware, exception_handlers=handlers)  # type: ignore[arg-type]
    app.state.service = service
    app.state.files = files.FileStore()
    app.state.jobs = deepl_documents.Jobs()
    return app


def _error(request: Request, status: int, text: str, headers: dict[str, str] | None = None) -> JSONResponse:
    name = "message" if request.url.path.startswith(deepl.PREFIXES) else "error"
    return JSONResponse({name: text}, status, headers)


async def _http_error(request: Request, error: HTTPException) -> Response:
    return _error(request, error.status_code, error.detail, dict(error.headers or {}))


async def _refusal(request: Request, error: Refusal) -> Response:
    return _error(request, error.status, error.text, error.headers)


async def _disconnected(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _failure(request: Request, error: Exception) -> Response:
    return _error(request, 500, "The server failed: this is a bug in nmt serve")


class AccessCheck:
    """Middleware that refuses requests for host names and from web pages that `access` does not allow."""

    def __init__(self, app: ASGIApp, service: Service, access: Access) -> None:
        self.app = app
        self.service = service
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None
        if scope["type"] == "http":
            refusal = self.access.refusal(scope["method"], Headers(scope=scope), self.service.needs_keys)
        if refusal:
            response = _error(Request(scope), *refusal, {"Connection": "close"})  # the request's body is not read
            await response(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class RequestLog:
    """Middleware that counts and logs each request, without its texts. It adds ROUTE_HEADER to translations."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app = app
        self.service = service
        self.paths = {route.path for route in ROUTES if isinstance(route, Route)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.monotonic()
        status = CLIENT_CLOSED_REQUEST

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if route := scope.get("state", {}).get("route"):
                    MutableHeaders(scope=message)[ROUTE_HEADER] = route
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
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
