"""Routes of three models, models that fail to load, and the models that a pool chooses among."""

import asyncio
import contextlib
import errno
import math
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("starlette")
from nmt_cli.corpus.terms import Terms
from nmt_cli.documents.placement import Aligned
from nmt_cli.serving import model_routes, on_demand, route_runner
from nmt_cli.serving.fields import Refusal
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.model_routes import LanguageRoute, ServedModel, routes_of
from nmt_cli.serving.on_demand import Loader
from nmt_cli.serving.pool import ModelPool
from nmt_cli.serving.route_runner import _join, _terms_of
from nmt_cli.serving.work import Workers
from nmt_cli.system.errors import DataError
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.stored_models import Direction, StoredModel


class Step:
    """A model that puts the words of a text in reverse order. Its second-best translation ends with a sign."""

    def __init__(self, source: str, target: str, prefix: str = "") -> None:
        self.source, self.target, self.prefix = source, target, prefix
        self.held_now = 0
        self.asked = list[tuple[str, SearchOptions]]()

    @contextlib.asynccontextmanager
    async def held(self) -> Any:
        self.held_now += 1
        yield
        self.held_now -= 1

    def aligned(self, unit: str, _translation: object, rank: int) -> Aligned:
        assert self.held_now
        text, links, start = "", list[tuple[int, int]](), len(unit)
        for word in reversed(unit.split(" ")):
            start -= len(word)
            text += f"{' ' if text else ''}{word}"
            links.append((len(text), start))
            start -= 1
        return Aligned(text + "!" * rank, links)


def words_of(text: str, links: list[tuple[int, int]], unit: str) -> list[tuple[str, str]]:
    """Return the pairs of words that links connect."""
    starts = [0, *(end + 1 for end, _ in links)]
    return [(text[start:end], unit[at:].split(" ")[0]) for start, (end, at) in zip(starts, links, strict=False)]


def translated(route: list[Step], units: list[str], options: SearchOptions) -> list[list[Aligned]]:
    async def translate(step: Step, texts: list[str], chosen: SearchOptions) -> list[Any]:
        step.asked += [(text, chosen) for text in texts]
        return [
            SimpleNamespace(hypotheses=[SimpleNamespace(text=f"{text} {step.target}") for _ in "ab"]) for text in texts
        ]

    async def run() -> list[list[Aligned]]:
        pool: Any = SimpleNamespace(workers=Workers(), translate=translate)
        steps: Any = tuple(route)
        return await route_runner.translate(pool, LanguageRoute(steps), units, options)

    return asyncio.run(run())


def test_links_lead_back_over_three_models() -> None:
    route = [Step("de", "en"), Step("en", "fr"), Step("fr", "it", ">>it<< ")]
    units = ["aa bbb ccc. Dd eeee f", "gg hh iii"]
    options = SearchOptions(n_best=2, alignments=True, terms=Terms.parse(["bbb\tBB", "hh\tHH"]))
    found = translated(route, units, options)
    assert [[each.text for each in ranks] for ranks in found] == [
        ["ccc. bbb aa f eeee Dd", "ccc. bbb aa! f eeee Dd!"],
        ["iii hh gg", "iii hh gg!"],
    ]
    for ranks, unit in zip(found, units, strict=True):
        assert words_of(ranks[0].text, ranks[0].links, unit) == [(word, word) for word in ranks[0].text.split(" ")]
    for step in route[:2]:
        assert {(each.n_best, each.terms) for _, each in step.asked} == {(1, None)}
    for text, each in route[2].asked:
        assert each.n_best == 2
        assert each.terms
        terms = [term.source for term in each.terms.find(f">>it<< {text}")]
        assert terms == [word for word in ("bbb", "hh") if word in text]
    assert all(step.held_now == 0 for step in route)


def test_one_model_translates_whole_units() -> None:
    step = Step("de", "en")
    found = translated([step], ["a b. c d", "e"], SearchOptions(n_best=1))
    assert [text for text, _ in step.asked] == ["a b. c d", "e"]
    assert [[(each.text, each.links) for each in ranks] for ranks in found] == [
        [("a b. c d en", [])] * 2,
        [("e en", [])] * 2,
    ]


def test_sentences_with_the_same_translation_share_their_terms() -> None:
    terms = Terms.parse(["Hund\tdog", "Katze\tcat"])
    sentences = ["der Hund", "Hund Katze", "die Katze", "das Haus"]
    found = _terms_of(terms, sentences, ["it", "it", "it ", "house"], ServedModel(Mock(), "de", "en", ">>en<< "))
    assert [term.source for term in found.find(">>en<< it")] == ["Hund", "Katze"]
    assert found.find(">>en<< house") == found.find("it") == []


def test_translations_of_sentences_are_joined_without_empty_ones() -> None:
    spans = [(0, 1), (3, 4), (6, 7)]

    def joined(*sentences: str) -> str:
        [best] = _join(spans, [[Aligned(each, [])] for each in sentences])
        return best.text

    assert joined("a", " ", "b") == "a b"
    assert joined("", "a", "") == "a"
    assert (joined("犬", "a", "猫"), joined("犬", "", "猫")) == ("犬 a 猫", "犬猫")
    assert _join([], []) == [Aligned("", [])]


def test_the_token_of_a_language_is_not_part_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[Any]()

    def align(_translator: object, translation: object, unit: str, rank: int) -> Aligned:
        given.append((translation, unit, rank))
        return Aligned("x y z", [(1, 3), (3, 8), (5, 12)])

    monkeypatch.setattr(model_routes, "align", align)
    translator = Mock()
    translation: Any = object()
    model = ServedModel(translator, "en", "de", ">>de<< ")
    assert model.aligned("der Hund", translation, 2) == Aligned("x y z", [(1, 0), (3, 1), (5, 5)])
    assert given == [(translation, ">>de<< der Hund", 2)]
    options, done = SearchOptions(), Mock()
    model.submit(3, "der Hund", options, done)
    translator.submit.assert_called_once_with(">>de<< der Hund", options, done=done, position=3)


def test_the_name_of_a_route_fits_into_a_header() -> None:
    route = LanguageRoute((ServedModel(Mock(), "d\u00e9", "x\r\n" + "y" * 99), ServedModel(Mock(), "x", "zh-Hans")))
    assert route.name == f"d_-x__{'y' * 37}-zh_Hans"
    assert (route.source, route.target) == ("d\u00e9", "zh-Hans")


def pool_of(*pairs: str, **options: Any) -> ModelPool:
    models = [ServedModel(Mock(), *pair.split(">")) for pair in pairs]
    return ModelPool(models, Metrics(), **{"queue": 2, **options})


def test_a_direct_model_is_chosen_before_a_route_to_the_same_language() -> None:
    pool = pool_of("de>en", "en>pt", "de>pt-BR", "en-GB>fr")
    assert pool.targets("de") == ["en", "pt-BR", "pt", "fr"]
    assert [pool.find("de", target).name for target in ("pt", "pt-PT", "PT_br", "EN-gb", "fr")] == [
        "de-pt_BR", "de-pt_BR", "de-pt_BR", "de-en", "de-en-fr"
    ]  # fmt: skip
    assert pool.find("de-AT", "en").name == "de-en"
    for pair, text in (
        (("xx", "en"), "xx is not supported"),
        (("de", "y" * 50), f"{'y' * 40} is not supported"),
        (("en", "de"), "de is not available as a target language from en"),
        (("fr", "de"), "de is not available as a target language from fr"),
    ):
        with pytest.raises(Refusal, match=rf"^{text}$") as caught:
            pool.find(*pair)
        assert caught.value.status == 400
    names = [route.name for route in routes_of(pool.models, pivot=False).values()]
    assert names == ["de-en", "en-pt", "de-pt_BR", "en_GB-fr"]


def test_admitted_texts_are_counted_until_their_request_ends() -> None:
    """A single request may exceed the queue's size. Each alternative costs as much as the text."""
    pool = pool_of("de>en", max_cost=100)
    plain = SearchOptions(n_best=1)
    with pool.admit(["a"] * 5, plain):
        assert pool.texts == 5
        with pytest.raises(Refusal, match="Too many texts are waiting") as caught, pool.admit(["a"], plain):
            pass
        assert (caught.value.status, pool.texts) == (429, 5)
    with pool.admit(["a"], plain), pool.admit(["a"], plain):
        assert pool.texts == 2
    for text, n_best, fits in (("x" * 25, 4, True), ("x" * 26, 4, False), ("x" * 101, 1, False)):
        with (
            contextlib.nullcontext()
            if fits
            else pytest.raises(Refusal, match="too many lines, sentences and alternatives")
        ):
            with pool.admit([text[:9], text[9:]], SearchOptions(n_best=n_best)):
                assert fits
        assert (pool.texts, pool.costs.used) == (0, 0)


def stored(number: int = 0) -> StoredModel:
    return StoredModel(Path(f"m{number}"), "nmt", (Direction("en", "de"), Direction("en", "fr")), 0, 0, Path)


def test_at_most_two_models_are_loading_at_once() -> None:
    """A third model waits until one of them is loaded."""
    now, most, lock = 0, 0, threading.Lock()

    def load(_: StoredModel) -> Any:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1
        return Mock()

    loader = Loader(load, idle=math.inf)
    models = [loader.add(stored(i)) for i in range(5)]

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            await asyncio.gather(*(stack.enter_async_context(model.held()) for model in models))
            assert all(model.translator for model in models)

    asyncio.run(run())
    assert most == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DataError("it is damaged"), "it is damaged"),
        (OSError(errno.ENOENT, "No such file or directory", "m0/x"), "m0/x"),
        (ValueError("no number"), "no number"),
        (RuntimeError("no engine"), "no engine"),
        (MemoryError(), "there is too little memory"),
    ],
)
def test_a_model_that_cannot_be_loaded_has_its_reason_in_the_log(
    capsys: pytest.CaptureFixture[str], error: Exception, reason: str
) -> None:
    load = Mock(side_effect=error)
    model = Loader(load, idle=0).add(stored())

    async def run() -> None:
        for _ in range(2):
            with pytest.raises(Refusal, match="The model for en to de cannot be loaded") as caught:
                async with model.held():
                    pass
            assert caught.value.status == 500

    asyncio.run(run())
    log = capsys.readouterr().err
    assert "m0 cannot be loaded: " in log
    assert reason in log
    assert (load.call_count, model.users, log.count("\n")) == (1, 0, 1)


def test_models_are_unloaded_until_the_memory_suffices(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_demand, "_free", lambda: None)
    loaded: list[Any] = []

    def load(model: StoredModel) -> Any:
        translator = Mock()
        loaded.append(model.path)
        translator.close.side_effect = lambda: loaded.remove(model.path)
        return translator

    loader = Loader(load, idle=math.inf, memory=2, resident=lambda: 3 if len(loaded) > 1 else len(loaded))
    models = [loader.add(stored(i)) for i in range(4)]

    async def run() -> None:
        async with models[0].held(), models[1].held(), models[2].held():
            assert len(loaded) == 3, "models in use stay"
        async with models[3].held():
            async with asyncio.timeout(30):
                while len(loaded) > 1:
                    await asyncio.sleep(0.01)
            assert loaded == [Path("m3")]

    asyncio.run(run())
    log = capsys.readouterr().err
    assert [f"loaded m{i} in 0." in log for i in range(4)] == [True] * 4
    assert [f"unloaded m{i}\n" in log for i in range(4)] == [True, True, True, False]
