"""Language pairs: the models that translate them directly, and the routes through other languages."""

import contextlib
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nmt_cli.corpus.languages import base_of, is_same
from nmt_cli.documents.alignment import align
from nmt_cli.documents.placement import Aligned
from nmt_cli.serving.on_demand import OnDemand
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.pending import Pending, Translation
from nmt_cli.translation.translator import Translator

MAX_STEPS = 3  # maximum number of models on a route
PREFERRED = "en"  # routes through this language are preferred to other routes of the same length
_NOT_IN_HEADER = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True)
class ServedModel:
    """A translator for one language pair."""

    translator: Translator | OnDemand
    source: str  # language codes
    target: str
    prefix: str = ""  # added before every source text, to select one of the model's target languages

    def held(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Load the model if necessary, and keep it loaded within the block. Raise Refusal (500) if loading fails."""
        return self.translator.held() if isinstance(self.translator, OnDemand) else contextlib.nullcontext()

    @property
    def _loaded(self) -> Translator:
        return self.translator.loaded_translator if isinstance(self.translator, OnDemand) else self.translator

    def submit(self, position: int, unit: str, options: SearchOptions, done: Callable[[Pending], None]) -> Pending:
        """Start translating a unit. Units with a higher `position` in the request wait longer in the queue."""
        return self._loaded.submit(self.prefix + unit, options, done=done, position=position)

    def aligned(self, unit: str, translation: Translation, rank: int) -> Aligned:
        """Return the hypothesis of this rank (0 is the best), aligned with the unit.

        If there are too few hypotheses, return the last one.
        """
        result = align(self._loaded, translation, self.prefix + unit, rank)
        skip = len(self.prefix)
        return Aligned(result.text, [(end, max(start - skip, 0)) for end, start in result.links])


@dataclass(frozen=True)
class LanguageRoute:
    """The models that translate one language into another, in the order in which they are applied."""

    steps: tuple[ServedModel, ...]

    @property
    def source(self) -> str:
        return self.steps[0].source

    @property
    def target(self) -> str:
        return self.steps[-1].target

    @property
    def name(self) -> str:
        """The route's languages for a response header, such as de-en-fr.

        In each code, "_" replaces characters other than letters, digits and "_". For example, pt-BR becomes pt_BR.
        """
        codes = [self.source, *(step.target for step in self.steps)]
        return "-".join(_NOT_IN_HEADER.sub("_", code[:40]) for code in codes)


def untrained(models: Sequence[ServedModel]) -> list[ServedModel]:
    """Combine the source languages of each translator with its target languages.

    Return a ServedModel for each combination that `models` lacks, except pairs of the same language.
    """
    pairs = {(model.source, model.target) for model in models}
    found = list[ServedModel]()
    for one, other in itertools.product(models, models):
        pair = one.source, other.target
        if one.translator is other.translator and not is_same(*pair) and pair not in pairs:
            pairs.add(pair)
            found.append(ServedModel(one.translator, *pair, other.prefix))
    return found


def routes_of(models: Sequence[ServedModel], *, pivot: bool) -> dict[tuple[str, str], LanguageRoute]:
    """Return the route for each language pair that can be translated. Direct routes are listed first.

    If `pivot` is true, a pair without a model gets the shortest route through other languages.
    """
    routes = {(model.source, model.target): LanguageRoute((model,)) for model in models}
    for source in dict.fromkeys(model.source for model in models):
        frontier = [route for (first, _), route in routes.items() if first == source]  # the routes to extend
        for _ in range(MAX_STEPS - 1 if pivot else 0):
            frontier.sort(key=lambda route: base_of(route.target) != PREFERRED)
            longer = list[LanguageRoute]()
            for route in frontier:
                for model in models:
                    pair = source, model.target
                    if is_same(route.target, model.source) and not is_same(*pair) and pair not in routes:
                        routes[pair] = LanguageRoute((*route.steps, model))
                        longer.append(routes[pair])
            frontier = longer
    return routes
