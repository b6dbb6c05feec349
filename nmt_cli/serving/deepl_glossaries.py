"""DeepL's glossary routes. In version 2, a glossary has one dictionary; in version 3, up to one per language pair."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from nmt_cli.corpus.languages import base_of
from nmt_cli.corpus.terms import Terms
from nmt_cli.serving import glossaries
from nmt_cli.serving.fields import Fields, Refusal
from nmt_cli.serving.glossaries import Dictionary, Glossary
from nmt_cli.serving.service import Service

MAX_DICTIONARIES = 50  # maximum number of dictionaries in a request


async def _open(request: Request) -> tuple[Service, Fields]:
    service: Service = request.app.state.service
    fields = await service.read(request)
    service.check_key(request, fields, "auth_key", missing=403)
    return service, fields


def _name(fields: Fields) -> str:
    name = fields.text("name").strip()
    if not name or len(name) > glossaries.MAX_NAME:
        raise Refusal(400, f"Invalid request: name must have 1 to {glossaries.MAX_NAME:,} characters")
    return name


async def _terms(service: Service, dictionaries: list[Fields]) -> dict[tuple[str, str], Terms]:
    """Return the terms of a request's dictionaries by language pair.

    Raise Refusal (400) if entries are malformed or too long in total, or if a pair is repeated or has no route.
    """
    size = sum(len(fields.text("entries")) for fields in dictionaries)
    if size > (limit := service.limits.characters):
        raise Refusal(400, f"Invalid request: entries ({size:,}) exceeds text limit ({limit:,})")
    found = dict[tuple[str, str], Terms]()
    for fields in dictionaries:
        pair = _pair(service, fields)
        kind = fields.choice("entries_format", glossaries.FORMATS)
        if pair in found:
            raise Refusal(400, f"Invalid request: it has two dictionaries for {pair[0]} to {pair[1]}")
        found[pair] = await service.pool.workers.in_thread(glossaries.parse, fields.text("entries"), kind)
    return found


def _pair(service: Service, fields: Fields) -> tuple[str, str]:
    """Return the source and target codes of a dictionary, without region or script.

    Raise Refusal (400) if the server does not translate between these languages.
    """
    route = service.pool.find(fields.text("source_lang"), fields.text("target_lang"))
    return base_of(route.source), base_of(route.target)


def _summary(glossary: Glossary) -> dict[str, object]:
    """Return the JSON for a glossary with one dictionary, for version 2 of the API."""
    [dictionary] = glossary.dictionaries
    own = {"glossary_id": glossary.key, "name": glossary.name, "ready": True, "creation_time": glossary.created}
    return own | _dictionary(dictionary)


def _dictionary(dictionary: Dictionary) -> dict[str, object]:
    return {
        "source_lang": dictionary.source,
        "target_lang": dictionary.target,
        "entry_count": dictionary.term_count,
    }


def _with_dictionaries(glossary: Glossary) -> dict[str, object]:
    """Return the JSON for a glossary in version 3 of the API."""
    own = {"glossary_id": glossary.key, "name": glossary.name, "creation_time": glossary.created}
    return own | {"dictionaries": [_dictionary(each) for each in glossary.dictionaries]}


async def _single(service: Service, key: str) -> Glossary:
    """Return a glossary for version 2 of the API. Raise Refusal (404) unless it has exactly one dictionary."""
    glossary = await service.stored(service.glossaries.get, key)
    if len(glossary.dictionaries) != 1:
        raise Refusal(404, "This glossary does not have exactly one dictionary: use version 3 of the API")
    return glossary


async def create(request: Request) -> JSONResponse:
    service, fields = await _open(request)
    name = _name(fields)
    terms = await _terms(service, [fields])
    glossary = await service.stored(service.glossaries.add, name, terms)
    return JSONResponse(_summary(glossary), 201)


async def list_all(request: Request) -> JSONResponse:
    service, _ = await _open(request)
    found = await service.stored(service.glossaries.all)
    return JSONResponse({"glossaries": [_summary(each) for each in found if len(each.dictionaries) == 1]})


async def show(request: Request) -> JSONResponse:
    service, _ = await _open(request)
    return JSONResponse(_summary(await _single(service, request.path_params["key"])))


async def delete(request: Request) -> Response:
    service, _ = await _open(request)
    await service.stored(service.glossaries.remove, request.path_params["key"])
    return Response(status_code=204)


async def entries(request: Request) -> Response:
    service, _ = await _open(request)
    glossary = await _single(service, request.path_params["key"])
    [only] = glossary.dictionaries
    tsv = await service.stored(service.glossaries.entries, glossary.key, only.source, only.target)
    return Response(tsv, media_type="text/tab-separated-values")


async def create_v3(request: Request) -> JSONResponse:
    service, fields = await _open(request)
    name = _name(fields)
    terms = await _terms(service, fields.objects("dictionaries", MAX_DICTIONARIES))
    glossary = await service.stored(service.glossaries.add, name, terms)
    return JSONResponse(_with_dictionaries(glossary), 201)


async def list_v3(request: Request) -> JSONResponse:
    service, _ = await _open(request)
    found = await service.stored(service.glossaries.all)
    return JSONResponse({"glossaries": [_with_dictionaries(each) for each in found]})


async def show_v3(request: Request) -> JSONResponse:
    service, _ = await _open(request)
    glossary = await service.stored(service.glossaries.get, request.path_params["key"])
    return JSONResponse(_with_dictionaries(glossary))


async def update(request: Request) -> JSONResponse:
    """Rename a glossary, add terms to its dictionaries, or both. Create missing dictionaries.

    For a term that already exists, the new translations replace the old ones.
    """
    service, fields = await _open(request)
    name = _name(fields) if fields.has("name") else None
    given = fields.objects("dictionaries", MAX_DICTIONARIES) if fields.has("dictionaries") else []
    terms = await _terms(service, given)
    key = request.path_params["key"]
    await service.stored(service.glossaries.get, key)  # raises Refusal (404) before anything changes
    for pair, own in terms.items():
        await service.glossaries.extend(key, pair, own, service.pool.workers)
    if name is not None:
        await service.stored(service.glossaries.rename, key, name)
    glossary = await service.stored(service.glossaries.get, key)
    return JSONResponse(_with_dictionaries(glossary))


async def replace_dictionary(request: Request) -> JSONResponse:
    service, fields = await _open(request)
    [(pair, terms)] = (await _terms(service, [fields])).items()
    glossary = await service.stored(service.glossaries.replace, request.path_params["key"], pair, terms)
    return JSONResponse(_dictionary(glossary.dictionary(*pair)))


async def delete_dictionary(request: Request) -> Response:
    service, fields = await _open(request)
    pair = fields.text("source_lang"), fields.text("target_lang")
    await service.stored(service.glossaries.remove_dictionary, request.path_params["key"], *pair)
    return Response(status_code=204)


async def entries_v3(request: Request) -> JSONResponse:
    service, fields = await _open(request)
    pair = base_of(fields.text("source_lang")), base_of(fields.text("target_lang"))
    tsv = await service.stored(service.glossaries.entries, request.path_params["key"], *pair)
    dictionary = {"source_lang": pair[0], "target_lang": pair[1], "entries": tsv, "entries_format": "tsv"}
    return JSONResponse({"dictionaries": [dictionary]})


ROUTES = [
    Route("/v2/glossaries", create, methods=["POST"]),
    Route("/v2/glossaries", list_all),
    Route("/v2/glossaries/{key}", delete, methods=["DELETE"]),
    Route("/v2/glossaries/{key}", show),
    Route("/v2/glossaries/{key}/entries", entries),
    Route("/v3/glossaries", create_v3, methods=["POST"]),
    Route("/v3/glossaries", list_v3),
    Route("/v3/glossaries/{key}", delete, methods=["DELETE"]),
    Route("/v3/glossaries/{key}", update, methods=["PATCH"]),
    Route("/v3/glossaries/{key}", show_v3),
    Route("/v3/glossaries/{key}/entries", entries_v3),
    Route("/v3/glossaries/{key}/dictionaries", replace_dictionary, methods=["PUT"]),
    Route("/v3/glossaries/{key}/dictionaries", delete_dictionary, methods=["DELETE"]),
]
