"""score: the number that can be compared, what it may be compared with, and a gate for CI.

sacreBLEU with its signature, chrF and TER, the paper's own BLEU, and sacreBLEU's significance tests. Lists of lines
go in and unequal counts are refused: sacreBLEU's library cuts to the shorter side without a word.
"""

import bisect
import difflib
import json
import logging
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nmt_cli import __version__, artefact, console, recipe
from nmt_cli.errors import DataError, DownloadError, OutputError, UsageError, from_os_error, printable
from nmt_cli.parsing import trees
from nmt_cli.parsing.brackets import SIGNATURE, compare, corpus_brackets
from nmt_cli.scoring import paper_bleu as paper
from nmt_cli.scoring import report as reports
from nmt_cli.scoring.inputs import METRICS, ScoreOptions, Text, read, read_corpus, split_lines

SIGNIFICANT = 0.05  # the p-value below which --fail-if-worse fails
DOWNLOAD_SECONDS = 60.0
LENGTHS = (10, 20, 30, 40, 50)  # upper ends of ranges of ten words of the reference
# What detokenised text hardly ever holds: a stop cut off, Moses' entities, BPE and SentencePiece marks.
TOKENISED = re.compile(r" [.,](?:\s|$)|&(?:quot|apos|amp|#\d+);|@@ |@-@|▁")


@dataclass(frozen=True)
class _Inputs:
    hypotheses: Text
    references: list[Text]
    source: Text | None
    baseline: Text | None
    language: str | None


def _test_set(name: str, pair: str | None) -> tuple[Path, list[Path]]:
    """Return the source and reference files of a test set that sacreBLEU knows, downloading them at first use."""
    from sacrebleu.dataset import DATASETS
    from sacrebleu.utils import SACREBLEU_DIR

    if name not in DATASETS:
        near = ", ".join(difflib.get_close_matches(name, DATASETS, 3)) or "wmt14/full"
        raise UsageError(f"no test set {printable(name, 40)!r}. Did you mean {near}?")
    dataset: Any = DATASETS[name]
    if pair not in dataset.langpairs:
        raise UsageError(f"test set {name} needs --language-pair: one of {', '.join(sorted(dataset.langpairs))[:150]}")
    logging.getLogger("sacrebleu").setLevel(logging.CRITICAL)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_SECONDS)
    try:
        return Path(dataset.get_source_file(pair)), [Path(file) for file in dataset.get_reference_files(pair)]
    except (Exception, SystemExit) as error:  # sacreBLEU lets through whatever urllib, tarfile and its lock raise
        cause = printable(getattr(error, "reason", None) or error, 60)
        raise DownloadError(
            f"test set {name} {pair} is not in {SACREBLEU_DIR} and {(dataset.data or ['it'])[0]} could not be fetched "
            f"({cause}). Run again with a network, copy that directory from elsewhere, or use --reference"
        ) from None
    finally:
        socket.setdefaulttimeout(before)


def _references(options: ScoreOptions) -> tuple[list[Text], Text | None, str | None]:
    """Return references, source where there is one, and the language of the references where it is known."""
    if options.corpus is not None:
        source, target, language = read_corpus(options.corpus, options.split)
        return [target], source, language
    pair_target = (options.language_pair or "").partition("-")[2] or None
    if options.test_set is not None:
        src, refs = _test_set(options.test_set, options.language_pair)
        return [read(path) for path in refs], read(src), pair_target
    return [read(path) for path in options.references], read(options.source) if options.source else None, pair_target


def source_lines(options: ScoreOptions) -> list[str]:
    """Return the lines to translate first, where `score` is given a model instead of hypotheses.

    Raises:
        UsageError: nothing names a source.
    """
    options.check()
    source = _references(options)[1]
    if source is None:
        raise UsageError("--model needs something to translate: --corpus, --test-set or --source FILE")
    return source.lines


def _gather(options: ScoreOptions, hypotheses: list[str] | None) -> _Inputs:
    """Read everything and refuse what cannot be scored."""
    references, source, language = _references(options)
    if hypotheses is None:
        given = read(options.hypothesis)
    else:
        given = split_lines("".join(f"{line}\n" for line in hypotheses).encode(), "the model's output")
    baseline = read(options.baseline) if options.baseline else None
    if "brackets" in (options.metrics or _metrics_of(options.language or language)):
        language = recipe.TREES
        written = [line.lstrip() for line in given.lines if line.strip()]
        if written and all(line.startswith("(") for line in written):
            raise DataError(f"{given.name} holds trees in brackets. Give lines of labels, as nmt translate writes them")
        references, source = _linearised(references, source)
    others = [*references, *(text for text in (source, baseline) if text)]
    if not any(given.lines) and not any(any(text.lines) for text in references):
        raise DataError(f"nothing to score: {given.name} and {references[0].name} are empty")
    if any(len(text.lines) != len(given.lines) for text in others):
        counts = ", ".join(f"{text.name}: {len(text.lines):,}" for text in [given, *others])
        raise DataError(f"line counts differ ({counts}). Line n of every file must be the same sentence")
    return _Inputs(given, references, source, baseline, options.language or language)


def _linearised(gold: list[Text], source: Text | None) -> tuple[list[Text], Text | None]:
    """Return a file of bracketed trees as what `prepare` makes of it, with its words as source; linear forms stay."""
    text = gold[0]
    if not next((line for line in text.lines if line.strip()), "").lstrip().startswith("("):
        return gold, source
    sentences = list(trees.read(text.lines, text.name))
    words, labels = ([" ".join(side) for side in sides] for sides in zip(*sentences, strict=True))
    return [replace(text, lines=labels)], source or replace(text, lines=words)


def _metric(name: str, references: Sequence[Sequence[str]], options: ScoreOptions) -> Any:
    """Return sacreBLEU's metric with its references prepared; for the paper's BLEU, one that takes its tokens."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if name == "bleu":
        return BLEU(tokenize=options.tokenize, lowercase=options.lowercase, force=True, references=references)
    if name == "chrf":
        return CHRF(lowercase=options.lowercase, references=references)
    if name == "ter":
        return TER(references=references)
    return BLEU(tokenize="none", smooth_method="none", force=True, references=references)


def _corpus_score(name: str, hypotheses: list[str], references: Sequence[list[str]]) -> tuple[float, str]:
    if not hypotheses or any(len(lines) != len(hypotheses) for lines in references):
        counts = ", ".join(f"{len(lines):,}" for lines in references)
        raise DataError(f"cannot score {len(hypotheses):,} hypotheses against {counts} references")
    metric = _metric(name, references, ScoreOptions())
    return float(metric.corpus_score(hypotheses, None).score), str(metric.get_signature())


def corpus_bleu(hypotheses: list[str], *references: list[str]) -> tuple[float, str]:
    """Return sacreBLEU's BLEU (13a, cased, 0 to 100) of detokenised lines, and its signature.

    Raises:
        DataError: no lines, or unequal numbers of them.
    """
    return _corpus_score("bleu", hypotheses, references)


def corpus_chrf(hypotheses: list[str], *references: list[str]) -> tuple[float, str]:
    """Return sacreBLEU's chrF2 (0 to 100) and its signature; as `corpus_bleu`."""
    return _corpus_score("chrf", hypotheses, references)


def _compute(name: str, inputs: _Inputs, options: ScoreOptions) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return one metric's score with all that is said of it, and its comparison with the baseline."""
    last = 1 + len(inputs.references)
    texts = [inputs.hypotheses.lines, *(text.lines for text in inputs.references)]
    texts += [inputs.baseline.lines] if inputs.baseline else []
    entry: dict[str, Any] = {"metric": name, "name": METRICS[name]}
    metric: Any = None
    if name == "brackets":
        counts = corpus_brackets(texts[0], texts[1])
        entry |= {"score": counts.f1, "signature": SIGNATURE, "precision": counts.precision, "recall": counts.recall}
        entry |= {"complete_match": 100 * counts.complete / counts.sentences, **vars(counts)}
    elif name.startswith("paper"):
        language, fold = inputs.language or "", name.endswith("quotes")
        tokens = [[paper.prepare_line(line, language, fold_quotes=fold) for line in lines] for lines in texts]
        exact = paper.multi_bleu(*tokens[:last])
        lengths = exact.hypothesis_length, exact.reference_length
        entry |= {"score": exact.score, "signature": paper.signature(language, last - 1, fold_quotes=fold)}
        entry |= {"precisions": list(exact.precisions), "bp": exact.brevity_penalty}
        if inputs.baseline:
            texts = [[line.decode() for line in lines] for lines in tokens]
            metric = _metric(name, texts[1:last], options)
    else:
        metric = _metric(name, texts[1:last], options)
        score = metric.corpus_score(texts[0], None)
        entry |= {"score": float(score.score), "signature": str(metric.get_signature())}
        if name == "bleu":
            lengths = score.sys_len, score.ref_len
            entry |= {"precisions": [float(value) for value in score.precisions], "bp": float(score.bp)}
    if "precisions" in entry:
        ratio = lengths[0] / lengths[1] if lengths[1] else None
        entry |= {"length_ratio": ratio, "hyp_len": lengths[0], "ref_len": lengths[1]}
    entry["compare_with"] = reports.comparable(entry, inputs.language)
    return entry, _significance(name, metric, texts[last], texts[0]) if inputs.baseline else None


def _significance(name: str, metric: Any, baseline: list[str], hypotheses: list[str]) -> dict[str, Any]:
    """Compare with the baseline by sacreBLEU's paired bootstrap and approximate randomisation."""
    from sacrebleu.significance import PairedTest

    row: dict[str, Any] = {"metric": name, "name": METRICS[name]}
    for test in ("bs", "ar"):
        paired: Any = PairedTest([("baseline", baseline), ("this", hypotheses)], {name: metric}, None, test)
        signatures, results = paired()
        old, new = results[next(iter(signatures))]
        row |= {f"p_{test}": float(new.p_value), f"signature_{test}": str(next(iter(signatures.values())))}
        if test == "bs":
            row |= {"baseline": float(old.score), "score": float(new.score), "difference": float(new.score - old.score)}
            row |= {"baseline_ci": float(old.ci), "score_ci": float(new.ci)}
    worse = row["difference"] > 0 if name == "ter" else row["difference"] < 0
    return row | {"significantly_worse": worse and row["p_bs"] < SIGNIFICANT}


def _segments(inputs: _Inputs, brackets: bool) -> list[dict[str, Any]]:
    """Return every segment with its texts, sentence BLEU and chrF2, the baseline's, and `brackets` where wanted."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf = BLEU(effective_order=True), CHRF()
    segments = []
    for i, hypothesis in enumerate(inputs.hypotheses.lines):
        references = [text.lines[i] for text in inputs.references]
        segment: dict[str, Any] = {"line": i + 1, "hypothesis": hypothesis, "references": references}
        segment["bleu"] = float(bleu.sentence_score(hypothesis, references).score)
        segment["chrf"] = float(chrf.sentence_score(hypothesis, references).score)
        if inputs.source:
            segment["source"] = inputs.source.lines[i]
        if inputs.baseline:
            segment["baseline"] = inputs.baseline.lines[i]
            segment["baseline_chrf"] = float(chrf.sentence_score(segment["baseline"], references).score)
        if brackets:
            segment |= {"brackets": vars(compare(hypothesis, references[0])), "tree": _tree(segment)}
        segments.append(segment)
    return segments


def _tree(segment: dict[str, Any]) -> str | None:
    """Return a hypothesis as bracketed tree; None where the words are not known or it is no tree of as many words."""
    words = segment["source"].split(" ") if segment.get("source") else []
    try:
        return trees.bracketed(trees.Sentence(words, segment["hypothesis"].split()))
    except ValueError:
        return None


def _lengths(segments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return BLEU for each range of reference lengths that occurs."""
    buckets: dict[int, list[dict[str, Any]]] = {}
    for segment in segments:
        words = len(segment["references"][0].split())
        buckets.setdefault(bisect.bisect_left(LENGTHS, words), []).append(segment)
    names = [f"{high - 9} to {high}" for high in LENGTHS] + [f"over {LENGTHS[-1]}"]
    rows = []
    for bucket, inside in sorted(buckets.items()):
        references = [list(lines) for lines in zip(*(segment["references"] for segment in inside), strict=True)]
        score, _ = corpus_bleu([segment["hypothesis"] for segment in inside], *references)
        rows.append({"words": names[bucket], "segments": len(inside), "bleu": score})
    return rows


def _warnings(inputs: _Inputs, options: ScoreOptions) -> list[str]:
    lines = inputs.hypotheses.lines
    found = []
    marked = sum(bool(TOKENISED.search(line)) for line in lines)
    if marked * 10 > len(lines) and inputs.language != recipe.TREES:
        found.append(
            f"{marked:,} of {len(lines):,} hypotheses look tokenised (a stop cut off, &quot;, @@ or ▁). "
            "Scores of text that is not detokenised cannot be compared with anyone's"
        )
    if options.test_set == "wmt14" or (options.test_set is None and len(lines) == 2737):
        what = "wmt14 is" if options.test_set else "2,737 lines look like"
        found.append(
            f"{what} the filtered newstest2014. The paper and most others score all 3,003 lines: --test-set wmt14/full"
        )
    return found


def _gate(options: ScoreOptions, scores: list[dict[str, Any]], comparisons: list[dict[str, Any]]) -> list[str]:
    """Return why the gate fails, each reason on one line; the first metric decides."""
    failures = []
    if options.fail_under is not None and not scores[0]["score"] >= options.fail_under:
        failures.append(f"{scores[0]['name']} {scores[0]['score']:.4f} is below --fail-under {options.fail_under:g}")
    if options.fail_if_worse and comparisons[0]["significantly_worse"]:
        row = comparisons[0]
        failures.append(
            f"{row['name']} {row['score']:.2f} is significantly worse than the baseline's {row['baseline']:.2f} "
            f"(p = {row['p_bs']:.4f}, paired bootstrap)"
        )
    return failures


def _metrics_of(language: str | None) -> tuple[str, ...]:
    if language == recipe.TREES:
        return ("brackets",)
    return ("bleu", "chrf", *(["paper-bleu"] if language in ("de", "fr") else []))


def evaluate(options: ScoreOptions, hypotheses: list[str] | None = None) -> dict[str, Any]:
    """Score, and return all there is to report: JSON-like, unrounded.

    Args:
        options: what to score and how.
        hypotheses: lines in memory, scored instead of a file's.

    Raises:
        UsageError, MissingError, DataError, DownloadError: as their docstrings say.
    """
    import sacrebleu

    options.check()
    inputs = _gather(options, hypotheses)
    metrics = options.metrics or _metrics_of(inputs.language)
    if any(name.startswith("paper") for name in metrics) and inputs.language not in paper.LANGUAGES:
        raise UsageError(f"paper-bleu needs --language: one of {', '.join(paper.LANGUAGES)}")
    results = [_compute(name, inputs, options) for name in dict.fromkeys(metrics)]
    scores, comparisons = [entry for entry, _ in results], [row for _, row in results if row]
    lines, source = inputs.hypotheses.lines, inputs.source
    found: dict[str, Any] = {
        "scores": scores,
        "comparisons": comparisons,
        "empty": sum(not line.strip() for line in lines),
        "copies": sum(bool(a) and a == b for a, b in zip(lines, source.lines, strict=True)) if source else None,
        "language": inputs.language,
        "test_set": options.test_set,
        "hypotheses": inputs.hypotheses.facts(),
        "references": [text.facts() for text in inputs.references],
        "source": source.facts() if source else None,
        "baseline": inputs.baseline.facts() if inputs.baseline else None,
        "warnings": _warnings(inputs, options),
        "gated": options.fail_under is not None or options.fail_if_worse,
        "failures": _gate(options, scores, comparisons),
        "versions": {"nmt": __version__, "sacrebleu": sacrebleu.__version__},
    }
    if options.details or options.segments or inputs.baseline:
        _analyse(found, inputs, options)
    return found


def _analyse(found: dict[str, Any], inputs: _Inputs, options: ScoreOptions) -> None:
    """Add to a report what needs the score of every segment."""
    segments = _segments(inputs, any(entry["metric"] == "brackets" for entry in found["scores"]))
    if inputs.baseline:
        gains = [segment["chrf"] - segment["baseline_chrf"] for segment in segments]
        found |= {"wins": sum(gain > 0 for gain in gains), "losses": sum(gain < 0 for gain in gains)}
    if options.details:
        found["lengths"] = _lengths(segments)
        found |= reports.extremes(segments)
    if options.segments:
        rows = "".join(json.dumps(segment, ensure_ascii=False) + "\n" for segment in segments)
        try:
            artefact.replace_file(options.segments, rows.encode())
        except OSError as error:
            raise from_os_error(error) from None


def score_command(options: ScoreOptions, hypotheses: list[str] | None = None) -> int:
    """Score, print the result on stdout, and return the exit code: 0, or 1 where the gate fails."""
    found = evaluate(options, hypotheses)
    if options.format == "json":
        text = json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False)
    else:
        text = reports.markdown(found) if options.format == "markdown" else reports.text(found)
    if sys.stdout is None:
        raise OutputError("standard output is closed: there is nowhere to print the score")
    sys.stdout.buffer.write(f"{text}\n".encode(errors="backslashreplace"))
    sys.stdout.flush()
    for warning in found["warnings"]:
        console.warn(warning)
    for failure in found["failures"]:
        print(f"nmt score: gate failed: {failure}", file=sys.stderr)
    return 1 if found["failures"] else 0
