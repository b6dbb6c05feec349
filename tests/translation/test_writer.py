"""Formats, word alignments and messages of the translate command."""

import math
import os
import re
from collections import Counter
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_model import content, memory_file
from translators import one_by_one, parts_of, records, run, translator_by

from nmt_cli import Terms, Translator
from nmt_cli.corpus.readers import MAX_LINE_BYTES
from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.system import console
from nmt_cli.system.errors import UsageError
from nmt_cli.transformer.attention_scores import attention_scores
from nmt_cli.transformer.weights import load_model
from nmt_cli.translation.segments import Hypothesis, Segment
from nmt_cli.translation.writer import alignment, report, write_lines


def test_a_line_is_written_whole_to_a_pipe_that_takes_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    target, write = memory_file(), os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:3]))
    write_lines(target, ("für das Haus", "", "rot"))
    assert content(target).decode() == "für das Haus\n\nrot\n"


def test_lines_are_written_together_in_blocks_of_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe takes up to PIPE_BUF bytes at once. Only a block with a longer line may be taken in parts."""
    blocks = list[bytes]()

    def write(_: int, data: memoryview) -> int:
        blocks.append(bytes(data))
        return len(data)

    monkeypatch.setattr(os, "write", write)
    lines = ["a" * 1023] * 5 + ["", "ü" * 3000, "b"]
    write_lines(1, lines)
    assert b"".join(blocks).decode() == "".join(f"{line}\n" for line in lines)
    assert list(map(len, blocks)) == [4096, 1025, 6001, 2]
    write_lines(1, [])
    assert len(blocks) == 4


def test_json_lines_and_n_best_lists_add_up(translator: Translator) -> None:
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
    assert len(set(alignments)) > 1, "each alignment is that of its own hypothesis"
    (wider,) = translator.translate(["der Hund"], n_best=5)  # wider than the recipe's beam
    assert len({tuple(h.ids) for h in wider.hypotheses}) == 5
    for options in ({"beam": 1}, {"beam": 0}, {"alpha": -1}, {"n_best": 0}):
        with pytest.raises(UsageError, match=next(iter(options))):
            run(translator, data, **{"n_best": 2, **options})


def test_text_is_written_unchanged_and_counted(echo: Translator, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(echo, "für\n\n안녕 rot\n".encode(), format="jsonl").decode()
    assert [record["hypotheses"][0]["text"] for record in records(out.encode())] == ["für", "", "안녕 rot"]
    assert '"text": "für"' in out
    assert '"text": "안녕 rot"' in out
    tokens = sum(map(len, echo.tokenizer.encode(["für", "안녕 rot"])))
    assert re.search(f"^3 lines, {tokens} tokens in [0-9.]+ s, ", capsys.readouterr().err, re.MULTILINE)
    run(echo, b"rot\n")
    assert capsys.readouterr().err.startswith("1 line, ")


def test_messages_count_losses_and_repetitions(capsys: pytest.CaptureFixture[str]) -> None:
    """Losses are warnings, which even a quiet command prints. Counts of 0 are not printed."""
    expected = [
        ("nmt: warning: 1,001 lines are not UTF-8 (first: line 2,007)", "invalid"),
        (f"nmt: warning: 1,002 lines were over {MAX_LINE_BYTES:,} bytes and were cut", "huge"),
        ("nmt: warning: 1,003 lines or prefixes were longer than the model's 4,096 tokens", "cut"),
        ("nmt: warning: 1,004 terms are missing from translations", "unsaid"),
        ("1,005 segments were searched again with constraints", "constrained"),
        ("1,006 lines longer than training lines were split", "split"),
        ("1,007 segments were translated again in two halves", "retried"),
    ]
    counts = Counter({name: number for number, (_, name) in enumerate(expected, 1001)}, **{"first invalid": 2007})
    report(counts, 4096)
    lines = capsys.readouterr().err.split("\n")[:-1]
    assert [line.startswith(begin) for line, (begin, _) in zip(lines, expected, strict=True)] == [True] * 7, lines
    console.set_quiet(True)
    report(counts, 4096)
    assert capsys.readouterr().err.split("\n")[:-1] == lines[:4]
    report(Counter({"split": 0, "invalid": 0}), 4096)
    assert capsys.readouterr().err == ""


def test_a_count_of_one_is_singular(capsys: pytest.CaptureFixture[str]) -> None:
    names = "invalid", "huge", "cut", "unsaid", "untranslated", "corrected", "constrained", "split", "retried"
    report(Counter({"first invalid": 7, **dict.fromkeys(names, 1)}), 4096)
    assert capsys.readouterr().err.split("\n")[:-1] == [
        "nmt: warning: 1 line is not UTF-8 (first: line 7): its invalid bytes were replaced",
        f"nmt: warning: 1 line was over {MAX_LINE_BYTES:,} bytes and was cut while it was read",
        "nmt: warning: 1 line or prefix was longer than the model's 4,096 tokens and was cut",
        "nmt: warning: 1 term is missing from translations: the search found no hypothesis with it",
        "nmt: warning: 1 sentence or part of it was left untranslated: the model repeated itself or did not end",
        "1 line had typos that were corrected (--spelling off keeps them)",
        "1 segment was searched again with constraints, because a term was missing",
        "1 line longer than training lines was split at sentence ends and rejoined",
        "1 segment was translated again in two halves, because its translation was empty, repetitive or far too long",
    ]


def test_alignments_follow_the_sharpest_attention(translator: Translator, model: Path) -> None:
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
    assert alignment(source, parts) == "0-0 0-2 0-4 1-1 2-3 3-5", "words are counted over all segments"


def test_alignments_of_several_segments_count_words_of_several_tokens() -> None:
    target = SimpleNamespace(tokens=lambda ids: [["", "\u2581a", "b"][each] for each in ids])
    source: Any = SimpleNamespace(tokens=target.tokens, language=lambda ids: [], target=target)
    hypothesis = Hypothesis([1, 2], -1.0, -1.0, [-1.0], source_positions=[0, 1])
    assert alignment(source, [([1, 2, EOS], hypothesis)] * 2) == "0-0 1-1"


def test_each_hypothesis_has_the_forms_of_its_own_text(model: Path) -> None:
    def find(_: Segment) -> list[Hypothesis]:
        found = translator.tokenizer.encode(["die Katze", "das Haus", "rot"])
        return [Hypothesis(ids, -1.0, -1.0, [-1.0] * (len(ids) + 1)) for ids in found]

    with translator_by(model, one_by_one(find)) as translator:
        terms = Terms.parse(["Hund\tKatze|Haus"])
        [line] = records(run(translator, b"der Hund\n", format="jsonl", n_best=3, terms=terms))
        assert [each["terms"] for each in line["hypotheses"]] == [{"Hund": "Katze"}, {"Hund": "Haus"}, {"Hund": None}]
