"""Translate real text for synthetic training pairs.

Corpus preparation must not depend on the translator, so `app.py` passes these functions to `prepare`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from nmt_cli.system.shard import Shard

# A unit is a range of lines that a worker translates at once. UNIT_LINES limits the number of lines in a unit. A text
# whose lines average 100 bytes has about TARGET_UNITS units, if UNIT_LINES permits.
UNIT_LINES = range(100, 10_001)
TARGET_UNITS = 2000


def translate(model: Path, lines: Iterable[str], beam: int, sampling: bool) -> Iterator[str]:
    """Yield a translation of each line by the model in directory `model`.

    If `sampling` is true, sample the translations instead of searching with `beam`.
    """
    from nmt_cli.translation.options import Sampling
    from nmt_cli.translation.translator import Translator

    with Translator(model) as translator:
        for translation in translator.translate(lines, beam=beam, sampling=Sampling() if sampling else None):
            yield translation.text


def translate_units(model: Path, directory: Path, beam: int, sampling: bool, worker: Shard | None) -> None:
    """Translate a worker's share of the file TEXT in the cache directory `directory`.

    If `worker` is None, translate all remaining units. Then join the translations in the file TRANSLATIONS, and delete
    TEXT and the units. Raise DataError if a line has no translation.
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
        (directory / TEXT).unlink(missing_ok=True)  # nmt may have been killed after the join and before it deleted TEXT
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
