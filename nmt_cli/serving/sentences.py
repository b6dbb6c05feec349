"""Our own route, for the page: a text sentence by sentence, with other translations and aligned words."""

import json
from functools import partial
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nmt_cli.serving.fields import Refusal
from nmt_cli.serving.pool import Model, Pool, while_connected
from nmt_cli.serving.service import MOST_ALTERNATIVES, Service
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.pending import Translation
from nmt_cli.translation.segmenter import sentences_of

MOST_SENTENCES = 10_000


async def sentences(request: Request) -> Response:
    """Answer {"sentences": [{"before", "source", "hypotheses": [{"text", "alignment": [[source place, target place],
    ...]}, ...]}, ...], "after"}.

    Places are characters of "source" and "text", counted from 0. A pair says where a piece of the translation begins,
    and where the words begin that it translates. "before" is the text between a sentence and the one before it, "after"
    what follows the last one: all of these and the sources, in order, are the text that was sent.
    """
    service: Service = request.app.state.service
    fields = await service.read(request)
    service.check_key(request, fields, "api_key")
    text = fields.text("q")
    service.count(request, [text])
    alternatives = fields.whole("alternatives", 0, MOST_ALTERNATIVES)
    source, confidence = await service.language([text], fields.text("source"), fields.text("target"))
    cut = await service.pool.workers.in_thread(sentences_of, text)
    units = [text[start:stop] for start, stop in cut[:MOST_SENTENCES]]
    if len(cut) > MOST_SENTENCES:
        raise Refusal(400, f"Invalid request: its {len(cut):,} sentences exceed the limit of {MOST_SENTENCES:,}")
    if not service.is_translated(source, fields.text("target")):
        model = service.pool.find(source, fields.text("target"))
        options = SearchOptions(n_best=alternatives + 1, alignments=True)
        with service.pool.room([text], options):
            found = await while_connected(request, _found(service.pool, model, units, options))
    else:
        found = [[Shown(unit, [])] for unit in units]
    ends = [0, *(stop for _, stop in cut)]
    befores = [text[end:start] for end, (start, _) in zip(ends, cut, strict=False)]
    parts = await service.pool.workers.mapped(_json, befores, units, found)
    rest: dict[str, object] = {"after": text[ends[-1] :]}
    if confidence is not None:
        rest["detectedLanguage"] = {"confidence": confidence, "language": source}
    return Response(f'{{"sentences":[{",".join(parts)}],{json.dumps(rest)[1:]}', media_type="application/json")


class Shown(NamedTuple):
    """A translation of a sentence, and pairs of places: in the source, in the translation."""

    text: str
    alignment: list[tuple[int, int]]


async def _found(pool: Pool, model: Model, units: list[str], options: SearchOptions) -> list[list[Shown]]:
    [results] = await pool.translate(model, [units], options)
    return await pool.workers.mapped(partial(_shown, model), units, results)


def _shown(model: Model, source: str, translation: Translation) -> list[Shown]:
    found = list[Shown]()
    for rank in range(len(translation.hypotheses)):
        shown = model.aligned(source, translation, rank)
        pairs, begin = set[tuple[int, int]](), 0
        for end, origin in shown.links:
            token = shown.text[begin:end]
            if token.strip():
                pairs.add((origin, begin + len(token) - len(token.lstrip())))
            begin = end
        found.append(Shown(shown.text, sorted(pairs)))
    return found


def _json(before: str, source: str, hypotheses: list[Shown]) -> str:
    """Return a sentence of the answer. One call for all of them would hold up other requests."""
    shown = [hypothesis._asdict() for hypothesis in hypotheses]
    return json.dumps({"before": before, "source": source, "hypotheses": shown}, ensure_ascii=False)


ROUTES = [Route("/sentences", sentences, methods=["POST"])]
