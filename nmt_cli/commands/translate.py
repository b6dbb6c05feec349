"""The command `nmt translate`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nmt_cli import documents
from nmt_cli.commands.options import (
    PRECISION,
    Case,
    CopyWordless,
    Keep,
    LineLength,
    Markup,
    Models,
    Precision,
    Prefix,
    Protect,
    ProtectPattern,
    Quiet,
    Spelling,
    TextFormat,
    Threads,
    TranslateTerms,
    file_option,
    option,
    output_option,
    sampling_option,
    search_option,
    shard_option,
)
from nmt_cli.interop.named_models import model_directories
from nmt_cli.system.errors import UsageError


def translate(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="Input file; with --shard, files, directories, patterns and URLs",
            show_default="stdin",
        ),
    ] = None,
    input: Annotated[Path | None, file_option("Input file", "--input", "-i", default="stdin")] = None,
    output: Annotated[
        str | None, file_option("Output file, kept only if complete", "--output", "-o", default="stdout")
    ] = None,
    models: Models = None,
    precision: Annotated[Precision, option(PRECISION)] = "auto",
    workers: Threads = None,
    strict: Annotated[bool, option("Fail on input that is not UTF-8", "--strict")] = False,
    quiet: Quiet = False,
    beam: Annotated[int | None, search_option("Beam size; 1 is greedy search", min=1)] = None,
    alpha: Annotated[float | None, search_option("Length penalty", min=0, max=10)] = None,
    extra_length: Annotated[int | None, search_option("Maximum output length: source + N subwords", min=1)] = None,
    split: Annotated[Literal["auto", "off"], search_option("Split long lines at sentence ends", kind="WHEN")] = "auto",
    copy_wordless: CopyWordless = None,
    case: Case = None,
    spelling: Spelling = None,
    to: Annotated[
        str, search_option("Target language, such as fr, if the model has several", kind="CODE", default="the model's")
    ] = "",
    prefix: Prefix = None,
    terms: TranslateTerms = None,
    shortlist: Annotated[
        Literal["auto", "off"],
        option(
            "Search among likely words only, if the model has a shortlist (nmt shortlist)", panel="Search", kind="WHEN"
        ),
    ] = "off",
    score_pairs: Annotated[
        Path | None, file_option("Score the translations in this file instead of translating", panel="Search")
    ] = None,
    sample: Annotated[bool, sampling_option("Sample translations instead of searching", "--sample", kind=None)] = False,
    temperature: Annotated[
        float | None, sampling_option("Below 1 favors likely subwords", default="1", min=0.01)
    ] = None,
    top_k: Annotated[
        int | None, sampling_option("Sample from the N most likely subwords", default="all", min=0)
    ] = None,
    top_p: Annotated[
        float | None,
        sampling_option("Sample from the likeliest subwords with total probability N", default="1", min=0, max=1),
    ] = None,
    seed: Annotated[int | None, sampling_option("Random seed", default="1", min=0, max=2**64 - 1)] = None,
    format: TextFormat = None,
    markup: Markup = None,
    protect: Protect = None,
    keep: Keep = None,
    protect_pattern: ProtectPattern = None,
    line_length: LineLength = 42,
    n_best: Annotated[int, output_option("Translations per line", kind="N", min=1)] = 1,
    alignments: Annotated[bool, output_option("Add word alignments of the best translation", "--alignments")] = False,
    shard: Annotated[
        str | None,
        shard_option("Run as worker I of N: translate units of the files into --output DIR", kind="I/N|auto"),
    ] = None,
    unit_lines: Annotated[int | None, shard_option("Lines per unit", kind="N", default="10,000", min=1)] = None,
    check: Annotated[str | None, shard_option("List lines that have no translation in DIR; exit with 1 if any")] = None,
    join: Annotated[str | None, shard_option("Join the units in DIR into one file per input")] = None,
) -> int:
    """Translate lines of text, a document, subtitles or a message catalog.

    For text, writes one line per input line, in order, and nothing else to stdout. Uses all cores, or all GPUs.
    """
    if check or join:
        return _finish(files or [], output, shard, check, join)
    if shard is None and unit_lines:
        raise UsageError("--unit-lines requires --shard")
    if files and input:
        raise UsageError("the input file is given twice. Leave out --input")
    if files and len(files) > 1 and not shard:
        advice = "To translate text from the command line: echo TEXT | nmt translate"
        raise UsageError(f"Unexpected argument ({' '.join(files[1:])}). {advice}. See: nmt translate --help")
    if output is not None and (not output or "://" in output or output.endswith("/")) and not shard:
        raise UsageError(f"--output must be a file, not {output!r}. To write to an object store, add --shard")
    names = files or ([str(input)] if input else [])
    file = Path(names[0]) if names else None
    plain_only = {"alignments": alignments, "prefix": prefix, "score_pairs": score_pairs, "n_best": n_best > 1}
    used = [name for name, given in plain_only.items() if given]
    reading: dict[str, Any] = {"line_length": line_length}
    if keep or protect_pattern:
        from nmt_cli.documents.kept import kept

        reading["kept"] = kept(keep, protect_pattern)
    run = documents.choose(format, None if shard else file, markup, protect, used, reading)
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    if not sample and (given := [name for name, value in sampling.items() if value is not None]):
        raise UsageError(f"--{given[0].replace('_', '-')} requires --sample")
    if sample and (beam is not None or terms):
        raise UsageError(f"--sample replaces the search. Leave out {'--terms' if terms else '--beam'}")
    from nmt_cli.corpus.terms import Terms
    from nmt_cli.translation import translate as command
    from nmt_cli.translation.options import Sampling, SearchOptions

    search = SearchOptions(
        beam=beam,
        alpha=alpha,
        extra_length=extra_length,
        split=None if split == "auto" else False,
        n_best=n_best,
        sampling=_build(Sampling, sampling) if sample else None,
        alignments=alignments,
        terms=Terms.read(terms) if terms else None,
        copy_wordless=copy_wordless,
        case=case,
        spelling=spelling,
        target=to,
        shortlist=shortlist == "auto" or None,
    )
    options = command.TranslateOptions(
        models=model_directories(models or []), search=search, precision=precision, format=format or "text",
        strict=strict, prefix=prefix, score_pairs=score_pairs, workers=workers,
        also_read=tuple(filter(None, (terms, keep))),
    )  # fmt: skip
    if shard is not None:
        marks = {"markup": markup, "protect": protect, "kept": str(reading.get("kept", ""))}
        return _work(names, output, options, shard, format, run, marks, unit_lines)
    return command.translate(replace(options, input=file, output=Path(output) if output else None), run)


def _work(
    names: list[str], output: str | None, options: Any, shard: str, text_format: str | None, run: Any,
    marks: dict[str, Any], unit_lines: int | None,
) -> int:  # fmt: skip
    """Translate this worker's share of the files. Return the exit code."""
    from nmt_cli.corpus.opening import uncompressed_name
    from nmt_cli.sharding import inputs
    from nmt_cli.system.shard import parse
    from nmt_cli.translation.sharded import ShardedTranslation

    worker = parse(shard)
    if not (names and output):
        raise UsageError(f"--shard needs {'a directory: --output DIR' if names else 'the files to translate'}")
    for name in names:
        if Path(name).is_dir() and Path(output).resolve().is_relative_to(Path(name).resolve()):
            raise UsageError(f"the output {output} is in the input directory {name}. Choose another --output")
    files = inputs.find(names)
    documents.check_lines([Path(uncompressed_name(Path(each.place))) for each in files], text_format)
    with ShardedTranslation(files, output, options, run=run, marks=marks, unit_lines=unit_lines) as job:
        return job.run(worker)


def _finish(files: list[str], output: str | None, shard: str | None, check: str | None, join: str | None) -> int:
    """Check or join the workers' units. Return the exit code."""
    from nmt_cli.translation import sharded

    if shard or (check and (join or output)):
        raise UsageError("pass only one of --shard, --check and --join, and --output only with --shard or --join")
    if not files:
        raise UsageError("--check and --join need the files that were translated")
    return sharded.check(files, check) if check else sharded.join(files, str(join), output)


def _build(kind: Any, options: dict[str, Any]) -> Any:
    """Make an instance of a dataclass. Options that are None get the default of their field."""
    return kind(**{name: value for name, value in options.items() if value is not None})
