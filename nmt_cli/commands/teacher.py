"""Translate real text for synthetic training pairs. `prepare` receives these functions, so it imports no translator."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from nmt_cli.system.shard import Shard

UNIT_LINES = range(100, 10_001)  # allowed numbers of lines in a unit
UNITS = 2000  # a text is divided into about this many units if its lines have 100 bytes each


def translate(model: Path, lines: Iterable[str], beam: int, sampling: bool) -> Iterator[str]:
    """Yield a translation of each line by the model in a directory."""
    from nmt_cli.translation.options import Sampling
    from nmt_cli.translation.translator import Translator

    with Translator(model) as translator:
        for translation in translator.translate(lines, beam=beam, sampling=Sampling() if sampling else None):
            yield translation.text


def translate_units(model: Path, directory: Path, beam: int, sampling: bool, worker: Shard | None) -> None:
    """Translate the text in a directory of the cache, divided into units, as one of many workers.

    If `worker` is None, translate the remaining units, join them all, and remove them. Raise DataError if a unit fails.
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
        (directory / TEXT).unlink(missing_ok=True)  # left behind by a kill just after joining
        return
    text, out = str(directory / TEXT), str(directory / FOLDER)
    search = SearchOptions(beam=beam, sampling=Sampling() if sampling else None)
    options, files = TranslateOptions(models=(model,), search=search), inputs.find([text])
    lines = files[0].bytes // (100 * UNITS)
    unit_lines = min(max(lines, UNIT_LINES[0]), UNIT_LINES[-1])
    with sharded.ShardedTranslation(files, out, options, unit_lines=unit_lines) as job:
        if job.run(worker or Shard(1, 1)):
            raise DataError(f"some lines have no translation. To list them: nmt translate {text} --check {out}")
    if worker is None:
        sharded.join([text], out, str(directory / TRANSLATIONS))
        artefact.remove_tree(Path(out))
        Path(text).unlink()
