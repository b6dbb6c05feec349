"""Translation for synthetic training text: passed to `prepare`, which does not import the translator."""

from collections.abc import Iterable, Iterator
from pathlib import Path


def translate(model: Path, lines: Iterable[str], beam: int, sampling: bool) -> Iterator[str]:
    """Yield a translation of each line by the model in a directory."""
    from nmt_cli.translation.options import Sampling
    from nmt_cli.translation.translator import Translator

    with Translator(model) as translator:
        for translation in translator.translate(lines, beam=beam, sampling=Sampling() if sampling else None):
            yield translation.text
