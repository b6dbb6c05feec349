"""LibreTranslate's routes, except those for files and suggestions. Error responses are {"error": text}."""

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from nmt_cli.corpus.languages import name_of
from nmt_cli.serving.files import KINDS
from nmt_cli.serving.openapi import specification
from nmt_cli.serving.service import MAX_ALTERNATIVES, Service
from nmt_cli.serving.texts import TextFormat
from nmt_cli.translation.options import SearchOptions

FORMATS = "text", "html"


async def translate(request: Request) -> JSONResponse:
    service, fields = await Service.open(request)
    texts, is_list = service.texts_of(request, fields, "q")
    source, target = fields.text("source"), fields.text("target")
    alternatives = fields.integer("alternatives", 0, MAX_ALTERNATIVES)
    text_format = TextFormat(fields.choice("format", FORMATS), service.protect)
    case, spelling = (fields.choice(name, ("", "auto", "off")) or None for name in ("case", "spelling"))
    options = SearchOptions(n_best=alternatives + 1, case=case, spelling=spelling)
    answer = await service.translate(request, texts, (source, target), text_format, options)
    content: dict[str, object] = {"translatedText": [each[0] for each in answer.texts]}
    if answer.confidence is not None:
        detected = {"confidence": answer.confidence, "language": answer.source}
        content["detectedLanguage"] = [detected] * len(texts) if is_list else detected
    if alternatives:
        content["alternatives"] = [each[1 : alternatives + 1] for each in answer.texts]
    if not is_list:
        for name in {"translatedText", "alternatives"} & content.keys():
            [content[name]] = content[name]  # type: ignore[misc]
    return JSONResponse(content)


async def languages(request: Request) -> JSONResponse:
    pool = request.app.state.service.pool
    return JSONResponse(
        [{"code": code, "name": name_of(code), "targets": pool.targets(code)} for code in pool.languages]
    )


async def detect(request: Request) -> JSONResponse:
    service, fields = await Service.open(request)
    texts, _ = service.texts_of(request, fields, "q")
    await service.charge(request)
    # In a thread, because the first call takes a second to load the detector's model.
    found = await run_in_threadpool(service.detector.detect, "\n".join(texts))
    return JSONResponse([{"confidence": confidence, "language": code} for code, confidence in found])


async def health(request: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})


async def settings(request: Request) -> JSONResponse:
    service: Service = request.app.state.service
    first = service.pool.models[0]
    sides = {"source": first.source, "target": first.target}
    return JSONResponse(
        {
            "apiKeys": service.needs_keys,
            "charLimit": service.limits.characters,
            "filesTranslation": True,
            "frontendTimeout": 500,
            "keyRequired": service.needs_keys,
            "language": {side: {"code": code, "name": name_of(code)} for side, code in sides.items()},
            "suggestions": bool(service.suggestions),
            "supportedFilesFormat": sorted(KINDS),
        }
    )


async def spec(request: Request) -> JSONResponse:
    return JSONResponse(specification())


ROUTES = [
    Route("/translate", translate, methods=["POST"]),
    Route("/detect", detect, methods=["POST"]),
    Route("/languages", languages),
    Route("/health", health),
    Route("/frontend/settings", settings),
    Route("/spec", spec),
]
