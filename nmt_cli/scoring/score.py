"""Implement `nmt score`: read inputs, compute metrics, check --fail-under and --fail-if-worse, print the report."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from sacrebleu import BLEU, CHRF

from nmt_cli.corpus import near_duplicates, store
from nmt_cli.corpus.languages import is_language
from nmt_cli.corpus.readers import split_lines
from nmt_cli.corpus.terms import Terms
from nmt_cli.corpus.tokenizer import normalize, without_first_tokens
from nmt_cli.scoring import comet
from nmt_cli.scoring.checks import hypothesis_warnings, reference_warnings, test_set_warnings
from nmt_cli.scoring.downloads import fetch
from nmt_cli.scoring.languages import tokenizer_of
from nmt_cli.scoring.metrics import METRICS, Score, score_comet, score_lines
from nmt_cli.scoring.robustness import Translate, score_damaged
from nmt_cli.scoring.score_report import (
    InputText,
    NearDuplicates,
    PairScores,
    Report,
    ScoredSegment,
    TermCounts,
    json_fields,
)
from nmt_cli.storage import artefact
from nmt_cli.system import console
from nmt_cli.system.errors import DataError, MissingError, OutputError, UsageError, meant

# The default metrics for references in these languages. In all other cases, the defaults are BLEU and chrF.
DEFAULTS = {"de": ("bleu", "chrf", "paper-bleu", "paper-bleu-quotes"), "fr": ("bleu", "chrf", "paper-bleu")}


@dataclass(frozen=True)
class ScoreOptions:
    """Options of `nmt score`. The references are files, a named test set or a prepared corpus."""

    hypothesis: Path | None = None  # None or "-": stdin
    references: tuple[Path, ...] = ()
    source: Path | None = None
    test_set: str | None = None  # sacreBLEU's name, such as wmt14/full
    language_pair: str | None = None  # such as en-de
    corpus: Path | None = None
    split: str = "test"
    language: str | None = None  # language of the hypotheses; None: from the corpus or the language pair
    metrics: tuple[str, ...] = ()  # empty: the defaults for the language, see DEFAULTS
    tokenize: str | None = None  # sacreBLEU's tokenizer; None: the default for the language
    lowercase: bool = False
    baseline: Path | None = None
    fail_under: float | None = None
    fail_if_worse: bool = False
    details: bool = False
    segments: Path | None = None
    format: str = "text"
    comet_python: Path | None = None  # a Python with unbabel-comet, or a program with the options of comet.cli.score
    comet_model: str = comet.DEFAULT_MODEL
    intervals: bool = True  # 95% intervals by bootstrap
    terms: Path | None = None  # a glossary, to report how many of its terms the hypotheses use
    robust: bool = False  # also damage the source, and score its translations (see robustness.py)


# Lines, a function that translates the source, or None. If None, `ScoreOptions.hypothesis` names the input.
Hypotheses = list[str] | Translate | None
Scorer = Callable[[ScoreOptions, list[str]], Report]


def _read(path: Path | None, lines: list[str] | None = None) -> InputText:
    if lines is not None:
        name, data = "the model's output", "".join(f"{line}\n" for line in lines).encode()
    elif path is not None and str(path) != "-":
        name, data = str(path), path.read_bytes()
    elif sys.stdin is None:
        raise MissingError("standard input is closed. Pass a file of hypotheses")
    else:
        if sys.stdin.isatty():
            console.say("reading hypotheses from the terminal, one per line. Press Ctrl-D to end")
        name, data = "standard input", sys.stdin.buffer.read()
    return InputText(name, split_lines(data, name), sha256(data).hexdigest())


def _test_set(name: str, pair: str | None) -> tuple[Path, list[Path]]:
    """Return the source file and the reference files of a sacreBLEU test set, downloaded at first use."""
    from sacrebleu.dataset import DATASETS

    if name not in DATASETS:
        advice = meant(name, DATASETS) or "To list test sets: sacrebleu --list"
        raise UsageError(f"sacreBLEU has no test set {name[:40]!r}. Names look like wmt14/full. {advice}")
    dataset: Any = DATASETS[name]
    if pair not in dataset.langpairs:
        raise UsageError(f"test set {name} needs --language-pair: one of {', '.join(sorted(dataset.langpairs))[:150]}")
    files = fetch(
        lambda: (dataset.get_source_file(pair), dataset.get_reference_files(pair)),
        f"test set {name} {pair} from {dataset.data[0]}",
        "use --reference",
    )
    return Path(files[0]), [Path(file) for file in files[1]]


def _references(options: ScoreOptions) -> tuple[list[InputText], InputText | None, str | None]:
    """Check the options. Return the references, the source if any, and the references' language if it is known."""
    if bool(options.references) + (options.test_set is not None) + (options.corpus is not None) != 1:
        raise UsageError("pass exactly one of --reference FILE, --test-set NAME and --corpus DIRECTORY")
    if unknown := next((name for name in options.metrics if name not in {*METRICS, "brackets"}), None):
        known = [*METRICS, "brackets"]
        raise UsageError(
            f"--metric must be one of {', '.join(known)}, not {unknown[:40]!r}. {meant(unknown, known)}".strip()
        )
    if options.fail_under is not None and (options.metrics[:1] == ("ter",) or not 0 <= options.fail_under <= 100):
        raise UsageError("--fail-under must be from 0 to 100. It applies to the first --metric, which cannot be ter")
    if options.language is not None and not is_language(options.language):
        raise UsageError(f"--language {options.language[:40]!r} is not a language code, such as de, zh or pt-BR")
    read = (options.hypothesis, *options.references, options.source, options.baseline, options.terms)
    if options.segments and artefact.is_one_of(options.segments, read):
        raise OutputError(f"{options.segments} is also an input. Choose another file for --segments")
    if options.terms and not (options.source or options.test_set or options.corpus):
        raise UsageError("--terms needs the source. Add --source FILE")
    if options.robust and (other := {"comet", "brackets"} & {*options.metrics}):
        raise UsageError(f"--robust does not support --metric {min(other)}. Use bleu, chrf or ter")
    if options.fail_if_worse and options.baseline is None:
        raise UsageError("--fail-if-worse needs other hypotheses to compare with. Add --baseline FILE")
    references, source = list(options.references), options.source
    if options.corpus is not None:
        if not artefact.present(options.corpus):
            raise MissingError(f"{options.corpus} is not a prepared corpus. Pass a directory that nmt prepare wrote")
        artefact.verify(options.corpus, "corpus")
        source, *references = (options.corpus / f"{options.split}.{side}" for side in ("src", "tgt"))
        if not source.is_file():
            advice = (
                f"Set corpus.{options.split}_src and corpus.{options.split}_tgt, and prepare the corpus again. "
                "Or pass --reference FILE"
            )
            raise MissingError(f"{options.corpus} has no {options.split} set. {advice}")
    elif options.test_set is not None:
        source, references = _test_set(options.test_set, options.language_pair)
    return [_read(path) for path in references], _read(source) if source else None, language_of(options)


def language_of(options: ScoreOptions) -> str | None:
    """Return the language of the hypotheses and references, if it is known."""
    if options.language is None and options.corpus is not None:
        return str(artefact.read_json(options.corpus / artefact.MANIFEST)["tgt"])
    return options.language or (options.language_pair or "").partition("-")[2] or None


def _tokenized(corpus: Path) -> bool:
    """Return whether the text of a corpus was tokenized and lowercased by Moses' rules when it was prepared."""
    return bool(artefact.read_json(corpus / artefact.MANIFEST).get("recipe", {}).get("moses"))


def _near_duplicates(corpus: Path, split: str) -> NearDuplicates | None:
    """Return the near-duplicates that `nmt prepare` found, or None if it did not look for them in this split."""
    found = artefact.read_json(corpus / "cleaning.json").get("twins") if (corpus / "cleaning.json").is_file() else None
    if not found or split not in found:
        return None
    return NearDuplicates(near_duplicates.sentence(split, found[split]), found[split])


def read_inputs(
    options: ScoreOptions, hypotheses: Hypotheses, convert: Callable[[Report], None] | None = None
) -> Report:
    """Read the inputs, and return a report without scores. `convert` may change the inputs before they are checked.

    Raise DataError if a reference has no text, or if the numbers of lines differ.
    """
    references, source, language = _references(options)
    if callable(hypotheses):
        if source is None or options.hypothesis:
            raise UsageError("--model translates the source. Pass --corpus, --test-set or --source, and no hypotheses")
        hypotheses = hypotheses(source.lines)
    scored = _read(options.hypothesis, hypotheses)
    tokenized = options.corpus is not None and _tokenized(options.corpus)
    report = Report(
        language=language, test_set=options.test_set, tokenized=tokenized,
        tokenize=options.tokenize or ("none" if tokenized else tokenizer_of(language or "")),
        lowercase=options.lowercase, hypotheses=scored, references=references, source=source,
        baseline=_read(options.baseline) if options.baseline else None,
        gated=options.fail_under is not None or options.fail_if_worse, details=options.details,
        intervals=options.intervals,
        near_duplicates=_near_duplicates(options.corpus, options.split) if options.corpus else None,
    )  # fmt: skip
    if convert:
        convert(report)
    texts = [scored, *report.references, *(text for text in (report.source, report.baseline) if text)]
    if not any(any(text.lines) for text in (scored, *references)):
        raise DataError(f"nothing to score: {scored.name} and {references[0].name} are empty")
    for text in report.references:
        if not any(line.strip() for line in text.lines):
            raise DataError(f"{text.name} has no text to compare with. Pass another reference")
    if any(len(text.lines) != len(scored.lines) for text in texts):
        counts = ", ".join(f"{text.name}: {len(text.lines):,}" for text in texts)
        raise DataError(f"line counts differ ({counts}). Line n of every file must be the same sentence")
    return report


def _scorer(report: Report) -> Callable[..., tuple[Score, dict[str, Any] | None]]:
    """Return `score_lines` with the options of a report."""
    return partial(
        score_lines, language=report.language or "", tokenize=report.tokenize,
        lowercase=report.lowercase, intervals=report.intervals,
    )  # fmt: skip


def evaluate(options: ScoreOptions, hypotheses: Hypotheses = None) -> Report:
    """Score the hypotheses, by default the file `options.hypothesis`, and return the report."""
    if options.robust and (not callable(hypotheses) or options.hypothesis):
        raise UsageError("--robust translates the damaged source. Pass --model DIR, and no hypotheses")
    report = read_inputs(options, hypotheses)
    baseline = report.baseline.lines if report.baseline else None
    hypotheses_lines = report.hypotheses.lines
    references = [text.lines for text in report.references]
    segments = list[list[float]]()
    by_pair = _lines_by_pair(options)
    default = ("bleu", "chrf") if report.tokenized or by_pair else DEFAULTS.get(report.language or "", ("bleu", "chrf"))
    for metric in dict.fromkeys(options.metrics or default):
        if metric == "comet":
            systems = [lines for lines in (hypotheses_lines, baseline) if lines is not None]
            source = list(map(without_first_tokens, report.source.lines)) if report.source else None
            scorer = comet.run_comet(options.comet_python, options.comet_model, systems, source, references)
            score, comparison = score_comet(scorer, hypotheses_lines, baseline, intervals=options.intervals)
            segments = scorer._extract_corpus_statistics(hypotheses_lines, None)
        else:
            score, comparison = _scorer(report)(metric, hypotheses_lines, references, baseline)
        report.scores.append(score)
        report.comparisons += [comparison] if comparison else []
    report.pairs += [_score_pair(report, options, *pair) for pair in by_pair.items()]
    if options.robust and callable(hypotheses):
        report.robust += _robust(report, options, hypotheses)
    finish(report, options, lambda i: {"comet": segments[i][0]} if segments else {})
    return report


def _lines_by_pair(options: ScoreOptions) -> dict[tuple[str, str], list[int]]:
    if options.corpus is None:
        return {}
    return store.lines_by_pair(artefact.read_json(options.corpus / artefact.MANIFEST), options.split)


def _score_pair(report: Report, options: ScoreOptions, pair: tuple[str, str], lines: list[int]) -> PairScores:
    """Score the lines of one language pair, with the tokenizer of its target language."""
    language = pair[1]
    tokenize = options.tokenize or ("none" if report.tokenized else tokenizer_of(language))
    hypotheses = [report.hypotheses.lines[line] for line in lines]
    references = [[text.lines[line] for line in lines] for text in report.references]
    score = partial(_scorer(report), language=language, tokenize=tokenize)
    scores = [
        score(metric, hypotheses, references)[0]
        for metric in dict.fromkeys(options.metrics or ("bleu", "chrf"))
        if metric in METRICS and metric != "comet"
    ]
    return PairScores("-".join(pair), len(lines), scores)


def _robust(report: Report, options: ScoreOptions, translate: Translate) -> list[dict[str, Any]]:
    assert report.source
    metrics = dict.fromkeys(options.metrics or ("bleu", "chrf"))
    src, tgt = (options.language_pair or "").partition("-")[0], report.language or ""
    if options.corpus is not None:
        src = str(artefact.read_json(options.corpus / artefact.MANIFEST)["src"])

    def score(hypotheses: list[str], references: list[list[str]], intervals: bool) -> list[Score]:
        return [_scorer(report)(metric, hypotheses, references, intervals=intervals)[0] for metric in metrics]

    references = [text.lines for text in report.references]
    return score_damaged(
        report.source.lines, references, report.hypotheses.lines, translate, (src, tgt), score, report.intervals
    )


def _count_terms(terms: Terms, sources: list[str], hypotheses: list[str]) -> TermCounts:
    with_terms = counted = met = 0
    for source, hypothesis in zip(sources, hypotheses, strict=True):
        found = terms.find(normalize(source))
        with_terms += bool(found)
        counted += len(found)
        met += sum(term.form_in(normalize(hypothesis)) is not None for term in found)
    return TermCounts(counted, met, with_terms)


def finish(report: Report, options: ScoreOptions, details: Callable[[int], dict[str, Any]] = lambda _: {}) -> None:
    """Add counts, warnings and failures to a report that has scores. Add segments if an option needs them.

    If --segments names a file, write the segments to it. `details(i)` returns more JSON fields for segment i.
    """
    lines = report.hypotheses.lines
    first = report.scores[0]
    report.empty = sum(not line.strip() for line in lines)
    if options.terms and report.source:
        report.terms = _count_terms(Terms.read(options.terms), report.source.lines, lines)
    if report.source:
        sources = map(without_first_tokens, report.source.lines)
        report.copies = sum(line == source != "" for line, source in zip(lines, sources, strict=True))
    if first.metric in METRICS:
        report.warnings += [*hypothesis_warnings(report), *reference_warnings(report)]
    report.warnings += test_set_warnings(report)
    if options.fail_under is not None and not first.score >= options.fail_under:
        report.failures.append(f"{first.name} {first.score:.4f} is below --fail-under {options.fail_under:g}")
    if options.fail_if_worse and (row := report.comparisons[0])["significantly_worse"]:
        scores = f"{row['name']} {row['score']:.2f} is significantly worse than the baseline's {row['baseline']:.2f}"
        report.failures.append(f"{scores} (p = {row['p_bs']:.4f}, paired bootstrap)")
    if options.details or options.segments or report.baseline:
        report.segments += _scored_segments(report, details)
    if options.segments:
        rows = "".join(json.dumps(json_fields(segment), ensure_ascii=False) + "\n" for segment in report.segments)
        artefact.replace_file(options.segments, rows.encode())


def _scored_segments(report: Report, details: Callable[[int], dict[str, Any]]) -> Iterator[ScoredSegment]:
    sentence_bleu = BLEU(effective_order=True, tokenize=report.tokenize, lowercase=report.lowercase)
    sentence_chrf = CHRF(lowercase=report.lowercase)
    for i, line in enumerate(report.hypotheses.lines):
        references = [text.lines[i] for text in report.references]
        source = report.source.lines[i] if report.source else None
        baseline = report.baseline.lines[i] if report.baseline else None
        bleu = float(sentence_bleu.sentence_score(line, references).score)
        chrf = float(sentence_chrf.sentence_score(line, references).score)
        old = None if baseline is None else float(sentence_chrf.sentence_score(baseline, references).score)
        yield ScoredSegment(i + 1, line, references, bleu, chrf, source, baseline, old, details(i))


def print_report(report: Report, format: str) -> int:
    """Print the report to stdout, and warnings and failures to stderr. Return 1 if there are failures, else 0."""
    if sys.stdout is None:
        raise OutputError("standard output is closed, so the score cannot be printed. Redirect it to a file")
    output = {"json": report.json, "markdown": report.markdown}.get(format, report.text)()
    sys.stdout.buffer.write(f"{output}\n".encode(errors="backslashreplace"))
    sys.stdout.flush()
    for warning in report.warnings:
        console.warn(warning)
    for failure in report.failures:
        print(f"nmt score: gate failed: {failure}", file=sys.stderr)
    return 1 if report.failures else 0
