"""The command `nmt score`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

import nmt_cli
from nmt_cli.commands.options import (
    METRICS,
    ScoreTerms,
    Tokenizer,
    directory_option,
    file_option,
    gate_option,
    option,
    references_option,
)
from nmt_cli.interop.named_models import model_directories


def score(
    hypothesis: Annotated[
        Path | None, typer.Argument(help="Translations, one per line; - is stdin", show_default="stdin")
    ] = None,
    model: Annotated[
        Path | None, directory_option("Translate the source with this model, and score the translations")
    ] = None,
    robust: Annotated[
        bool, option("Also score translations after changing the source: case, final stops, typos", "--robust")
    ] = False,
    metrics: Annotated[list[str] | None, option(METRICS, "--metric", default="by language", kind="NAME")] = None,
    tokenize: Annotated[Tokenizer | None, option("sacreBLEU tokenizer", default="by language")] = None,
    lowercase: Annotated[bool, option("Ignore case", "--lowercase")] = False,
    language: Annotated[
        str | None, option("Language of the translations, such as de or zh", "--language", "--to", kind="CODE")
    ] = None,
    comet_python: Annotated[Path | None, file_option("Python with unbabel-comet, for --metric comet")] = None,
    comet_model: Annotated[
        str, option("COMET model; the default is under Apache-2.0, others may restrict use", kind="NAME")
    ] = "Unbabel/wmt22-comet-da",
    intervals: Annotated[bool, option("95% confidence intervals", "--intervals/--no-intervals")] = True,
    details: Annotated[
        bool, option("Show BLEU by length and for near-duplicates, and the best and worst segments", "--details")
    ] = False,
    segments: Annotated[Path | None, file_option("Write the scores of every segment as JSON lines")] = None,
    format: Annotated[Literal["text", "json", "markdown"], option("Output format")] = "text",
    references: Annotated[
        list[Path] | None, references_option("Reference translations; repeatable", "--reference", "-r", kind="FILE")
    ] = None,
    source: Annotated[
        Path | None, references_option("Source text, for --model, --terms and COMET", kind="FILE")
    ] = None,
    test_set: Annotated[
        str | None, references_option("sacreBLEU test set, such as wmt14/full", "--test-set", "-t")
    ] = None,
    language_pair: Annotated[
        str | None, references_option("Languages of --test-set, such as en-de", "--language-pair", "-l")
    ] = None,
    corpus: Annotated[Path | None, references_option("Prepared corpus with the references", kind="DIR")] = None,
    terms: ScoreTerms = None,
    split: Annotated[Literal["dev", "test", "general"], references_option("Split of --corpus")] = "test",
    baseline: Annotated[Path | None, gate_option("Translations to compare with", kind="FILE")] = None,
    fail_under: Annotated[float | None, gate_option("Exit with 1 if the first metric is below N", kind="N")] = None,
    fail_if_worse: Annotated[
        bool, gate_option("Exit with 1 if worse than --baseline (p < 0.05)", "--fail-if-worse")
    ] = False,
) -> int:
    """Score translations with BLEU, chrF, TER or COMET.

    The references come from files, a prepared corpus or a test set that sacreBLEU downloads.
    """
    from nmt_cli.corpus.languages import match
    from nmt_cli.parsing import score as parsing
    from nmt_cli.scoring import score as scoring

    if robust and hypothesis and not source:  # the argument of `nmt score --robust FILE --model DIR` is the source
        source, hypothesis = hypothesis, None
    options = scoring.ScoreOptions(
        hypothesis=hypothesis,
        references=tuple(references or ()),
        source=source,
        test_set=test_set,
        language_pair=language_pair,
        corpus=corpus,
        split=split,
        language=language,
        metrics=tuple(name.lower() for name in metrics or ()),
        tokenize=tokenize,
        lowercase=lowercase,
        baseline=baseline,
        fail_under=fail_under,
        fail_if_worse=fail_if_worse,
        details=details,
        segments=segments,
        format=format,
        comet_python=comet_python,
        comet_model=comet_model,
        intervals=intervals,
        terms=terms,
        robust=robust,
    )

    def translate(lines: list[str]) -> list[str]:
        with nmt_cli.Translator(model_directories([model] if model else [])) as translator:
            targets = [pair.target for pair in translator.directions if pair.prefix]  # empty for a single target
            chosen = scoring.language_of(options) or ""
            # Lines of a corpus with several target languages already begin with the token of their target language.
            to = chosen if targets and (not corpus or match(chosen, targets)) else ""
            return [translation.text for translation in translator.translate(lines, target=to)]

    evaluate = parsing.evaluate if parsing.wanted(options) else scoring.evaluate
    report = evaluate(options, translate if model else None)
    return scoring.print_report(report, options.format)
