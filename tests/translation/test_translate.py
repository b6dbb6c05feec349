"""Translator and the translate command in one process: pairing of lines, splitting, formats, what else it can do."""

import gzip
import json
import math
import os
import random
import re
import shutil
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_model import content, make_model, memory_file, train_tokenizer

from nmt_cli import Terms, Translator
from nmt_cli.corpus.readers import MAX_LINE_BYTES
from nmt_cli.corpus.tokenizer import EOS, files_of, target_file
from nmt_cli.system import console
from nmt_cli.system.console import Progress
from nmt_cli.system.errors import DataError, MissingError, OutputError, StorageError, UsageError
from nmt_cli.transformer.attention_scores import attention_scores
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.weights import load_model, read_tensors, save_model, save_tensors
from nmt_cli.translation import assembler, backends
from nmt_cli.translation import lines as lines_module
from nmt_cli.translation import translator as module
from nmt_cli.translation.assembler import join
from nmt_cli.translation.lines import count_lines, read_lines
from nmt_cli.translation.options import Sampling, SearchOptions
from nmt_cli.translation.queue import Backend, Search, WorkerQueue
from nmt_cli.translation.search import score_targets
from nmt_cli.translation.segmenter import halves, looping, sentences_of, split_line
from nmt_cli.translation.segments import Hypothesis, Segment
from nmt_cli.translation.translate import TranslateOptions, choose_models, translate, translate_lines
from nmt_cli.translation.writer import alignment, report, write_line

FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def translator(model: Path) -> Iterator[Translator]:
    with Translator(model, precision="fp32", workers=1) as one:
        yield one


def translator_by(model: Path, search: Search) -> Translator:
    """Return a Translator that searches otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "choose", lambda *_: Backend([search], "a test's"))
        return Translator(model)


def one_by_one(find: Callable[[Segment], list[Hypothesis]]) -> Search:
    """Return a search that finds these hypotheses for each segment."""

    def search(queue: WorkerQueue) -> None:
        while taken := queue.take(0, 0, 1):
            taken[0].hypotheses = find(taken[0])
            queue.finish(taken)

    return search


def one_at_a_time(found: Callable[[Segment], list[int]]) -> Search:
    """Return a search that finds these ids for each segment, at a log-probability of -1 for each token."""

    def find(segment: Segment) -> list[Hypothesis]:
        steps = [-1.0] * (len(ids := found(segment)) + 1)
        return [Hypothesis(ids, sum(steps), -1.0, steps)]

    return one_by_one(find)


@pytest.fixture
def echo(model: Path) -> Iterator[Translator]:
    """A Translator whose search says the source again, at a log-probability of -1 for each token."""
    with translator_by(model, one_at_a_time(lambda segment: [*segment.prefix, *segment.ids[:-1]])) as one:
        yield one


def parts_of(translation: Any) -> list[tuple[list[int], list[int]]]:
    """Return source and target of a translation's segments, both closed by EOS."""
    return [(segment.ids, [*segment.hypotheses[0].ids, EOS]) for segment in translation.segments]


def run(translator: Translator, data: bytes, **options: Any) -> bytes:
    """Return what the command writes for these bytes."""
    source, target = memory_file(data), memory_file()
    translator.counts.clear()
    own = {name: options.pop(name) for name in ("prefix", "format", "strict") if name in options}
    with Progress("translating", None, "lines") as progress:
        translate_lines(translator, TranslateOptions(search=SearchOptions(**options), **own), source, target, progress)
    os.close(source)
    return content(target)


def records(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.decode().split("\n")[:-1]]


# ---- pairing of lines

HOSTILE = [
    b"", b" ", b"\r", b"a\r\nb\r", b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\xaf", b"\xe2\x80\xa8", b"\xe2\x80\xa9x",
    b"\x0b\x0c\x1c\x1d\x1e\x85", b"\xc2\x85", b"\xef\xbb\xbfBOM", b"</s>", b"<s> <pad> <unk> <0x0A>", b"x" * 900,
    "\u202e\u2066abc".encode(), ("a" + "\u0301" * 500).encode(), "\u2581\u2047".encode(), b"\x1b[2J\x1b]0;title\x07",
    "\U000e0041\ue000\ufdd0".encode(), b"\x00", b"der Hund " * 60, *(random.Random(1).randbytes(40) for _ in range(40)),
]  # fmt: skip


@pytest.mark.parametrize("final", [b"", b"\n"])
def test_one_line_out_for_every_line_in(translator: Translator, final: bytes) -> None:
    """Whatever the bytes, as many line feeds come out as lines went in, and nothing else breaks a line."""
    data = b"\n".join(HOSTILE) + b" rot" + final
    out = run(translator, data).decode()
    assert out.count("\n") == data.count(b"\n") + (not final)
    assert out.endswith("\n")
    assert not FORBIDDEN.search(out.replace("\n", ""))


def test_a_line_is_translated_alike_alone_in_company_and_by_many_threads(translator: Translator, model: Path) -> None:
    lines = [b"der Hund", b"", b"die Katze sieht " * 40, b"\xff rot", b"ein Haus, das blau ist", b" ", b"\r"]
    alone = b"".join(run(translator, line + b"\n") for line in lines)
    assert run(translator, b"\n".join(lines)) == alone
    data = b"\n".join([*lines, *(b"der Hund %d sieht die Katze %d\n" % (i, i * 7) for i in range(150))])
    one = run(translator, data)
    with Translator(model, precision="fp32", workers=3) as three:
        assert run(three, data) == one
        assert run(three, data, beam=1) == run(translator, data, beam=1)
        assert [t.text for t in three.translate(["der Hund", " "])] == one.decode().split("\n")[:2]


def test_blank_lines_keep_their_places_and_ask_no_model(model: Path) -> None:
    def fail(_: Segment) -> list[int]:
        raise AssertionError

    with translator_by(model, one_at_a_time(fail)) as nothing:
        assert run(nothing, b"") == b""
        assert run(nothing, b"\n \n\t\r\n\xe2\x80\xa8\n") == b"\n\n\n\n"
        with pytest.raises(AssertionError):
            run(nothing, b"rot\n")


def test_bytes_that_are_no_text_are_told_or_refused(translator: Translator, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(translator, b"rot\n\xff\xfe\xfa\nblau\n\xc0\n").count(b"\n") == 4
    assert "2 lines are not UTF-8 (first: line 2)" in capsys.readouterr().err
    with pytest.raises(DataError, match="line 2 is not UTF-8"):
        run(translator, b"rot\n\xff\n", strict=True)


# ---- Translator


@pytest.mark.parametrize("first", ["der Hund", "der Hund geht. die Katze ist rot. das Haus steht."])
def test_lines_are_not_read_far_ahead(model: Path, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    """Nor where the first line has several segments: those after it do not keep it waiting, though there are always
    some to search."""
    monkeypatch.setattr(lines_module, "CHUNK_CHARACTERS", 100)
    monkeypatch.setattr(module, "READ_AHEAD", 40)
    read, enough = list[int](), threading.Event()

    def endless() -> Iterator[str]:
        for i in range(5_000):
            read.append(i)
            yield f"rot {i}" if i else first
        enough.set()

    def echoed_slowly(segment: Segment) -> list[int]:
        while slow.queue.waiting < 20 and not enough.wait(0.001):
            pass
        return segment.ids[:-1]

    slow = translator_by(model, one_at_a_time(echoed_slowly))
    monkeypatch.setattr(slow.segmenter, "seen_tokens", 8)
    results = slow.translate(endless())
    assert [next(results).text for _ in range(3)] == [first, "rot 1", "rot 2"]
    assert len(read) <= 300
    enough.set()
    results.close()
    slow.close()
    assert slow.counts["split"] == (first != "der Hund")


def test_lines_that_have_arrived_are_translated_while_others_are_awaited(echo: Translator) -> None:
    """The reader may wait for translations itself, and the thread that translates sleeps meanwhile."""
    given, answered = list[str](), threading.Semaphore(0)

    def chunks() -> Iterator[list[str]]:
        for i in range(20):
            yield [f"der Hund {j}" for j in range(3 * i, 3 * i + 3)]
            for _ in range(3):
                assert answered.acquire(timeout=60)
            assert len(given) == 3 * i + 3

    for translation in echo.translate_chunks(chunks()):
        given.append(translation.text)
        answered.release()
    assert given == [f"der Hund {i}" for i in range(60)]


def test_options_reach_the_search_and_none_is_the_models(model: Path) -> None:
    """An alpha of 0 is a choice, not the model's; n hypotheses take a beam of n; samples take none."""
    seen = list[Segment]()

    def find(segment: Segment) -> list[Hypothesis]:
        seen.append(segment)
        return [Hypothesis([5], -1.0, -1.0, [-1.0])]

    own, draw = SearchOptions(2, 0.6, 6, True, copy_wordless=True), Sampling(top_k=3)
    with translator_by(model, one_by_one(find)) as translator:
        for options, expected in (
            ({}, own),
            ({"beam": 3}, replace(own, beam=3)),
            ({"beam": 1}, replace(own, beam=1)),
            ({"alpha": 0.0}, replace(own, alpha=0.0)),
            ({"alpha": 1.5}, replace(own, alpha=1.5)),
            ({"extra_length": 1}, replace(own, extra_length=1)),
            ({"n_best": 3}, replace(own, beam=3, n_best=3)),
            ({"n_best": 2, "beam": 5, "alignments": True}, replace(own, beam=5, n_best=2, alignments=True)),
            ({"n_best": 2, "beam": 1, "sampling": draw}, replace(own, beam=1, sampling=draw)),
        ):
            seen.clear()
            (translation,) = translator.translate(["der Hund"], **options)
            assert {segment.options for segment in seen} == {expected}, options
            assert len(translation.hypotheses) == options.get("n_best", 1)
            (same,) = translator.translate_chunks([["der Hund"]], SearchOptions(**options))
            assert same.hypotheses == translation.hypotheses


def test_an_error_while_lines_are_read_is_no_end(translator: Translator) -> None:
    """It reaches the caller, and nobody else: the Translator goes on."""
    for error in (MemoryError, ValueError):

        def lines(error: type[Exception] = error) -> Iterator[str]:
            yield "der Hund"
            raise error

        with pytest.raises(error):
            list(translator.translate(lines()))
        with pytest.raises(error):
            list(translator.translate_chunks(map(list, lines())))
    assert len(list(translator.translate(["der Hund"]))) == 1


def test_a_model_in_memory_translates_as_its_directory_does(model: Path, translator: Translator) -> None:
    loaded = load_model(model)
    memory = Translator.of(loaded.model, translator.tokenizer, loaded.recipe, torch.float32, 12)
    assert memory.segmenter.seen_tokens == 12
    lines = ["der Hund", "", "die Katze ist rot"]
    expected = list(translator.translate(lines, n_best=2))
    assert [each.hypotheses for each in memory.translate(lines, n_best=2)] == [each.hypotheses for each in expected]
    assert [len(t.segments) for t in expected] == [1, 0, 1]
    assert expected[0].segments[0].hypotheses[0].ids == expected[0].hypotheses[0].ids


# ---- streams


def test_the_lines_of_a_file_are_counted_and_not_read() -> None:
    for data, count in ((b"", 0), (b"a\n", 1), (b"a\n\nb", 3), (b"x\n" * (1 << 20), 1 << 20)):
        descriptor = memory_file(b"before\n" + data)
        os.lseek(descriptor, len(b"before\n"), os.SEEK_SET)
        assert count_lines(descriptor) == count
        assert os.read(descriptor, len(data) + 1) == data
        os.close(descriptor)
    out, into = os.pipe()
    assert count_lines(out) is None
    os.close(out)
    os.close(into)


def test_a_huge_line_is_never_held_whole() -> None:
    sizes, counts = [1, 50 * MAX_LINE_BYTES, 1, MAX_LINE_BYTES, MAX_LINE_BYTES + 1], Counter[str]()
    lines = read_lines(memory_file(b"\n".join(b"x" * size for size in sizes)), counts)
    tracemalloc.start()
    assert [len(line or "") for line in lines] == [min(size, MAX_LINE_BYTES) for size in sizes]
    assert tracemalloc.get_traced_memory()[1] < 10 * MAX_LINE_BYTES
    tracemalloc.stop()
    assert counts["huge"] == 2
    (cut,) = read_lines(memory_file(b"x" + "\u00e9".encode() * MAX_LINE_BYTES), counts, strict=True)
    assert cut == "x" + "\u00e9" * (MAX_LINE_BYTES // 2 - 1), "cut after a whole character"


@pytest.mark.parametrize("size", [1, 3, 50])
@pytest.mark.parametrize("data", [b"", b"a\n\nf\xc3\xbcr\xff\xfe \xf0\x9f\x98\x80 \xc3\nb", b"\n\xe2\x82\n\n"])
def test_lines_are_the_same_however_they_arrive(data: bytes, size: int) -> None:
    out, into = os.pipe()
    lines = list[str]()
    reader = threading.Thread(target=lambda: lines.extend(read_lines(out, Counter())))
    reader.start()
    for start in range(0, len(data), size):
        os.write(into, data[start : start + size])
        time.sleep(0.001)
    os.close(into)
    reader.join(60)
    os.close(out)
    expected = data.removesuffix(b"\n").split(b"\n") if data else []
    assert lines == [re.sub("\ufffd+", "\ufffd", x.decode(errors="replace")) for x in expected]


def test_a_line_is_answered_before_the_next_one_is_sent(translator: Translator) -> None:
    """A co-process that writes one line and waits gets its answer, a hundred times."""
    (to_us, from_them), (to_them, from_us) = os.pipe(), os.pipe()

    def serve() -> None:
        with Progress("translating", None, "lines") as progress:
            translate_lines(translator, TranslateOptions(), to_us, from_us, progress)
        os.close(from_us)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with os.fdopen(to_them, "rb") as answers:
        for i in range(100):
            os.write(from_them, b"\n" if i % 10 == 3 else b"der Hund %d\n" % i)
            assert answers.readline().endswith(b"\n")
        os.close(from_them)
        assert answers.read() == b""
    thread.join(20)
    assert not thread.is_alive()


def test_a_line_is_written_whole_by_a_pipe_that_takes_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    target, write = memory_file(), os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:3]))
    for line in ("für das Haus", "", "rot"):
        write_line(target, line)
    assert content(target).decode() == "für das Haus\n\nrot\n"


# ---- long lines and failed translations


def test_splitting_loses_nothing_and_keeps_the_limit(translator: Translator) -> None:
    draw = random.Random(1)
    for count in range(1, 80):
        text = draw.choices(["der", "Hund", "geht,", "rot.", "blau;", "x" * 30, "?!", "Haus"], k=count % 40 + 1)
        parts = split_line(translator.tokenizer, " ".join(text), 12, 12)
        assert all(1 < len(ids) <= 12 for ids in parts)
        assert "".join(translator.tokenizer.decode([ids[:-1] for ids in parts])).replace(" ", "") == "".join(text)


def test_a_line_is_split_where_it_is_longer_than_those_of_training(
    echo: Translator, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their 99.9th percentile is in the manifest; a single sentence is cut only beyond the limit of the filter."""
    assert echo.segmenter.seen_tokens == echo.segmenter.filter_tokens == echo.max_length == 128
    assert Translator(make_model(tmp_path, "corpus.cleaning.max_tokens=40")).segmenter.seen_tokens == 40
    manifest = shutil.copytree(model, tmp_path / "seen") / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "seen_tokens": 12}))
    for both in ([model, manifest.parent], [manifest.parent, model]):
        assert Translator(both).segmenter.seen_tokens == 12
    other = shutil.copytree(manifest.parent, tmp_path / "more") / "manifest.json"
    other.write_text(other.read_text().replace('"seen_tokens": 12', '"seen_tokens": 20'))
    assert Translator([other.parent, manifest.parent]).segmenter.seen_tokens == 12
    two, one = "der Hund geht. die Katze ist rot.", "der Hund geht und die Katze ist rot"
    sizes = [len(ids) + 1 for ids in echo.tokenizer.encode([two, one])]
    most = sizes[1]
    for seen, limit, pieces in ((0, 128, (1, 1)), (-1, 128, (2, 1)), (-1, most, (2, 1)), (-1, most - 1, (2, 2))):
        for text, size, count in zip((two, one), sizes, pieces, strict=True):
            monkeypatch.setattr(echo.segmenter, "seen_tokens", size + seen)
            monkeypatch.setattr(echo.segmenter, "filter_tokens", limit)
            echo.counts.clear()
            (translation,) = echo.translate([text])
            assert len(translation.segments) == count
            assert echo.counts["split"] == (count > 1)
            assert translation.text == text


def test_a_line_that_may_not_be_split_is_cut_before_its_eos(echo: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    (ids,) = echo.tokenizer.encode(["rot " * 127])
    assert len(ids) == 127
    monkeypatch.setattr(echo.recipe.decoding, "split", False)
    for words, cut in ((127, 0), (128, 1)):
        (translation,) = echo.translate(["rot " * words], prefixes=["rot " * words])
        assert parts_of(translation) == [([*ids, EOS], [*ids, *ids, EOS])]  # the prefix and the line
        assert (echo.counts["cut"], echo.counts["split"]) == (2 * cut, 0)


def test_what_is_split_is_rejoined_as_it_was(echo: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echo.segmenter, "seen_tokens", 8)
    for source, limit, count in (
        ("你好。我去北京！他来吗？！是", 99, 4),
        ("他说。“好。”我去。「はい。」と", 99, 5),
        ("一，二，三，四，五，六，七，八，九，十，", 16, 5),
        ("rot. 你好。 blau. 안녕! 네.", 99, 5),
        ("rot z. B. blau. am 3. rot J. R. R. Hund geht. rot", 99, 3),  # initials and abbreviations end no sentence
        ("das Haus geht. „die Katze!“ (steht sie?) “rot.” “und”", 99, 5),
    ):
        monkeypatch.setattr(echo.segmenter, "filter_tokens", limit)
        (translation,) = echo.translate([source], prefixes=["rot"])  # begins the first one only
        assert len(translation.segments) == count
        assert translation.text == f"rot {source}"


def test_loops_are_seen_and_sentences_are_not() -> None:
    for loop in ([5] * 12, [5, 6] * 6, [5, 6, 7] * 4, [*range(8)] * 4):
        assert looping([91, 92, *loop, 93])
        assert not looping([91, 92, *loop[1:], 93])
    assert not looping([*range(9)] * 5)


def test_halves_are_at_a_clause_or_between_words(translator: Translator) -> None:
    tokenizer = translator.tokenizer
    for text, first in (("der Hund geht, die Katze steht nicht", "der Hund geht,"), ("rot blau rot blau", "rot blau")):
        ids = [*tokenizer.encode([text])[0], EOS]
        a, b = halves(tokenizer, ids)
        assert tokenizer.decode([a[:-1]])[0] == first
        assert [*a[:-1], *b] == ids
        assert a[-1] == EOS
    chinese = SimpleNamespace(tokens=lambda ids: list("▁我喜欢，他真的不喜欢")[: len(ids)])
    assert halves(chinese, [*range(11), EOS]) == [[*range(5), EOS], [*range(5, 11), EOS]]
    for clause, place in ((1, 4), (2, 2), (6, 6), (7, 4)):  # a clause counts in the middle half only
        eight = ["\u2581a" + "," * (i == clause) for i in range(1, 9)]
        first, _ = halves(SimpleNamespace(tokens=lambda _, eight=eight: eight), [*range(8), EOS])
        assert first == [*range(place), EOS]
    multilingual = SimpleNamespace(tokens=lambda _: ["\u2581>>deu<<", "\u2581Donau", "dampf", "schiff", "fahrt"])
    assert halves(multilingual, [*range(5), EOS]) == [[0, 1, EOS], [0, 2, 3, 4, EOS]]
    assert halves(tokenizer, [5, 5, 5, EOS]) == []
    assert halves(tokenizer, [5, 5, 5, 5, EOS]) == [[5, 5, EOS], [5, 5, EOS]]


def test_a_translation_that_loops_is_made_again_in_halves(echo: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless its source loops too. A forced prefix begins the first half, and only that."""
    source = "der Hund geht, die Katze steht"
    (ids,) = echo.tokenizer.encode([source])
    for loops_too in (False, True):
        monkeypatch.setattr(assembler, "looping", lambda x, y=loops_too: len(x) > len(ids) and (y or x[-1] != EOS))
        echo.counts.clear()
        (translation,) = echo.translate([source], prefixes=["das Haus"])
        assert translation.text == f"das Haus {source}"
        expected = [[*ids, EOS]] if loops_too else halves(echo.tokenizer, [*ids, EOS])
        assert [segment.ids for segment in translation.segments] == expected
        assert echo.counts["retried"] == (not loops_too)


def test_an_empty_translation_is_halved_three_times(model: Path) -> None:
    """The line's score counts the EOS of every part. Samples are left as they are drawn."""
    silent, line = translator_by(model, one_at_a_time(lambda _: [])), "der Hund geht auf das Haus " * 16
    for pieces, options in ((8, {}), (1, {"split": False}), (1, {"sampling": Sampling()})):
        silent.counts.clear()
        (translation,) = silent.translate([line], alpha=0.5, **options)
        (best,) = translation.hypotheses
        assert (len(translation.segments), silent.counts["retried"]) == (pieces, pieces - 1)
        assert (best.text, best.tokens, best.log_probability) == ("", ["</s>"] * pieces, -pieces)
        assert best.score == pytest.approx(-pieces / ((5 + pieces) / 6) ** 0.5 if pieces > 1 else -1)


def characters() -> Any:
    """A tokenizer that takes each character for a token, but for spaces and a language."""

    def encode(texts: list[str]) -> list[list[str]]:
        return [re.findall(r">>\w+<<|\S", text) for text in texts]

    language = lambda ids: [token for token in ids[:1] if token.startswith(">>")]  # noqa: E731
    return SimpleNamespace(encode=encode, language=language)


def cut(line: str, seen: int, limit: int, terms: Terms | None = None) -> list[str]:
    """Return the characters of a line's sources, whose ends are checked."""
    sources = split_line(characters(), line, seen, limit, terms)
    assert all(ids[-1] == EOS and len(ids) <= limit for ids in sources)
    return ["".join(ids[:-1]) for ids in sources]


def test_lines_are_cut_at_every_mark_that_ends_a_sentence_or_a_clause() -> None:
    for mark in (".", "!", "?", "…", "?!", ".”", "!)", "?“", ".'", ".»"):
        assert cut(f"ab cd{mark} ef gh", 1, 99) == [f"abcd{mark}", "efgh"], mark
        assert cut(f"ab cd{mark}ef gh", 1, 99) == [f"abcd{mark}efgh"], "no space follows"
    for mark in ("。", "！", "？", "。」", "！？", "？）"):
        assert cut(f"ab cd{mark}ef gh", 1, 99) == [f"abcd{mark}", "efgh"], mark
    for mark in (",", ";", ":", "–", "—", ",“"):
        assert cut(f"ab cd{mark} ef gh ij", 1, 9) == [f"abcd{mark}", "efghij"], mark
        assert cut(f"ab cd{mark} ef gh ij", 1, 99) == [f"abcd{mark}efghij"], "there is room for all"
    for mark in ("、", "，", "：", "；", "，」"):
        assert cut(f"ab cd{mark}ef gh ij", 1, 9) == [f"abcd{mark}", "efghij"], mark
    for phrase in ("ab cd.", "ef gh", "cd. ef"):
        pieces = 1 if phrase == "cd. ef" else 2
        assert len(cut("ab cd. ef gh", 1, 99, Terms.parse([f"{phrase}\tx"]))) == pieces, "not within a phrase"


def test_pieces_are_as_long_as_there_is_room() -> None:
    """EOS and the language, with which every source begins, need room, too."""
    assert cut("a, b, c, d, e, f", 1, 5) == ["a,b,", "c,d,", "e,f"]
    assert cut("a, b, c, d, e, f", 1, 6) == ["a,b,", "c,d,", "e,f"]
    assert cut("a, b, c, d, e, f", 1, 7) == ["a,b,c,", "d,e,f"]
    assert cut("ab cd ef gh", 1, 5) == ["abcd", "efgh"]
    assert cut("ab cd ef gh", 1, 6) == ["abcd", "efgh"]
    assert cut("abcdefgh", 1, 4) == ["abc", "def", "gh"]
    assert cut("aa. bb. c", 8, 99) == ["aa.bb.c"]
    assert cut("aa. bb. c", 7, 99) == ["aa.", "bb.", "c"]
    for limit, expected in ((5, ["abc", "def"]), (6, ["abcd", "ef"]), (8, ["abcdef"]), (9, ["abcdef"])):
        assert cut(">>deu<< abcdef", 1, limit) == [f">>deu<<{part}" for part in expected], "never a language alone"
    assert cut(">>deu<< ab. cd. ef.", 1, 9) == [">>deu<<ab.", ">>deu<<cd.", ">>deu<<ef."]


def test_the_sentences_of_a_text_are_found_with_their_places() -> None:
    text = "Titel\n  Er kam.  Sie ging!\n\n „Wer?“ sagte z. B. er… \n \nEnde 。は い"
    spans = sentences_of(text)
    assert [text[a:b] for a, b in spans] == [
        "Titel",
        "Er kam.",
        "Sie ging!",
        "„Wer?“",
        "sagte z. B. er…",
        "Ende 。",
        "は い",
    ]
    assert all(a < b <= c for (a, b), (c, _) in pairwise([*spans, (len(text), 0)]))
    assert sentences_of("") == sentences_of(" \n ") == []


def test_segments_are_joined_with_one_space_or_none() -> None:
    for texts, joined in (
        (["a ", "", " b"], "a b"),
        ([" a "], " a "),
        (["", ""], ""),
        (["你。", "好"], "你。好"),
        (["你。", "b", "好"], "你。 b 好"),
        (["他说。”", "“好"], "他说。”“好"),
        ([], ""),
    ):
        tokenizer = SimpleNamespace(decode=lambda _, texts=texts: texts, tokens=lambda ids: [str(i) for i in ids])
        parts = [Hypothesis([5 + i], -1.5, 9.0, [-0.5, -1.0]) for i in range(len(texts))]
        whole = join(SimpleNamespace(target=tokenizer), parts, 2.0)
        count = len(texts)
        assert whole.text == joined
        assert whole.ids == [5 + i for i in range(count)]
        assert whole.tokens == [token for i in range(count) for token in (str(5 + i), str(EOS))]
        assert (whole.log_probability, whole.token_log_probabilities) == (-1.5 * count, [-0.5, -1.0] * count)
        assert whole.score == pytest.approx(-1.5 * count / ((5 + 2 * count) / 6) ** 2)


def test_what_the_search_with_terms_does_not_say_leaves_the_best_without(model: Path) -> None:
    """The first search's hypotheses stay, also where the second one finds some; the best one decides what is unsaid."""
    seen, words = list[Segment](), ["Katze", "Haus"]

    def find(segment: Segment) -> list[Hypothesis]:
        seen.append(segment)
        found = translator.tokenizer.encode(words if not segment.constraints else ["rot"])
        return [Hypothesis(ids, -1.0, -1.0, [-1.0] * (len(ids) + 1)) for ids in found]

    terms = Terms.parse(["Hund\tKatze"])
    with translator_by(model, one_by_one(find)) as translator:
        size = {word: len(translator.tokenizer.encode([word])[0]) for word in ("Katze", "Haus", "rot")}
        for best, beam, width in (("Katze", 3, 8), ("Haus", 20, 20)):
            seen.clear()
            translator.counts.clear()
            words.sort(key=lambda word, best=best: word != best)
            (translation,) = translator.translate(["der Hund"], terms=terms, n_best=2, beam=beam)
            assert [h.text for h in translation.hypotheses] == words
            assert translation.text == best
            first, second = seen
            assert (first.options.beam, first.options.n_best, first.constraints) == (beam, 2, None)
            assert second.options == replace(first.options, beam=width)
            assert second.ids == first.ids
            expected = {"lines": 1, "constrained": 1, "tokens": sum(size.values()), "unsaid": int(best == "Haus")}
            assert {name: count for name, count in translator.counts.items() if count} == {
                name: count for name, count in expected.items() if count
            }


def test_fewer_hypotheses_than_were_asked_for_are_repeated(model: Path) -> None:
    """Of a segment, which has few: another one of the line has more."""

    def find(segment: Segment) -> list[Hypothesis]:
        count = 1 if segment.position else 3
        return [Hypothesis([*segment.ids[:-1]][: 9 - i], -i - 1.0, 0, [-i - 1.0]) for i in range(count)]

    with translator_by(model, one_by_one(find)) as translator:
        line = "der Hund geht auf. die Katze ist rot."
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(translator.segmenter, "seen_tokens", 8)
            (translation,) = translator.translate([line], n_best=3)
    assert len(translation.segments) == 2
    assert [h.log_probability for h in translation.hypotheses] == [-2.0, -3.0, -4.0]
    assert [h.text.endswith("die Katze ist rot.") for h in translation.hypotheses] == [True] * 3


# ---- formats


def test_json_lines_and_n_best_lists_hold_what_adds_up(translator: Translator) -> None:
    data = b"der Hund\n\ndie Katze ist rot\n"
    lines = records(run(translator, data, format="jsonl", n_best=2))
    assert [record["line"] for record in lines] == [1, 2, 3]
    for record, line in zip(lines, run(translator, data).decode().split("\n"), strict=False):
        assert record["hypotheses"][0]["score"] >= record["hypotheses"][1]["score"]
        assert record["hypotheses"][0]["text"] == line
        for h in record["hypotheses"]:
            assert list(h) == ["text", "log_probability", "score", "tokens", "token_log_probabilities"]
            assert len(h["tokens"]) == len(h["token_log_probabilities"])
            assert h["log_probability"] == pytest.approx(math.fsum(h["token_log_probabilities"]), abs=1e-5)
            assert not h["tokens"] or h["tokens"][-1] == "</s>"
    hypotheses = [(i, h) for i, record in enumerate(lines) for h in record["hypotheses"]]
    expected = [f"{i} ||| {h['text']} ||| {h['score']:.6g}" for i, h in hypotheses]
    assert run(translator, data, n_best=2, beam=2).decode().split("\n")[:-1] == expected
    aligned = run(translator, data, n_best=2, beam=2, alignments=True).decode().split("\n")
    assert [line.split(" ||| ")[:3] for line in aligned[:-1]] == [line.split(" ||| ") for line in expected]
    assert [line.count(" ||| ") for line in aligned[:-1]] == [3] * 6
    with_words = records(run(translator, data, n_best=2, beam=2, alignments=True, format="jsonl"))
    alignments = [h["alignment"] for record in with_words for h in record["hypotheses"]]
    how = {"n_best": 9, "beam": 9, "alignments": True}
    (record,) = records(run(translator, b"die Katze ist rot\n", format="jsonl", **how))
    (found,) = translator.translate(["die Katze ist rot"], **how)
    alignments = [h["alignment"] for h in record["hypotheses"]]
    assert alignments == [alignment(translator.tokenizer, found.parts(rank)) for rank in range(9)]
    assert len(set(alignments)) > 1, "each is of its own hypothesis"
    (wider,) = translator.translate(["der Hund"], n_best=5)  # than the recipe's beam
    assert len({tuple(h.ids) for h in wider.hypotheses}) == 5
    for options in ({"beam": 1}, {"beam": 0}, {"alpha": -1}, {"n_best": 0}):
        with pytest.raises(UsageError, match=next(iter(options))):
            run(translator, data, **{"n_best": 2, **options})


def test_text_is_written_as_it_is_and_counted(echo: Translator, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(echo, "für\n\n안녕 rot\n".encode(), format="jsonl").decode()
    assert [record["hypotheses"][0]["text"] for record in records(out.encode())] == ["für", "", "안녕 rot"]
    assert '"text": "für"' in out
    assert '"text": "안녕 rot"' in out
    tokens = sum(map(len, echo.tokenizer.encode(["für", "안녕 rot"])))
    assert re.search(f"^3 lines, {tokens} tokens in [0-9.]+ s, ", capsys.readouterr().err, re.MULTILINE)
    run(echo, b"rot\n")
    assert capsys.readouterr().err.startswith("1 line, ")


def test_what_happened_to_lines_is_told_each_with_its_own_number(capsys: pytest.CaptureFixture[str]) -> None:
    """What may be lost is a warning, which is told in a quiet command, too; what did not happen is not told."""
    told = [
        ("nmt: warning: 1,001 lines are not UTF-8 (first: line 2,007)", "invalid"),
        ("nmt: warning: 1,002 lines were over ", "huge"),
        ("nmt: warning: 1,003 lines or prefixes were longer than the model's 4,096 tokens", "cut"),
        ("nmt: warning: 1,004 terms are missing from their line's translation", "unsaid"),
        ("1,005 segments lacked a term", "constrained"),
        ("1,006 lines longer than those of training were split", "split"),
        ("1,007 translations were empty or repeated themselves", "retried"),
    ]
    counts = Counter({name: number for number, (_, name) in enumerate(told, 1001)}, **{"first invalid": 2007})
    report(counts, 4096)
    lines = capsys.readouterr().err.split("\n")[:-1]
    assert [line.startswith(begin) for line, (begin, _) in zip(lines, told, strict=True)] == [True] * 7, lines
    console.set_quiet(True)
    report(counts, 4096)
    assert capsys.readouterr().err.split("\n")[:-1] == lines[:4]
    report(Counter({"split": 0, "invalid": 0}), 4096)
    assert capsys.readouterr().err == ""


def test_pairs_are_scored_without_search(
    translator: Translator, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources, targets = ["der Hund geht", "", "die Katze ist rot"], ["das Haus", "rot", "ein Baum und"]
    (tmp_path / "in").write_text("\n".join(sources))
    (tmp_path / "out").write_text("\n".join(targets))
    options = TranslateOptions(
        tmp_path / "in", tmp_path / "scores", (model,), SearchOptions(alpha=0.5), precision="fp32", format="jsonl",
        score_pairs=tmp_path / "out",
    )  # fmt: skip
    assert translate(options) == 0
    scored = records((tmp_path / "scores").read_bytes())
    assert [record["line"] for record in scored] == [1, 2, 3]
    both = zip(*map(translator.tokenizer.encode, (sources, targets)), strict=True)
    ids = [[[*side, EOS] for side in pair] for pair in both]
    exact = score_targets([for_inference(load_model(model).model, torch.float32)], torch.float32, ids)
    for record, pair, values in zip(scored, ids, exact, strict=True):
        assert list(record) == ["line", "log_probability", "score", "tokens", "token_log_probabilities"]
        assert record["token_log_probabilities"] == pytest.approx(values, abs=1e-5)
        assert record["tokens"] == translator.tokenizer.tokens(pair[1])
        assert record["log_probability"] == pytest.approx(math.fsum(values), abs=1e-5)
        assert record["score"] == pytest.approx(record["log_probability"] / ((5 + len(values)) / 6) ** 0.5)
    for alpha, power in ((0, 0), (None, translator.recipe.decoding.alpha)):  # no penalty is not the recipe's
        (one,) = translator.score([(sources[0], targets[0])], alpha=alpha)
        assert one.score == pytest.approx(one.log_probability / ((5 + len(exact[0])) / 6) ** power)
    assert power > 0
    nats = -sum(record["log_probability"] for record in scored) / sum(len(record["tokens"]) for record in scored)
    assert f"3 pairs, {nats:.4f} nats per token, perplexity {math.exp(nats):.3f}" in capsys.readouterr().err
    assert translate(replace(options, format="text")) == 0
    assert (tmp_path / "scores").read_text().split("\n")[:-1] == [f"{record['score']:.6f}" for record in scored]
    capsys.readouterr()
    for name in ("in", "out"):
        (tmp_path / f"no {name}").touch()
    nothing = replace(options, input=tmp_path / "no in", score_pairs=tmp_path / "no out", output=tmp_path / "none")
    assert translate(nothing) == 0
    assert (tmp_path / "none").read_bytes() == b""
    assert "pairs" not in capsys.readouterr().err
    (tmp_path / "out").write_text("eins\nzwei\n")
    with pytest.raises(DataError, match="ends after line 2"):
        translate(options)
    (tmp_path / "out").write_bytes(b"eins\n\xff\ndrei\n")
    with pytest.raises(DataError, match="translation 2 is not UTF-8"):
        translate(replace(options, strict=True))
    for pair in (("rot", "rot " * 128), ("rot " * 128, "rot")):
        with pytest.raises(DataError, match="line 2 has more than the model's 128 tokens"):
            list(translator.score([("rot " * 127, "rot " * 127), pair]))


def test_prefixes_begin_their_lines(translator: Translator, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = b"der Hund\ndie Katze\nein Baum\nrot\n"
    prefixes = tmp_path / "prefixes"
    prefixes.write_text("das Haus\n\nrot und\n" + "rot " * 500)
    out = run(translator, data, prefix=prefixes).decode().split("\n")
    assert out[0].startswith("das Haus")
    assert out[1] == run(translator, data).decode().split("\n")[1]
    assert out[2].startswith("rot und")
    assert re.fullmatch("rot( rot){50,}( .*)?", out[3])
    assert "1 lines or prefixes were longer than the model's 128 tokens" in capsys.readouterr().err
    with pytest.raises(DataError, match="fewer prefixes"):
        run(translator, data + b"a\n", prefix=prefixes)
    with pytest.raises(DataError, match="more prefixes than lines, which are 2"):
        run(translator, b"rot\nrot\n", prefix=prefixes)
    prefixes.write_bytes(b"rot\xc2\xa0 und\n\xff\n")
    assert run(translator, b"der Hund\nrot\n", prefix=prefixes).startswith(b"rot und"), "as the model sees a line"
    with pytest.raises(DataError, match="prefix 2 is not UTF-8"):
        run(translator, b"der Hund\nrot\n", prefix=prefixes, strict=True)


def test_samples_do_not_depend_on_company_threads_or_what_was_drawn_before(
    translator: Translator, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"sampling": Sampling(top_k=20, seed=3), "n_best": 2}
    data = b"der Hund\nder Hund\n\ndie Katze ist rot\n"
    one = run(translator, data, **options).decode()
    with Translator(model, precision="fp32", workers=2) as two:
        assert [run(two, data, **options).decode() for _ in range(2)] == [one, one]
        first = two.submit("der Hund", SearchOptions(**options)).result()
        assert [hypothesis.text for hypothesis in first.hypotheses] == [
            x.split(" ||| ")[1] for x in one.split("\n")[:2]
        ]
    lines = one.split("\n")
    (many,) = translator.translate(["der Hund ist"], n_best=300, sampling=Sampling())
    assert len({h.text for h in many.hypotheses}) > 250  # every sample has random numbers of its own
    assert lines[0][4:] != lines[2][4:]  # the same source on another line has numbers of its own
    assert run(translator, data + b"rot\n" * 50, **options).decode().startswith(one)
    monkeypatch.setattr(translator.segmenter, "seen_tokens", 5)
    (twice,) = translator.translate(["der Hund geht auf. der Hund geht auf."], sampling=Sampling())
    (source, first), (again, second) = parts_of(twice)
    assert source == again
    assert first != second  # and so has the same source in another place of its line


def test_samples_cannot_be_drawn_by_nonsense() -> None:
    nonsense = ({"temperature": 0}, {"temperature": math.nan}, {"top_k": -1}, {"top_p": 1.1}, {"top_p": -0.1})
    for wrong in (*nonsense, {"seed": -1}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            Sampling(**wrong)
    assert (Sampling(1e-9, 0, 0.0, 0).seed, Sampling(top_p=1.0).top_p) == (0, 1.0), "the bounds are sense"


def test_alignments_are_of_the_sharpest_attention(translator: Translator, model: Path) -> None:
    out = run(translator, b"der Hund sieht die Katze\n\n", split=False, alignments=True).decode().split("\n")
    ((ids,),) = [parts_of(t) for t in translator.translate(["der Hund sieht die Katze"], split=False)]
    weights_LHTS = torch.softmax(attention_scores(load_model(model).model, *ids)["cross"], -1)
    entropy_LHT1 = -(weights_LHTS * weights_LHTS.log()).sum(-1, keepdim=True)
    evidence_TS = (weights_LHTS / entropy_LHT1.exp()).sum((0, 1))[:-1]
    evidence_TS /= evidence_TS.sum(0) ** 0.75
    words = [[*accumulate(t[0] == "\u2581" for t in translator.tokenizer.tokens(side[:-1]))] for side in ids]
    looked_at = evidence_TS[:, :-1].argmax(1).tolist()
    first = words[1][0]
    points = {(words[0][s] - 1, words[1][t] - first) for t, s in enumerate(looked_at)}
    assert out[0].rpartition(" ||| ")[2] == " ".join(f"{s}-{t}" for s, t in sorted(points))
    assert out[1] == " ||| "


def test_a_language_token_that_each_segment_repeats_is_word_0() -> None:
    target = SimpleNamespace(tokens=lambda ids: [["\u2581>>deu<<", "\u2581a", "\u2581b"][i] for i in ids])
    source = SimpleNamespace(tokens=target.tokens, language=lambda ids: [i for i in ids if not i], target=target)
    hypothesis = Hypothesis([1, 2], -1.0, -1.0, [-1.0], source_positions=[0, 1])
    parts = [([0, 1, EOS], hypothesis), ([0, 2, EOS], hypothesis)]
    assert alignment(source, parts) == "0-0 0-2 1-1 2-3"
    parts.append(([0, 1, EOS], hypothesis))
    assert alignment(source, parts) == "0-0 0-2 0-4 1-1 2-3 3-5", "each after all before it"


# ---- the command


def test_the_model_is_named_or_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingError, match="nmt reproduce"):
        choose_models([])
    years = {"b": 2026, "c": 2025, "d": 2027, "e": 2028, "a": 2024}
    for name, year in years.items():
        form = "trees" if name in "de" else "text"
        (model := tmp_path / "runs" / name / "model").mkdir(parents=True)
        (model / "manifest.json").write_text(json.dumps({"created": f"{year}-01-01T00:00:00"}))
        (model / "recipe.yaml").write_text(f"corpus: {{name: own, format: {form}}}")
    console.set_quiet(False)
    assert choose_models([]) == (Path("runs/b/model"),)  # whatever was copied or touched since; d and e parse
    assert "model: runs/b/model" in capsys.readouterr().err
    assert choose_models([Path("a"), Path("b")]) == (Path("a"), Path("b"))


def test_a_command_searches_as_its_options_say(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose, asked = backends.choose, list[Any]()

    def noted(models: Any, precision: str, workers: int | None, cores: int) -> Backend:
        asked.append(([each.directory for each in models], precision, workers, cores))
        return choose(models, precision, workers, cores)

    monkeypatch.setattr(backends, "choose", noted)
    monkeypatch.setattr(module, "usable_cores", lambda: 7)
    (tmp_path / "in").write_bytes(b"der Hund\n")
    options = TranslateOptions(
        tmp_path / "in", tmp_path / "out", (model, model), SearchOptions(n_best=2), "int8", workers=3
    )
    assert translate(options) == 0
    assert translate(replace(options, precision="fp32", workers=None, models=(model,))) == 0
    assert asked == [([model, model], "int8", 3, 7), ([model], "fp32", None, 7)]
    assert (tmp_path / "out").read_bytes().count(b"\n") == 2


def test_a_file_appears_when_it_is_complete(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"der Hund\n\nrot")
    options = TranslateOptions(tmp_path / "in", tmp_path / "new" / "out", (model,), precision="fp32")
    assert translate(options) == 0
    assert [path.read_bytes().count(b"\n") for path in tmp_path.glob("new/*")] == [3]
    (tmp_path / "new" / "linked.part").write_bytes(b"what was stopped left this\n" * 100)
    (tmp_path / "link").symlink_to(tmp_path / "new" / "linked")
    assert translate(replace(options, output=tmp_path / "link")) == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "new" / "linked").read_bytes() == (tmp_path / "new" / "out").read_bytes()
    out, into = os.pipe()
    (tmp_path / "pipe").symlink_to(f"/proc/self/fd/{into}")
    assert translate(replace(options, output=tmp_path / "pipe")) == 0
    assert os.read(out, 9999) == (tmp_path / "new" / "out").read_bytes()
    with pytest.raises(OutputError, match="in is the input"):
        translate(replace(options, output=tmp_path / "in"))
    (tmp_path / "in.gz").write_bytes(gzip.compress(b"der Hund\n"))
    with pytest.raises(DataError, match="the input is not plain text, it looks like gzip"):
        translate(replace(options, input=tmp_path / "in.gz"))
    assert not list(tmp_path.glob("new/*.part")), "that would hold nothing"
    with pytest.raises(OutputError, match="new is a directory"):
        translate(replace(options, output=tmp_path / "new"))


def test_an_ensemble_needs_one_tokenizer(model: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path / "same", seed=2)
    assert run(Translator([model, other], precision="fp32", workers=1), b"der Hund\n").count(b"\n") == 1
    short = make_model(tmp_path / "short", "model.max_length=24")
    assert [Translator(both).max_length for both in ([model, short], [short, model])] == [24, 24]
    loaded, changed = load_model(model), tmp_path / "tokenizer"
    changed.write_bytes(train_tokenizer(seed=6))
    save_model(tmp_path / "other", loaded.model.state_dict(), loaded.recipe, changed, {})
    with pytest.raises(DataError, match="different tokenizers"):
        Translator([model, tmp_path / "other"])
    target_file(shutil.copytree(model, tmp_path / "two") / "tokenizer.model").write_bytes(changed.read_bytes())
    with pytest.raises(DataError, match="different tokenizers"):
        Translator([model, tmp_path / "two"])


def test_a_model_directory_has_all_that_a_model_is(model: Path, tmp_path: Path) -> None:
    """Weights, recipe and tokenizers, of target text, too; the newest one replaces what is there."""
    loaded, tokenizer, start = load_model(model), tmp_path / "tokenizer.model", datetime.now(UTC).replace(microsecond=0)
    shutil.copy(model / "tokenizer.model", tokenizer)
    target_file(tokenizer).write_bytes(train_tokenizer(seed=6))
    tensors = loaded.model.state_dict()
    for steps in ([1], [2]):
        save_model(tmp_path / "new", tensors, loaded.recipe, tokenizer, {"steps": steps})
        again = load_model(tmp_path / "new")
        assert again.manifest["steps"] == steps
    assert start <= datetime.fromisoformat(again.manifest["created"]) <= datetime.now(UTC)
    assert not again.model.training
    assert again.recipe == loaded.recipe
    assert [file.read_bytes() for file in files_of(again.tokenizer_file)] == [
        file.read_bytes() for file in (tokenizer, target_file(tokenizer))
    ]
    assert {*again.manifest["files"]} == {file.name for file in (tmp_path / "new").iterdir()} - {"manifest.json"}
    assert [*dict(read_tensors(tmp_path / "new" / "model.safetensors"))] == sorted(tensors)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in again.model.state_dict().items())
    save_model(tmp_path / "new", tensors, loaded.recipe, model / "tokenizer.model", {})
    assert not target_file(tmp_path / "new" / "tokenizer.model").exists()
    with pytest.raises(StorageError, match=r"cannot write .*Free some space"):
        save_tensors(tmp_path / "absent" / "w", tensors)


def test_contradictions_are_refused_before_a_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = TranslateOptions(Path("absent"), score_pairs=Path("absent"))
    for more in (
        {"search": SearchOptions(n_best=2)}, {"search": SearchOptions(sampling=Sampling())},
        {"search": SearchOptions(terms=Terms([]))}, {"search": SearchOptions(alignments=True)},
        {"prefix": Path("absent")},
    ):  # fmt: skip
        with pytest.raises(UsageError, match="--score-pairs"):
            translate(replace(absent, **more))
    with pytest.raises((FileNotFoundError, MissingError)):
        translate(replace(absent, search=SearchOptions(alpha=0.5, beam=3)))
    with pytest.raises(MissingError, match="no file"):
        translate(TranslateOptions(tmp_path / "absent", tmp_path / "out", (Path("absent"),)))
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("RANK", "1")  # in a launched job the first process does the work
    assert translate(TranslateOptions(input=Path("absent"))) == 0


@pytest.mark.parametrize("sign", ["\u00ad", "\u2060", "\u200b", "\ufeff"])
def test_signs_that_nobody_sees_cut_no_word(echo: Translator, sign: str) -> None:
    lines = [f"the d{sign}og", f"ไ{sign}ก"]
    [seen, thai] = [translation.segments[0].ids for translation in echo.translate(lines)]
    assert seen == echo.tokenizer.encode(["the dog"])[0] + [EOS]
    spaced = "ไ ก" if sign in "\u200b\ufeff" else "ไก"
    assert thai == echo.tokenizer.encode([spaced])[0] + [EOS]


def test_alignments_of_several_segments_count_words_of_several_tokens() -> None:
    target = SimpleNamespace(tokens=lambda ids: [["", "\u2581a", "b"][each] for each in ids])
    source: Any = SimpleNamespace(tokens=target.tokens, language=lambda ids: [], target=target)
    hypothesis = Hypothesis([1, 2], -1.0, -1.0, [-1.0], source_positions=[0, 1])
    assert alignment(source, [([1, 2, EOS], hypothesis)] * 2) == "0-0 1-1"
