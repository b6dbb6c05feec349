"""DeepL's dialect. Errors are {"message": text}."""

from starlette.routing import BaseRoute

PREFIX = "/v2/"
ROUTES: list[BaseRoute] = []
