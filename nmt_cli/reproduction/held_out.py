"""Translations of the held-out text of a run, stored in the run's directory."""

from pathlib import Path

from nmt_cli.storage import artefact
from nmt_cli.system.console import counted, say
from nmt_cli.system.errors import MissingError
from nmt_cli.training.run import TRANSLATIONS, RunFiles, translations_id
from nmt_cli.translation.translator import Translator


def translate_held_out(run: RunFiles, model: Path) -> dict[str, list[str]]:
    """Return a dict from each held-out split to its translations by `model`.

    If the run's directory has translations by the same model with the same decoding settings, read them. Otherwise,
    translate and store them there. Raise MissingError if the run has no model or its corpus was not found.
    """
    if run.corpus is None:
        raise MissingError(f"the corpus of {run.directory} was not found, so its held-out text cannot be translated")
    if run.model is None:
        raise MissingError(f"{run.directory} has no model yet: it has no checkpoints to average. Train longer")
    splits = [split for split in ("dev", "test", "general") if run.corpus.lines(split)[0]]
    hypotheses = {split: lines for split in splits if (lines := run.translations(split)) is not None}
    if len(hypotheses) == len(splits):
        return hypotheses
    decoding = run.settings.decoding
    precision = "fp32" if run.settings.training.precision == "fp32" else "auto"
    with Translator(model, precision=precision) as translator:
        for split in splits:
            sources = run.corpus.lines(split)[0]
            say(f"4/5 translate {split}: {counted(len(sources), 'line')}, beam {decoding.beam}, alpha {decoding.alpha}")
            translations = translator.translate(sources, **decoding.model_dump(exclude={"target_prefix"}))
            hypotheses[split] = [translation.text for translation in translations]
            artefact.replace_file(run.directory / f"{split}.hyp", "\n".join([*hypotheses[split], ""]).encode())
    stamp = artefact.json_bytes({"made_by": translations_id(run.model, decoding)})
    artefact.replace_file(run.directory / TRANSLATIONS, stamp)
    return hypotheses
