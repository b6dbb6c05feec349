"""Translate real text for synthetic training pairs.

`app.py` passes these functions to `prepare`, so that corpus preparation does not depend on the translator.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from nmt_cli.system.shard import Shard

UNIT_LINES = range(100, 10_001)  # lines per unit, the part of a text that a worker translates at once
TARGET_UNITS = 2000  # units per text of 100 bytes per line, unless UNIT_LINES requires otherwise


def translate(model: Path, lines: Iterable[str], beam: int, sampling: bool) -> Iterator[str]:
    """Yield a translation of each line, made with the model in directory `model`. `sampling` replaces beam search."""
    from nmt_cli.translation.options import Sampling
    from nmt_cli.translation.translator import Translator

    with Translator(model) as translator:
        for translation in translator.translate(lines, beam=beam, sampling=Sampling() if sampling else None):
            yield translation.text


def translate_units(model: Path, directory: Path, beam: int, sampling: bool, worker: Shard | None) -> None:
    """Translate this worker's share of the file TEXT in a cache directory.

    If `worker` is None, translate all that remains, join the translations in the file TRANSLATIONS, and delete TEXT
    and the units. Raise DataError if a line has no translation.
    """
    from nmt_cli.corpus.synthetic import TEXT, TRANSLATIONS
    from nmt_cli.sharding import inputs
    from nmt_cli.sharding.job import FOLDER
    from nmt_cli.storage import artefact
    from nmt_cli.system.errors import DataError
    from nmt_cli.translation import sharded
    from nmt_cli.translation.options import Sampling, SearchOptions
    from nmt_cli.translation.translate import TranslateOptions

    if (directory / TRANSLATIONS).is_file():
        (directory / TEXT).unlink(missing_ok=True)  # still there if nmt was killed right after the join
        return
    text, out = str(directory / TEXT), str(directory / FOLDER)
    search = SearchOptions(beam=beam, sampling=Sampling() if sampling else None)
    options, files = TranslateOptions(models=(model,), search=search), inputs.find([text])
    wanted_lines = files[0].bytes // (100 * TARGET_UNITS)
    unit_lines = min(max(wanted_lines, UNIT_LINES[0]), UNIT_LINES[-1])
    with sharded.ShardedTranslation(files, out, options, unit_lines=unit_lines) as job:
        if job.run(worker or Shard(1, 1)):
            raise DataError(f"some lines have no translation. To list them: nmt translate {text} --check {out}")
    if worker is None:
        sharded.join([text], out, str(directory / TRANSLATIONS))
        artefact.remove_tree(Path(out))
        Path(text).unlink()
