"""The translate command in one process: pairing of lines, splitting, formats, and what else it can do."""

import json
import math
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nmt_cli.transformer.attention_weights import attention_weights
from nmt_cli.translation.output import Line, Part
from nmt_cli.translation.pipeline import Pipeline
from nmt_cli.translation.stream import CHUNK_LINES, MAX_LINE_BYTES, LineReader, count_lines, write_lines
from safetensors.torch import load_file
from tiny_model import content, make_model, memory_file

from nmt_cli import console
from nmt_cli.console import Progress
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.errors import DataError, MissingError, OutputError, StorageError, UsageError
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation import pipeline, workers
from nmt_cli.translation import translate as module
from nmt_cli.translation.candidates import Sampling
from nmt_cli.translation.search import Source
from nmt_cli.translation.segments import halves, looping, split
from nmt_cli.translation.translate import (
    Engine,
    TranslateOptions,
    choose_models,
    prepare_engine,
    translate,
    translate_all,
)
from nmt_cli.translation.workers import gathered, joined, parallel_search, serve, telling

FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def engine(model: Path) -> Engine:
    return prepare_engine(TranslateOptions(models=(model,), precision="fp32"))


def run(engine: Engine, data: bytes, options: TranslateOptions = TranslateOptions(workers=1)) -> bytes:  # noqa: B008
    source, target = memory_file(data), memory_file()
    with Progress("translating", None, "lines") as progress:
        module._run(engine, replace(options, workers=options.workers or 1), source, target, progress)
    os.close(source)
    return content(target)


def records(data: bytes) -> list[dict]:
    return [json.loads(line) for line in data.decode().split("\n")[:-1]]


# ---- pairing of lines

HOSTILE = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=30).map(lambda s: s.encode("utf-8", "surrogatepass")),
    st.sampled_from(
        [b"", b" ", b"\r", b"a\r\nb\r", b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\xaf", b"\xe2\x80\xa8", b"\xe2\x80\xa9x",
         b"\x00", b"\x0b\x0c\x1c\x1d\x1e\x85", b"\xc2\x85", b"\xef\xbb\xbfBOM", b"</s>", b"<s> <pad> <unk> <0x0A>",
         "\u202e\u2066abc".encode(), ("a" + "\u0301" * 500).encode(), "\u2581\u2047".encode(),
         "\U000e0041\ue000\ufdd0".encode(),
         b"der Hund " * 60, b"x" * 900, b"\x1b[2J\x1b]0;title\x07"]
    ),
)  # fmt: skip


@settings(max_examples=125, deadline=None)
@given(lines=st.lists(HOSTILE, min_size=8, max_size=12), final=st.booleans())
def test_one_line_out_for_every_line_in(engine: Engine, lines: list[bytes], final: bool) -> None:
    """B8, L1: whatever the bytes, as many line feeds come out as lines went in, and nothing else breaks a line.

    At least 1,000 fuzzed lines; tests/benchmarks/fuzz_translate.py does 10,000 and more.
    """
    data = b"\n".join(lines) + (b"\n" if final and lines else b"")
    out = run(engine, data).decode()
    count = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    assert out.count("\n") == count
    assert not out or out.endswith("\n")
    assert not FORBIDDEN.search(out.replace("\n", ""))


def test_a_line_is_translated_alike_alone_and_in_company(engine: Engine) -> None:
    lines = [b"der Hund", b"", b"die Katze sieht " * 40, b"\xff rot", b"ein Haus, das blau ist", b" ", b"\r\n"[:1]]
    alone = b"".join(run(engine, line + b"\n") for line in lines)
    assert run(engine, b"\n".join(lines)) == alone
    assert alone.count(b"\n") == len(lines)


def test_many_workers_give_what_one_gives(engine: Engine) -> None:
    data = b"".join(b"der Hund %d sieht die Katze %d\n\n" % (i, i * 7) for i in range(150))
    one = run(engine, data)
    assert run(engine, data, TranslateOptions(workers=3)) == one
    assert one.count(b"\n") == 300


def test_blank_lines_keep_their_places_and_ask_no_model(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transformer, "encode", None)  # whatever asks the model fails
    assert run(engine, b"") == b""
    assert run(engine, b"\n \n\t\r\n\xe2\x80\xa8\n") == b"\n\n\n\n"
    with pytest.raises(TypeError):
        run(engine, b"\nrot\n")


def test_bytes_that_are_not_text_are_counted_or_refused(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(engine, b"rot\n\xff\xfe\xfa\nblau\n\xc0\n").count(b"\n") == 4
    assert "2 lines are not UTF-8 (the first is line 2)" in capsys.readouterr().err
    with pytest.raises(DataError, match="line 2 is not UTF-8"):
        run(engine, b"rot\n\xff\n", TranslateOptions(strict=True))


# ---- streams


def test_reading_stops_after_a_chunk() -> None:
    reader = LineReader(memory_file(b"x\n" * (3 * CHUNK_LINES)))
    assert CHUNK_LINES <= len(reader.take(wait=True)) <= CHUNK_LINES + (1 << 16) // 2
    assert not reader.ended


@pytest.mark.parametrize("data", [b"", b"a\n", b"a\n\nb", b"x\n" * (1 << 20)])
def test_the_lines_of_a_file_are_counted_and_not_read(data: bytes) -> None:
    descriptor = memory_file(b"before\n" + data)
    os.lseek(descriptor, len(b"before\n"), os.SEEK_SET)
    assert count_lines(descriptor) == len(data.split(b"\n")) - data.endswith(b"\n") - (not data)
    assert os.read(descriptor, len(data) + 1) == data
    os.close(descriptor)


def test_the_lines_of_a_pipe_are_not_counted() -> None:
    out, into = os.pipe()
    assert count_lines(out) is None
    for descriptor in (out, into):
        os.close(descriptor)


def test_a_huge_line_is_never_held_whole() -> None:
    reader = LineReader(memory_file(b"a\n" + b"x" * (5 * MAX_LINE_BYTES) + b"\nb\n" + b"y" * (MAX_LINE_BYTES + 1)))
    lines = [line for _ in range(200) for line in reader.take(wait=False)]
    assert [len(line) for line in lines] == [1, MAX_LINE_BYTES, 1, MAX_LINE_BYTES]
    assert (reader.cut, reader.ended) == (2, True)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.integers(1, 50))
def test_lines_are_the_same_however_they_arrive(data: bytes, size: int) -> None:
    blocks = [data[i : i + size] for i in range(0, len(data), size)]
    out, into = os.pipe()
    reader, lines = LineReader(out), []
    for block in blocks:
        os.write(into, block)
        lines += reader.take(wait=False)
    os.close(into)
    while not reader.ended:
        lines += reader.take(wait=True)
    os.close(out)
    assert lines == (data.split(b"\n")[:-1] if data.endswith(b"\n") or not data else data.split(b"\n"))


def test_whole_lines_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[bytes] = []
    monkeypatch.setattr(os, "write", lambda _, data: blocks.append(bytes(data)) or len(data))
    write_lines(1, ["x" * n for n in range(1500)])
    assert all(block.endswith(b"\n") for block in blocks)
    assert all(len(block) <= 4096 for block in blocks)
    assert b"".join(blocks) == b"".join(b"x" * n + b"\n" for n in range(1500))


def test_a_line_is_answered_before_the_next_one_is_sent(engine: Engine) -> None:
    """B9: a co-process that writes one line and waits gets its answer, a hundred times."""
    (to_us, from_them), (to_them, from_us) = os.pipe(), os.pipe()

    def serve() -> None:
        with Progress("translating", None, "lines") as progress:
            module._run(engine, TranslateOptions(workers=1), to_us, from_us, progress)
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


# ---- long lines and failed translations


def tokenizer_of(engine: Engine) -> Tokenizer:
    return engine.tokenizer


def test_long_lines_are_split_where_sentences_end(engine: Engine) -> None:
    tokenizer = tokenizer_of(engine)
    parts = split(tokenizer, "der Hund geht. \u201edie Katze!\u201c (steht sie?) das Haus ist rot", 13)
    texts = tokenizer.decode([ids[:-1] for ids in parts])
    assert texts == ["der Hund geht.", "\u201edie Katze!\u201c", "(steht sie?)", "das Haus ist rot"]
    assert all(ids[-1] == EOS for ids in parts)
    assert split(tokenizer, "der Hund", 9) == [[*tokenizer.encode(["der Hund"])[0], EOS]]
    assert split(tokenizer, "", 9) == []


@settings(max_examples=200, deadline=None)
@given(
    text=st.lists(
        st.sampled_from(["der", "Hund", "geht,", "rot.", "blau;", "x" * 30, "?!", "Haus"]), min_size=1, max_size=40
    )
)
def test_splitting_loses_nothing_and_keeps_the_limit(engine: Engine, text: list[str]) -> None:
    tokenizer, line = tokenizer_of(engine), " ".join(text)
    parts = split(tokenizer, line, 12)
    assert all(1 < len(ids) <= 12 for ids in parts)
    joined = "".join(tokenizer.decode([ids[:-1] for ids in parts]))
    assert joined.replace(" ", "") == line.replace(" ", "")


def test_a_split_line_is_its_parts_joined(engine: Engine) -> None:
    sentences = [b"der Hund geht auf das Haus und steht nicht.", b"die Katze ist blau!", b"ein Baum sieht rot."]
    limited = replace(engine, loaded=engine.loaded)
    limited.loaded.recipe.corpus.cleaning.max_tokens = 16
    try:
        assert all(len(ids) < 16 for ids in engine.tokenizer.encode([s.decode() for s in sentences]))
        parts = [run(limited, s + b"\n").strip() for s in sentences]
        assert run(limited, b" ".join(sentences)).strip() == b" ".join(filter(None, parts))
        cut = run(limited, b" ".join(sentences * 20), TranslateOptions(split=False))
        assert cut.count(b"\n") == 1
    finally:
        limited.loaded.recipe.corpus.cleaning.max_tokens = 250


def test_loops_are_seen_and_sentences_are_not() -> None:
    assert looping([5] * 12)
    assert looping([9, 8, 7, *[5, 6, 7] * 5, 3])
    assert not looping([5] * 6)
    assert not looping(list(range(100)))
    assert not looping([1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6, 7, 8, 9])


def test_halves_are_at_a_clause_or_between_words(engine: Engine) -> None:
    tokenizer = tokenizer_of(engine)
    for text, first in (("der Hund geht, die Katze steht nicht", "der Hund geht,"), ("rot blau rot blau", "rot blau")):
        ids = [*tokenizer.encode([text])[0], EOS]
        a, b = halves(tokenizer, ids)
        assert tokenizer.decode([a[:-1]])[0] == first
        assert [*a[:-1], *b] == ids
        assert a[-1] == EOS
    assert halves(tokenizer, [5, EOS]) == []


def test_a_translation_that_loops_is_made_again_in_halves(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = tokenizer_of(engine)
    source = "der Hund geht, die Katze steht"
    whole = [*tokenizer.encode([source])[0], EOS]
    monkeypatch.setattr(pipeline, "looping", lambda ids: False)
    parts = [run(engine, tokenizer.decode([h[:-1]])[0].encode()).strip() for h in halves(tokenizer, whole)]
    expected = b" ".join(filter(None, parts))
    asked: list[list[int]] = []

    def once(ids: list[int]) -> bool:
        asked.append(ids)
        return len(asked) == 1  # the whole line's translation; its source is asked about next

    monkeypatch.setattr(pipeline, "looping", once)
    assert run(engine, source.encode() + b"\n").strip() == expected
    assert "1 translations were empty or repeated themselves" in capsys.readouterr().err


# ---- formats


def test_json_lines_hold_what_adds_up(engine: Engine) -> None:
    found = records(run(engine, b"der Hund\n\ndie Katze ist rot\n", TranslateOptions(format="jsonl", n_best=2)))
    assert [record["line"] for record in found] == [1, 2, 3]
    text = run(engine, b"der Hund\n\ndie Katze ist rot\n").decode().split("\n")
    for record, line in zip(found, text, strict=False):
        hypotheses = record["hypotheses"]
        assert len(hypotheses) == 2
        assert hypotheses[0]["score"] >= hypotheses[1]["score"]
        assert hypotheses[0]["text"] == line
        for h in hypotheses:
            assert len(h["tokens"]) == len(h["token_log_probabilities"])
            assert h["log_probability"] == pytest.approx(math.fsum(h["token_log_probabilities"]), abs=1e-5)
            assert not h["tokens"] or h["tokens"][-1] == "</s>"


def n_best_engine(engine: Engine, best: int) -> Engine:
    return replace(engine, settings=replace(engine.settings, best=best, beam=max(best, 2)))


def test_n_best_lists_have_n_lines_each(engine: Engine) -> None:
    out = run(n_best_engine(engine, 3), b"der Hund\n\nrot\n", TranslateOptions(n_best=3)).decode().split("\n")[:-1]
    fields = [line.split(" ||| ") for line in out]
    assert [field[0] for field in fields] == [str(i) for i in range(3) for _ in range(3)]
    scores = [float(field[2]) for field in fields]
    assert all(scores[i] >= scores[i + 1] for i in (0, 1, 6, 7))


def test_scores_of_pairs_are_those_of_the_search(engine: Engine, model: Path, tmp_path: Path) -> None:
    lines = b"der Hund geht\n\ndie Katze ist rot\nein Baum\n" * 5
    (tmp_path / "in").write_bytes(lines)
    found = records(run(engine, lines, TranslateOptions(format="jsonl")))
    (tmp_path / "out").write_text("".join(f"{record['hypotheses'][0]['text']}\n" for record in found))
    options = TranslateOptions(
        tmp_path / "in", tmp_path / "scores", (model,), precision="fp32", score_pairs=tmp_path / "out", format="jsonl"
    )
    assert translate(options) == 0
    tokenizer, same = tokenizer_of(engine), 0
    for record, searched in zip(records((tmp_path / "scores").read_bytes()), found, strict=True):
        best = searched["hypotheses"][0]
        if best["tokens"] == record["tokens"]:  # other pieces may spell the same text
            same += 1
            assert record["log_probability"] == pytest.approx(best["log_probability"], abs=1e-4)
            assert record["score"] == pytest.approx(best["score"], abs=1e-4)
    assert tokenizer.vocabulary_size
    (tmp_path / "out").write_text("eins\nzwei\n")
    with pytest.raises(DataError, match="ends after line 2"):
        translate(options)


def test_prefixes_begin_their_lines(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "prefixes").write_text("das Haus\n\nrot und\n")
    out = (
        run(engine, b"der Hund\ndie Katze\nein Baum\n", TranslateOptions(prefix=tmp_path / "prefixes"))
        .decode()
        .split("\n")
    )
    free = run(engine, b"der Hund\ndie Katze\nein Baum\n").decode().split("\n")
    assert out[0].startswith("das Haus")
    assert out[1] == free[1]
    assert out[2].startswith("rot und")
    with pytest.raises(DataError, match="fewer lines"):
        run(engine, b"a\nb\nc\nd\n", TranslateOptions(prefix=tmp_path / "prefixes"))


@pytest.mark.parametrize("beam", [1, 2])
def test_a_prefix_longer_than_the_model_can_count_is_cut(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str], beam: int
) -> None:
    (tmp_path / "prefixes").write_text("rot " * 500 + "\nrot und\n")
    greedy = replace(engine, settings=replace(engine.settings, beam=beam))
    out = run(greedy, b"der Hund\ndie Katze\n", TranslateOptions(prefix=tmp_path / "prefixes")).decode().split("\n")
    assert re.fullmatch("rot( rot){50,}( .*)?", out[0])
    assert out[1].startswith("rot und")
    assert len(out) == 3
    assert "1 prefixes were longer than the model's 128 pieces" in capsys.readouterr().err


def test_hundreds_of_samples_all_have_random_numbers_of_their_own() -> None:
    line, part = Line(1, "x", [], 300), Part([5, EOS])
    queue = Pipeline(
        LineReader(memory_file()),
        None,
        None,
        pipeline.Cutting(False, 9, 9, False, False, 300),
        None,  # type: ignore[arg-type]
    )
    queue._queue.extend((line, replace(part, place=place), sample) for place in (0, 1, 70_000) for sample in range(300))
    queue._pending.append(line)
    sources = queue.sources()
    assert len({next(sources).key for _ in range(900)}) == 900  # type: ignore[union-attr]


def test_samples_do_not_depend_on_company_or_workers(engine: Engine) -> None:
    draw = Sampling(top_k=20, seed=3)
    sampler = replace(engine, settings=replace(engine.settings, beam=1, best=1, sampling=draw))
    options = TranslateOptions(sampling=draw, n_best=2)
    data = b"der Hund\nder Hund\n\ndie Katze ist rot\n"
    one = run(sampler, data, options).decode()
    assert run(sampler, data, replace(options, workers=2)).decode() == one
    lines = one.split("\n")[:-1]
    assert len(lines) == 8
    assert lines[0][4:] != lines[2][4:]  # the same source on another line has numbers of its own
    assert run(sampler, data + b"rot\n" * 50, options).decode().startswith(one)


def test_attention_adds_up_and_sees_no_future(engine: Engine) -> None:
    source, target = [5, 6, 7, EOS], [8, 9, EOS]
    weights = attention_weights(engine.models[0], torch.float32, source, target)
    assert {k: tuple(v.shape) for k, v in weights.items()} == {
        "encoder": (2, 2, 4, 4), "decoder": (2, 2, 3, 3), "cross": (2, 2, 3, 4)
    }  # fmt: skip
    for tensor in weights.values():
        assert torch.allclose(tensor.sum(-1), torch.ones(tensor.shape[:-1]), atol=1e-5)
    assert weights["decoder"].triu(1).abs().max() == 0


def test_alignments_name_words_that_there_are(engine: Engine, tmp_path: Path) -> None:
    options = TranslateOptions(split=False, alignments=True, attention=tmp_path / "attention.safetensors")
    mask = os.umask(0o027)
    out = run(engine, b"der Hund sieht die Katze\n\n", options).decode().split("\n")
    os.umask(mask)
    assert (tmp_path / "attention.safetensors").stat().st_mode & 0o777 == 0o640
    text, _, pairs = out[0].rpartition(" ||| ")
    points = [tuple(map(int, pair.split("-"))) for pair in pairs.split()]
    assert points
    assert all(a < 5 and b < len(text.split(" ")) for a, b in points)
    assert {b for _, b in points} == set(range(max(b for _, b in points) + 1))
    assert out[1] == " ||| "
    stored = load_file(tmp_path / "attention.safetensors")
    assert set(stored) == {f"1.0.{kind}" for kind in ("encoder", "decoder", "cross", "source", "target")}


# ---- the command


def test_the_model_is_named_or_in_the_environment_or_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NMT_MODEL", raising=False)
    with pytest.raises(MissingError, match="nmt reproduce"):
        choose_models([])
    for age, name in enumerate(("new", "old", "older")):
        manifest = tmp_path / "runs" / name / "model" / "manifest.json"
        manifest.parent.mkdir(parents=True)
        manifest.write_text("{}")
        os.utime(manifest, ns=(10**18 - age, 10**18 - age))
    console.set_quiet(False)
    assert choose_models([]) == (Path("runs/new/model"),)
    assert "model: runs/new/model" in capsys.readouterr().err
    monkeypatch.setenv("NMT_MODEL", "elsewhere")
    assert choose_models([]) == (Path("elsewhere"),)
    assert choose_models([Path("a"), Path("b")]) == (Path("a"), Path("b"))


def test_a_file_appears_when_it_is_complete(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"der Hund\n\nrot")
    options = TranslateOptions(tmp_path / "in", tmp_path / "out", (model,), precision="fp32")
    assert translate(options) == 0
    assert (tmp_path / "out").read_bytes().count(b"\n") == 3
    assert not (tmp_path / "out.part").exists()
    (tmp_path / "in").write_bytes(b"der Hund\n\xff\n")
    (tmp_path / "out").unlink()
    with pytest.raises(DataError):
        translate(replace(options, strict=True))
    assert {path.name for path in tmp_path.iterdir()} == {"in"}


def test_all_lines_at_once_are_those_of_the_command(model: Path, engine: Engine) -> None:
    lines = ["der Hund", "", "die Katze ist rot"]
    assert (
        translate_all(model, lines)
        == run(prepare_engine(TranslateOptions(models=(model,))), "\n".join(lines).encode()).decode().split("\n")[:-1]
    )


def test_one_line_needs_no_compiler_of_torch(model: Path) -> None:
    """What is imported is most of the time to the first line: torch's compiler takes as long as torch."""
    heavy = ("torch._dynamo", "torch._inductor", "sympy", "accelerate", "pyarrow", "sacrebleu")
    code = (
        "import sys\nfrom nmt_cli.cli import app\n"
        f"app(['translate', '--model', {str(model)!r}, '--workers', '1', '-q'], standalone_mode=False)\n"
        f"sys.exit(str([name for name in {heavy} if name in sys.modules]))"
    )
    root = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, input=b"der Hund\n", capture_output=True
    )
    assert done.stderr.decode().endswith("[]\n")
    assert done.stdout.count(b"\n") == 1


def test_an_ensemble_needs_one_tokenizer(model: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path / "same", seed=2)
    engine = prepare_engine(TranslateOptions(models=(model, other), precision="fp32"))
    assert run(engine, b"der Hund\n").count(b"\n") == 1
    other = make_model(tmp_path / "other", seed=2)
    (other / "tokenizer.model").write_bytes((other / "tokenizer.model").read_bytes() + b"\x00")
    with pytest.raises(DataError):
        prepare_engine(TranslateOptions(models=(model, other)))


def test_int8_translates_too(model: Path) -> None:
    engine = prepare_engine(TranslateOptions(models=(model,), precision="int8"))
    assert run(engine, b"der Hund\n\nrot\n").count(b"\n") == 3


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (TranslateOptions(precision="fp8"), UsageError, "--precision must be one of"),
        (TranslateOptions(format="xml"), UsageError, "--format must be one of"),
        (TranslateOptions(beam=2, n_best=3), UsageError, "--n-best 3 needs --beam 3"),
        (TranslateOptions(n_best=5000, sampling=Sampling()), UsageError, "at most 4,096 translations"),
        (TranslateOptions(input=Path("absent")), MissingError, "no file absent"),
        (TranslateOptions(score_pairs=Path("absent"), n_best=2), UsageError, "--score-pairs"),
        (TranslateOptions(input=Path("/"), output=Path("absent/out")), OutputError, "no directory absent"),
    ],
)
def test_contradictions_are_refused_before_a_model_is_loaded(
    options: TranslateOptions, error: type[Exception], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=re.escape(words)):
        translate(options)


# ---- several processes


def launched(arguments: list[str], model: Path, **more: object) -> subprocess.CompletedProcess[bytes]:
    """Run nmt in two processes on the CPU. (With --cpu, accelerate would start one.)"""
    surroundings = {"PYTHONPATH": str(Path(__file__).parent.parent), "NMT_MODEL": str(model), "OMP_NUM_THREADS": "1"}
    launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0"]
    return subprocess.run(
        [sys.executable, *launch, "-m", "nmt_cli", *arguments],
        env={**os.environ, **surroundings, "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        **more,  # type: ignore[call-overload]
    )


@pytest.mark.timeout(300)
def test_a_launched_job_gives_the_file_of_one_process(model: Path, engine: Engine, tmp_path: Path) -> None:
    """Lines come through a pipe, which only the first process reads."""
    data = b"".join(b"der Hund %d sieht die Katze %d\n\n\xff rot\n" % (i, i * 7) for i in range(100))
    out = tmp_path / "out"
    arguments = ["translate", "--format", "jsonl", "--precision", "fp32", "--alignments", "--output", str(out)]
    done = launched(arguments, model, input=data)
    assert done.returncode == 0, done.stderr.decode()
    options = TranslateOptions(format="jsonl", alignments=True, workers=1)
    ours, theirs = records(run(engine, data, options)), records(out.read_bytes())
    assert [record["line"] for record in theirs] == list(range(1, 301))
    for record, other in zip(ours, theirs, strict=True):
        (a,), (b,) = record["hypotheses"], other["hypotheses"]
        assert (a["text"], a["tokens"], a["alignment"]) == (b["text"], b["tokens"], b["alignment"])
        assert a["score"] == pytest.approx(b["score"], abs=1e-5)
    assert done.stderr.count(b"model: ") == 1
    assert done.stderr.count(b"100 lines are not UTF-8") == 1
    assert not list(tmp_path.glob("*.part"))


def test_all_processes_of_a_job_search(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that joins is handed sentences, its errors are raised, and a stranger's silence is an error."""
    monkeypatch.setenv("MASTER_PORT", str(os.getpid()))
    sources = [Source([*ids, EOS]) for ids in engine.tokenizer.encode([f"der Hund {i}" for i in range(60)])]

    def both() -> None:
        serve(joined(), engine.models, engine.dtype, engine.settings, "cpu")

    def bad() -> None:
        with joined() as connection, telling(connection):
            raise UsageError("no such arithmetic here")

    for other, refused in ((both, False), (bad, True)):
        second = workers._fork(other, [])
        try:
            with gathered(2, both) as connections:
                found = parallel_search(connections, iter(sources), engine.settings, cuda=False)
                if refused:
                    with pytest.raises(UsageError, match="no such arithmetic here"):
                        dict(found)
                else:
                    assert len(dict(found)) == 60
        finally:
            os.waitpid(second, 0)
    monkeypatch.setattr(workers, "PATIENCE_SECONDS", 0.1)
    with pytest.raises(StorageError, match=r"only [01] of 2 processes came"), gathered(2, both):
        pass
    with pytest.raises(StorageError, match="first process of the job did not come"):
        joined()


@pytest.mark.parametrize(
    ("options", "surroundings", "words"),
    [
        (TranslateOptions(workers=2), {}, "leave out --workers"),
        (TranslateOptions(), {"LOCAL_WORLD_SIZE": "1"}, "the processes of one machine"),
    ],
)
def test_what_a_launched_job_cannot_do_is_refused(
    options: TranslateOptions, surroundings: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", **surroundings}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=words):
        translate(options)


def test_given_translations_are_scored_by_the_first_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert translate(TranslateOptions(score_pairs=Path("absent"))) == 0
