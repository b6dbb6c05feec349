"""Our own route, for the page: a text sentence by sentence, with other translations and aligned words."""

from itertools import repeat

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from nmt_cli.corpus.languages import base_of
from nmt_cli.serving.pool import Model
from nmt_cli.serving.service import MOST_ALTERNATIVES, Service
from nmt_cli.serving.texts import align
from nmt_cli.translation.pending import Options, Translation
from nmt_cli.translation.segments import sentences_of


async def sentences(request: Request) -> JSONResponse:
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
    cut = sentences_of(text)
    units = [text[start:stop] for start, stop in cut]
    hypotheses: list[list[dict[str, object]]] = [[{"text": unit, "alignment": []}] for unit in units]
    if confidence is None or base_of(source) != base_of(fields.text("target")):  # else it is a translation already
        model = service.pool.find(source, fields.text("target"))
        options = Options(n_best=alternatives + 1, alignments=True)
        [results] = await service.pool.translate(request, model, [units], options)
        hypotheses = await run_in_threadpool(lambda: list(map(_hypotheses, repeat(model), units, results)))
    ends = [0, *(stop for _, stop in cut)]
    listed = [
        {"before": text[end:start], "source": text[start:stop], "hypotheses": found}
        for end, (start, stop), found in zip(ends, cut, hypotheses, strict=False)
    ]
    content: dict[str, object] = {"sentences": listed, "after": text[ends[-1] :]}
    if confidence is not None:
        content["detectedLanguage"] = {"confidence": confidence, "language": source}
    return JSONResponse(content)


def _hypotheses(model: Model, source: str, translation: Translation) -> list[dict[str, object]]:
    found = list[dict[str, object]]()
    for rank in range(len(translation.hypotheses)):
        shown = align(model, source, translation, rank)
        pairs, begin = set[tuple[int, int]](), 0
        for end, origin in shown.links:
            token = shown.text[begin:end]
            if token.strip():
                pairs.add((origin, begin + len(token) - len(token.lstrip())))
            begin = end
        found.append({"text": shown.text, "alignment": sorted(pairs)})
    return found


ROUTES = [Route("/sentences", sentences, methods=["POST"])]
