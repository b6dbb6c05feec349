"""The routes of DeepL's API. Error responses are {"message": text}.

The fields formality, context and model_type are accepted and ignored. The routes for glossaries and documents are in
`deepl_glossaries.py` and `deepl_documents.py`.
"""

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from nmt_cli.corpus.languages import base_of, is_traditional, name_of
from nmt_cli.corpus.terms import Terms
from nmt_cli.documents.document import Outline
from nmt_cli.serving.fields import Fields, Refusal
from nmt_cli.serving.service import Service
from nmt_cli.serving.texts import TextFormat
from nmt_cli.translation.options import SearchOptions

PREFIXES = "/v2/", "/v3/"
SPLIT_SENTENCES = "1", "0", "nonewlines"
# DeepL's clients expect a country for these target languages.
COUNTRIES = {
    "EN": {"EN-GB": "English (British)", "EN-US": "English (American)"},
    "PT": {"PT-BR": "Portuguese (Brazilian)", "PT-PT": "Portuguese (European)"},
}
UNLIMITED = 1_000_000_000_000  # characters; the value that DeepL returns if there is no limit


async def _open(request: Request) -> tuple[Service, Fields]:
    service: Service = request.app.state.service
    fields = await service.read(request)
    service.check_key(request, fields, "auth_key", missing=403)
    return service, fields


async def translate(request: Request) -> JSONResponse:
    service, fields = await _open(request)
    texts, _ = service.texts_of(request, fields, "text")
    target = fields.text("target_lang")
    source = fields.text("source_lang", default="") or "auto"
    terms = await _terms(service, fields, source, target)
    limit = service.limits.texts
    split_lines = fields.choice("split_sentences", SPLIT_SENTENCES) == "1"
    outline = Outline(
        splitting=_names(fields, "splitting_tags", limit),
        joining=_names(fields, "non_splitting_tags", limit),
        detect=not fields.has("outline_detection") or fields.flag("outline_detection"),
        lines=split_lines,
    )
    text_format = TextFormat(
        kind=fields.choice("tag_handling", ("", "html", "xml")) or "text",
        protect=service.protect,
        ignored=_names(fields, "ignore_tags", limit),
        outline=outline,
        joined=not split_lines,
        spaced=fields.flag("preserve_formatting"),
    )
    show_billed = fields.flag("show_billed_characters")
    answer = await service.translate(request, texts, (source, target), text_format, SearchOptions(terms=terms))
    translations = list[dict[str, object]]()
    for text, [translation, *_] in zip(texts, answer.texts, strict=True):
        item: dict[str, object] = {"detected_source_language": base_of(answer.source).upper(), "text": translation}
        if show_billed:
            item["billed_characters"] = len(text)
        translations.append(item)
    return JSONResponse({"translations": translations})


async def _terms(service: Service, fields: Fields, source: str, target: str) -> Terms | None:
    """Return the terms for these languages from the request's glossary, or None if it names no glossary.

    Raise Refusal (400) for glossary_ids, and for glossary_id without source_lang.
    """
    if fields.has("glossary_ids"):
        raise Refusal(400, "Invalid request: glossary_ids is not supported. Pass one glossary as glossary_id")
    glossary_id = fields.text("glossary_id", default="")
    if not glossary_id:
        return None
    if source == "auto":
        raise Refusal(400, "Invalid request: glossary_id needs source_lang")
    entries = await service.stored(service.glossaries.entries, glossary_id, source, target)
    return await service.glossaries.terms(entries, service.pool.workers)


def _names(fields: Fields, name: str, limit: int) -> tuple[str, ...]:
    """Return the names in a field: up to `limit` texts with comma-separated names. A missing field has none."""
    if not fields.has(name):
        return ()
    texts, _ = fields.texts(name, limit)
    return tuple(each.strip() for text in texts for each in text.split(",") if each.strip())


async def languages(request: Request) -> JSONResponse:
    service, fields = await _open(request)
    target = fields.choice("type", ("source", "target")) == "target"
    codes = [model.target for model in service.pool.models] if target else service.pool.sources
    listed = dict[str, str]()
    for code in codes:
        base = base_of(code).upper()
        if target and base == "ZH" and is_traditional(code):
            base = "ZH-HANT"
        listed |= COUNTRIES[base] if target and base in COUNTRIES else {base: name_of(base.lower())}
    details = {"supports_formality": False} if target else {}
    return JSONResponse([{"language": code, "name": name, **details} for code, name in listed.items()])


async def usage(request: Request) -> JSONResponse:
    """Return the characters that the API key has used today, and its daily limit. UNLIMITED means no limit.

    Without a key from the database, return the server's characters since its start, and UNLIMITED.
    """
    service, _ = await _open(request)
    key = service.key_of(request)
    count = await service.stored(service.api_keys.characters_today, key) if key else service.characters
    limit = key.per_day if key and key.per_day is not None else UNLIMITED
    return JSONResponse({"character_count": count, "character_limit": limit})


async def glossary_pairs(request: Request) -> JSONResponse:
    service, _ = await _open(request)
    pairs = dict.fromkeys((base_of(source), base_of(target)) for source, target in service.pool.routes)
    listed = [{"source_lang": source, "target_lang": target} for source, target in pairs]
    return JSONResponse({"supported_languages": listed})


ROUTES = [
    Route("/v2/translate", translate, methods=["POST"]),
    Route("/v2/languages", languages, methods=["GET", "POST"]),
    Route("/v2/glossary-language-pairs", glossary_pairs),
    Route("/v2/usage", usage, methods=["GET", "POST"]),
]
