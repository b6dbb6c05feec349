"""Count the pairs that each filter would drop (`nmt prepare --stats`). No files are written except downloads."""

import functools
import tempfile
from collections import defaultdict
from pathlib import Path

from nmt_cli.corpus import cleaning, filters, language_id, prepare, sources, stages
from nmt_cli.corpus.cleaning import CleaningStats
from nmt_cli.corpus.readers import Chunk
from nmt_cli.recipe import schema
from nmt_cli.recipe.cleaning import Filters
from nmt_cli.system import console
from nmt_cli.system.errors import UsageError


def show(corpus: schema.Corpus, out: Path, options: prepare.PrepareOptions) -> None:
    """Show how many pairs cleaning and each filter would drop, for each part of the training text.

    Lengths in tokens are not checked, pairs are not compared, and synthetic text is not read. The filters are applied
    to the pairs that pass the remaining checks of cleaning. A pair counts for every filter that would drop it. Filters
    that are off in the recipe are applied with the settings in filters.ADVISED.
    """
    source = sources.source_of(corpus, options.mirror)
    if corpus.format == "trees":
        raise UsageError("--stats supports text, not trees. Remove --stats")
    filters.check(corpus)
    parts = defaultdict[int, CleaningStats](CleaningStats)
    sections = dict[int, schema.Corpus]()
    with tempfile.TemporaryDirectory() as work, stages.Pool(options.processes) as pool:
        text = source.open(out.parent / "downloads", Path(work))
        chunks = prepare.with_parts(prepare.training_chunks(text, corpus.limit), [], corpus)
        with console.Progress("reading", corpus.limit or corpus.rows, "pairs") as progress:
            for part, index, stats in pool.map(functools.partial(count_faults, corpus), chunks):
                parts[part].add(stats)
                sections[part] = corpus.of_source(index)
                progress.advance(stats.read)
    names = prepare.part_names(corpus)
    for part, stats in sorted(parts.items()):
        _show_part(names[part], stats, sections[part])
    if not language_id.is_installed():
        console.say(f"the filters language and swapped need eldc. {filters.INSTALL}")


def tried(corpus: schema.Corpus) -> schema.Corpus:
    """Return the section with all filters on that support its languages.

    Filters that are off in the recipe get the settings in filters.ADVISED.
    """
    values, advised = corpus.filters.model_dump(), filters.ADVISED.model_dump()
    off = Filters().model_dump()
    changed = {name: advised[name] if value == off[name] else value for name, value in values.items()}
    if not all(map(language_id.knows, (corpus.src, corpus.tgt))):
        changed["language"] = False
    if not language_id.tells_apart(corpus.src, corpus.tgt):
        changed["swapped"] = "keep"
    return corpus.model_copy(update={"filters": Filters(**changed)})


def count_faults(corpus: schema.Corpus, chunk: Chunk) -> tuple[int, int | None, CleaningStats]:
    """Return the part number of a chunk, the index of its source, and how many pairs to drop for each reason."""
    stats = CleaningStats(len(chunk.src))
    section = tried(corpus.of_source(chunk.source))
    unfiltered = section.model_copy(update={"filters": Filters()})
    for index in range(len(chunk.src)):
        src, tgt, reason = cleaning.read_pair(section, chunk, index)
        if reason := reason or cleaning.unusable(src, tgt, unfiltered):
            stats.drop(reason, src, tgt)
            continue
        if filters.turns(src, tgt, section):
            stats.drop(filters.SWAPPED, src, tgt)
            src, tgt = tgt, src
        for reason in filters.faults(src, tgt, section):
            stats.drop(reason, src, tgt)
    return chunk.part, chunk.source, stats


def _show_part(name: str, stats: CleaningStats, section: schema.Corpus) -> None:
    current, tested = section.filters.model_dump(), tried(section).filters.model_dump()
    off = Filters().model_dump()
    rows = []
    for reason in cleaning.DROPPED:
        setting = filters.REASONS.get(reason)
        if setting and tested[setting] == off[setting]:
            continue  # the filter does not support these languages
        count = stats.dropped[reason]
        if setting or count:
            label = f"filters.{setting}: {_shown(tested[setting])}" if setting else reason
            state = "off" if setting and current[setting] == off[setting] else "on"
            share = f"{100 * count / max(1, stats.read):.2f} %"
            example = " | ".join(stats.examples[reason][0])[:70] if count else ""
            rows.append((label, state, f"{count:,}", share, example))
    title = f"{name[-60:]}: {console.counted(stats.read, 'pair')} read; a pair may have several faults"
    console.table(title, ("reason or filter", "state", "pairs dropped", "share", "example"), rows, is_result=True)


def _shown(value: object) -> str:
    return "yes" if value is True else str(value)
