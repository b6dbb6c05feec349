"""The route /sentences, for the server's web page. It returns alternatives and alignments for each sentence."""

import json
from collections.abc import Iterator
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nmt_cli.serving import route_runner
from nmt_cli.serving.fields import Refusal
from nmt_cli.serving.model_routes import LanguageRoute
from nmt_cli.serving.pool import while_connected
from nmt_cli.serving.service import MAX_ALTERNATIVES, Service
from nmt_cli.serving.texts import TextFormat
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.segmenter import sentences_of

MAX_SENTENCES = 10_000


async def sentences(request: Request) -> Response:
    """Return {"sentences": [{"before", "source", "hypotheses": [{"text", "alignment"}, ...]}, ...], "after"}.

    Each pair in "alignment" has the offset of a token in "source" and the offset in "text" of a token that translates
    it. Offsets count characters from 0. "before" is the text between the previous sentence and this one. "after" is the
    text after the last sentence. If the server detected the source language, "detectedLanguage" holds its code and the
    confidence in percent.
    """
    service, fields = await Service.open(request)
    text = fields.text("q")
    service.count(request, [text])
    alternatives = fields.integer("alternatives", 0, MAX_ALTERNATIVES)
    source, confidence = await service.source_language([text], fields.text("source"), fields.text("target"))
    spans = await service.pool.workers.in_thread(sentences_of, text)
    if len(spans) > MAX_SENTENCES:
        raise Refusal(400, f"Invalid request: its {len(spans):,} sentences exceed the limit of {MAX_SENTENCES:,}")
    units = [text[start:stop] for start, stop in spans]
    if not service.needs_no_translation(source, fields.text("target")):
        route = service.route(request, source, fields.text("target"))
        options = SearchOptions(n_best=alternatives + 1, alignments=True)
        with service.pool.admit([text], options):
            await service.charge(request)
            translated = await while_connected(request, _translate(service, route, units, options))
    else:
        await service.charge(request)
        translated = [[Hypothesis(unit, [])] for unit in units]
    ends = [0, *(stop for _, stop in spans)]
    gaps = [text[end:start] for end, (start, _) in zip(ends, spans, strict=False)]
    items = await service.pool.workers.map_in_thread(_json, gaps, units, translated)
    rest: dict[str, object] = {"after": text[ends[-1] :]}
    if confidence is not None:
        rest["detectedLanguage"] = {"confidence": confidence, "language": source}
    return Response(f'{{"sentences":[{",".join(items)}],{json.dumps(rest)[1:]}', media_type="application/json")


class Hypothesis(NamedTuple):
    """A translation of a sentence. Each pair in `alignment` has an offset in the source and an offset in `text`."""

    text: str
    alignment: list[tuple[int, int]]


async def _translate(
    service: Service, route: LanguageRoute, units: list[str], options: SearchOptions
) -> list[list[Hypothesis]]:
    """Translate sentences. A sentence with placeholders or words to keep gets an empty alignment."""
    pool, text_format = service.pool, TextFormat(protect=service.protect, keep=service.keep)
    marked = list[str]()
    if text_format.marked:
        parsed = await pool.workers.map_in_thread(text_format.parse, units)
        marked = [unit for unit, one in zip(units, parsed, strict=True) if one.units != [unit]]
    marked_set = set(marked)
    results = await route_runner.translate(pool, route, [unit for unit in units if unit not in marked_set], options)
    aligned = iter(await pool.workers.map_in_thread(_hypotheses, results))
    texts: Iterator[list[str]] = iter(())
    if marked:
        parts = await service.units_in(text_format, marked)
        texts = iter(await service.translate_units(route, parts, marked, text_format, options))
    return [[Hypothesis(text, []) for text in next(texts)] if unit in marked_set else next(aligned) for unit in units]


def _hypotheses(ranks: route_runner.Ranks) -> list[Hypothesis]:
    hypotheses = list[Hypothesis]()
    for aligned in ranks:
        pairs = set[tuple[int, int]]()
        begin = 0
        for end, origin in aligned.links:
            token = aligned.text[begin:end]
            if token.strip():
                pairs.add((origin, begin + len(token) - len(token.lstrip())))
            begin = end
        hypotheses.append(Hypothesis(aligned.text, sorted(pairs)))
    return hypotheses


def _json(before: str, source: str, hypotheses: list[Hypothesis]) -> str:
    """Return one item of "sentences" as JSON. Encoding all items in one call would delay other requests."""
    items = [hypothesis._asdict() for hypothesis in hypotheses]
    return json.dumps({"before": before, "source": source, "hypotheses": items}, ensure_ascii=False)


ROUTES = [Route("/sentences", sentences, methods=["POST"])]
