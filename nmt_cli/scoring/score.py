"""score: the number that can be compared, what it may be compared with, and a gate for CI."""

import json
import sys
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from sacrebleu import BLEU, CHRF

from nmt_cli.corpus import twins
from nmt_cli.corpus.readers import split_lines
from nmt_cli.corpus.terms import Terms
from nmt_cli.corpus.tokenizer import normalise
from nmt_cli.scoring import comet
from nmt_cli.scoring.downloads import fetched
from nmt_cli.scoring.metrics import METRICS, TOKENISED, UNSPACED, is_language, score_comet, score_lines, tokenizer_of
from nmt_cli.scoring.report import Report, Segment, TermCounts, Text, Twins, plain
from nmt_cli.storage import artefact
from nmt_cli.system import console
from nmt_cli.system.errors import DataError, MissingError, OutputError, UsageError, meant

DEFAULTS = {"de": ("bleu", "chrf", "paper-bleu", "paper-bleu-quotes"), "fr": ("bleu", "chrf", "paper-bleu")}


@dataclass(frozen=True)
class ScoreOptions:  # references come from files, from a named test set or from a prepared corpus
    hypothesis: Path | None = None  # None or "-": standard input
    references: tuple[Path, ...] = ()
    source: Path | None = None
    test_set: str | None = None  # sacreBLEU's name, such as wmt14/full
    language_pair: str | None = None  # such as en-de
    corpus: Path | None = None
    split: str = "test"
    language: str | None = None  # of the hypotheses; default: the corpus's or the language pair's
    metrics: tuple[str, ...] = ()  # empty: those of DEFAULTS
    tokenize: str | None = None  # sacreBLEU's tokenizer; None: by language
    lowercase: bool = False
    baseline: Path | None = None
    fail_under: float | None = None
    fail_if_worse: bool = False
    details: bool = False
    segments: Path | None = None
    format: str = "text"
    comet_python: Path | None = None  # a Python with unbabel-comet, or a program with its options
    comet_model: str = comet.DEFAULT_MODEL
    intervals: bool = True  # the 95 % interval of each score, by bootstrap
    terms: Path | None = None  # whose share in the hypotheses is reported, where the source has them


# Lines, a function that translates the source into them, or None: the file that the options name.
Hypotheses = list[str] | Callable[[list[str]], list[str]] | None
Scorer = Callable[[ScoreOptions, list[str]], Report]


def _read(path: Path | None, lines: list[str] | None = None) -> Text:
    if lines is not None:
        name, data = "the model's output", "".join(f"{line}\n" for line in lines).encode()
    elif path is not None and str(path) != "-":
        name, data = str(path), path.read_bytes()
    elif sys.stdin is None:
        raise MissingError("standard input is closed. Name a file of hypotheses")
    else:
        if sys.stdin.isatty():
            console.say("reading hypotheses from the terminal, one a line; Ctrl-D ends")
        name, data = "standard input", sys.stdin.buffer.read()
    return Text(name, split_lines(data, name), sha256(data).hexdigest())


def _test_set(name: str, pair: str | None) -> tuple[Path, list[Path]]:
    """Return the source and reference files of a test set that sacreBLEU knows, downloading them at first use."""
    from sacrebleu.dataset import DATASETS

    if name not in DATASETS:
        advice = meant(name, DATASETS) or "List them: sacrebleu --list"
        raise UsageError(f"no test set {name[:40]!r}, such as wmt14/full. {advice}")
    dataset: Any = DATASETS[name]
    if pair not in dataset.langpairs:
        raise UsageError(f"test set {name} needs --language-pair: one of {', '.join(sorted(dataset.langpairs))[:150]}")
    files = fetched(
        lambda: (dataset.get_source_file(pair), dataset.get_reference_files(pair)),
        f"test set {name} {pair} from {dataset.data[0]}",
        "use --reference",
    )
    return Path(files[0]), [Path(file) for file in files[1]]


def _references(options: ScoreOptions) -> tuple[list[Text], Text | None, str | None]:
    """Return references, source where there is one, and the language of the references where it is known."""
    if bool(options.references) + (options.test_set is not None) + (options.corpus is not None) != 1:
        raise UsageError("give the references in one way: --reference FILE, --test-set NAME or --corpus DIRECTORY")
    if unknown := next((name for name in options.metrics if name not in {*METRICS, "brackets"}), None):
        known = [*METRICS, "brackets"]
        raise UsageError(
            f"--metric must be one of {', '.join(known)}, not {unknown[:40]!r}. {meant(unknown, known)}".strip()
        )
    if options.fail_under is not None and (options.metrics[:1] == ("ter",) or not 0 <= options.fail_under <= 100):
        raise UsageError("--fail-under needs a number from 0 to 100, and a first --metric of which more is better")
    if options.language is not None and not is_language(options.language):
        raise UsageError(f"--language {options.language[:40]!r} is no language code, such as de, zh or pt-BR")
    if options.terms and not (options.source or options.test_set or options.corpus):
        raise UsageError("--terms are looked for in the sources. Give them: --source FILE")
    if options.fail_if_worse and options.baseline is None:
        raise UsageError("--fail-if-worse needs --baseline FILE, the hypotheses to compare with")
    references, source = list(options.references), options.source
    language = (options.language_pair or "").partition("-")[2]
    if options.corpus is not None:
        if not artefact.present(options.corpus):
            raise MissingError(f"{options.corpus} is no prepared corpus. Name a directory that nmt prepare wrote")
        language = str(artefact.verify(options.corpus, "corpus")["tgt"])
        source, *references = (options.corpus / f"{options.split}.{side}" for side in ("src", "tgt"))
        if not source.is_file():
            advice = f"Name one by corpus.{options.split}_src and _tgt when you prepare it, or give --reference FILE"
            raise MissingError(f"{options.corpus} has no {options.split} set. {advice}")
    elif options.test_set is not None:
        source, references = _test_set(options.test_set, options.language_pair)
    return [_read(path) for path in references], _read(source) if source else None, options.language or language or None


def _by_moses(corpus: Path) -> bool:
    """Return whether the text of a corpus was tokenised and lower-cased when it was prepared."""
    return bool(artefact.read_json(corpus / artefact.MANIFEST).get("recipe", {}).get("moses"))


def _twins(corpus: Path, split: str) -> Twins | None:
    """Return what `prepare` found of this split in the training text; None where an older one did not look."""
    found = artefact.read_json(corpus / "cleaning.json").get("twins") if (corpus / "cleaning.json").is_file() else None
    return Twins(twins.sentence(split, found[split]), found[split]) if found and split in found else None


def read_inputs(
    options: ScoreOptions, hypotheses: Hypotheses, convert: Callable[[Report], None] | None = None
) -> Report:
    """Return a report without scores; a DataError says that the inputs, as `convert` changed them, do not fit."""
    references, source, language = _references(options)
    if callable(hypotheses):
        if source is None or options.hypothesis:
            raise UsageError("--model translates --corpus, --test-set or --source FILE: name one, and no hypotheses")
        hypotheses = hypotheses(source.lines)
    scored = _read(options.hypothesis, hypotheses)
    tokenised = options.corpus is not None and _by_moses(options.corpus)
    report = Report(
        language=language, test_set=options.test_set, tokenised=tokenised,
        tokenize=options.tokenize or ("none" if tokenised else tokenizer_of(language or "")),
        lowercase=options.lowercase, hypotheses=scored, references=references, source=source,
        baseline=_read(options.baseline) if options.baseline else None,
        gated=options.fail_under is not None or options.fail_if_worse, details=options.details,
        intervals=options.intervals,
        twins=_twins(options.corpus, options.split) if options.corpus else None,
    )  # fmt: skip
    if convert:
        convert(report)
    texts = [scored, *report.references, *(text for text in (report.source, report.baseline) if text)]
    if not any(any(text.lines) for text in (scored, *references)):
        raise DataError(f"nothing to score: {scored.name} and {references[0].name} are empty")
    for text in report.references:
        if not any(line.strip() for line in text.lines):
            raise DataError(f"{text.name} has no text: it is no reference. Name another")
    if any(len(text.lines) != len(scored.lines) for text in texts):
        counts = ", ".join(f"{text.name}: {len(text.lines):,}" for text in texts)
        raise DataError(f"line counts differ ({counts}). Line n of every file must be the same sentence")
    return report


def evaluate(options: ScoreOptions, hypotheses: Hypotheses = None) -> Report:
    """Score what the options name, or these hypotheses instead of a file's."""
    report = read_inputs(options, hypotheses)
    language, baseline = report.language or "", report.baseline.lines if report.baseline else None
    hypotheses_lines, references = report.hypotheses.lines, [text.lines for text in report.references]
    segments = list[list[float]]()
    default = ("bleu", "chrf") if report.tokenised else DEFAULTS.get(language, ("bleu", "chrf"))
    for metric in dict.fromkeys(options.metrics or default):
        if metric == "comet":
            systems = [lines for lines in (hypotheses_lines, baseline) if lines is not None]
            source = report.source.lines if report.source else None
            scorer = comet.make(options.comet_python, options.comet_model, systems, source, references)
            score, comparison = score_comet(scorer, hypotheses_lines, baseline, intervals=options.intervals)
            segments = scorer._extract_corpus_statistics(hypotheses_lines, None)
        else:
            score, comparison = score_lines(
                metric, hypotheses_lines, references, baseline,
                language=language, tokenize=report.tokenize, lowercase=report.lowercase, intervals=options.intervals,
            )  # fmt: skip
        report.scores.append(score)
        report.comparisons += [comparison] if comparison else []
    finish(report, options, lambda i: {"comet": segments[i][0]} if segments else {})
    return report


def _count_terms(terms: Terms, sources: list[str], hypotheses: list[str]) -> TermCounts:
    with_terms = counted = met = 0
    for source, hypothesis in zip(sources, hypotheses, strict=True):
        found = terms.find(normalise(source))
        with_terms += bool(found)
        counted += len(found)
        met += sum(term.said(normalise(hypothesis)) is not None for term in found)
    return TermCounts(counted, met, with_terms)


def finish(report: Report, options: ScoreOptions, details: Callable[[int], dict[str, Any]] = lambda _: {}) -> None:
    """Add what follows from the scores: warnings, the gate, and segments (with details) where something needs them."""
    lines, first = report.hypotheses.lines, report.scores[0]
    report.empty = sum(not line.strip() for line in lines)
    if options.terms and report.source:
        report.terms = _count_terms(Terms.read(options.terms), report.source.lines, lines)
    if report.source:
        report.copies = sum(line == source != "" for line, source in zip(lines, report.source.lines, strict=True))
    marked = sum(bool(TOKENISED.search(line)) for line in lines)
    if marked * 10 > len(lines) and first.metric in METRICS and not report.tokenised:
        what = f"{marked:,} of {len(lines):,} hypotheses look tokenised (a stop cut off, &quot;, @@ or ▁)"
        report.warnings.append(f"{what}. Compare their scores with nobody's: detokenise them first")
    unspaced = sum(bool(UNSPACED.search(line)) for line in lines)
    if unspaced * 2 > len(lines) and report.tokenize == "13a" and first.metric in METRICS:
        what = "the hypotheses look Chinese or Japanese, and tokenizer 13a takes a sentence without spaces for one word"
        report.warnings.append(f"{what}. Give --language zh or ja")
    if first.metric in METRICS:
        report.warnings += _doubtful_references(report)
    if len(lines) == 2737:
        what = "2,737 lines are the filtered newstest2014"
        report.warnings.append(f"{what}. The paper and most others score all 3,003: --test-set wmt14/full")
    if options.fail_under is not None and not first.score >= options.fail_under:
        report.failures.append(f"{first.name} {first.score:.4f} is below --fail-under {options.fail_under:g}")
    if options.fail_if_worse and (row := report.comparisons[0])["significantly_worse"]:
        scores = f"{row['name']} {row['score']:.2f} is significantly worse than the baseline's {row['baseline']:.2f}"
        report.failures.append(f"{scores} (p = {row['p_bs']:.4f}, paired bootstrap)")
    if options.details or options.segments or report.baseline:
        sentence_bleu = BLEU(effective_order=True, tokenize=report.tokenize, lowercase=report.lowercase)
        sentence_chrf = CHRF(lowercase=report.lowercase)
        for i, line in enumerate(lines):
            references = [text.lines[i] for text in report.references]
            source, baseline = (text.lines[i] if text else None for text in (report.source, report.baseline))
            bleu = float(sentence_bleu.sentence_score(line, references).score)
            chrf = float(sentence_chrf.sentence_score(line, references).score)
            old = None if baseline is None else float(sentence_chrf.sentence_score(baseline, references).score)
            report.segments.append(Segment(i + 1, line, references, bleu, chrf, source, baseline, old, details(i)))
    if options.segments:
        rows = "".join(json.dumps(plain(segment), ensure_ascii=False) + "\n" for segment in report.segments)
        artefact.replace_file(options.segments, rows.encode())


def _doubtful_references(report: Report) -> Iterator[str]:
    """Yield warnings of references that lower a score unseen; it stays sacreBLEU's."""
    for text in report.references:
        pairs = zip(text.lines, report.hypotheses.lines, strict=True)
        if empty := sum(bool(line.strip()) > bool(reference.strip()) for reference, line in pairs):
            what = f"{empty:,} of {len(text.lines):,} lines of {text.name} are empty where the hypotheses have text"
            yield f"{what}. sacreBLEU scores them as references without words, not as missing ones"
    for text in (*report.references, report.hypotheses):
        if other := sum(not unicodedata.is_normalized("NFC", line) for line in text.lines):
            what = (
                f"{other:,} of {len(text.lines):,} lines of {text.name} are not in Unicode's NFC (é is e and an accent)"
            )
            yield f"{what}. Their characters match none in NFC. Convert it: uconv -x nfc"


def print_report(report: Report, format: str) -> int:
    """Print the report on stdout, warnings and failures on stderr; return 1 where the gate fails, else 0."""
    if sys.stdout is None:
        raise OutputError("standard output is closed: there is nowhere to print the score")
    output = {"json": report.json, "markdown": report.markdown}.get(format, report.text)()
    sys.stdout.buffer.write(f"{output}\n".encode(errors="backslashreplace"))
    sys.stdout.flush()
    for warning in report.warnings:
        console.warn(warning)
    for failure in report.failures:
        print(f"nmt score: gate failed: {failure}", file=sys.stderr)
    return 1 if report.failures else 0
