"""A run directory, opened for reading; this needs no torch."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt_cli.corpus.readers import read_lines
from nmt_cli.corpus.store import Corpus, open_corpus
from nmt_cli.recipe import loading, schema
from nmt_cli.storage import artefact
from nmt_cli.system.console import warn
from nmt_cli.system.errors import DataError, MissingError
from nmt_cli.training import metrics

TRANSLATIONS = "translations.json"


@dataclass(frozen=True)
class RunFiles:
    """What a run directory and its corpus hold. What is not there yet is None or empty."""

    directory: Path
    settings: schema.Recipe
    corpus: Corpus | None
    steps: list[dict[str, Any]]  # the records of metrics.jsonl about training
    validations: list[dict[str, Any]]
    model: dict[str, Any] | None  # the manifest of directory/model

    @property
    def validation(self) -> dict[str, Any]:
        """The record of the validation of the weights that were taken: the best one, or the last; {} without any."""
        if self.settings.averaging.best and self.validations:
            return min(self.validations, key=lambda record: record["dev_nll"] or math.inf)
        return self.validations[-1] if self.validations else {}

    def translations(self, split: str) -> list[str] | None:
        """Return what reproduce translated of "dev", "test" or "general" with this very model and decoding."""
        stamp, hypotheses = self.directory / TRANSLATIONS, self.directory / f"{split}.hyp"
        if self.model is None or not stamp.is_file() or not hypotheses.is_file():
            return None
        same = artefact.read_json(stamp).get("made_by") == translations_id(self.model, self.settings.decoding)
        return read_lines(hypotheses) if same else None


def translations_id(model: dict[str, Any], decoding: schema.Decoding) -> str:
    """Return the digest of a model's weights, by its manifest, and of the decoding settings."""
    return artefact.digest([model["files"]["model.safetensors"]["sha256"], decoding.model_dump()])


def stored_recipe(directory: Path) -> schema.Recipe:
    if not (directory / "recipe.yaml").is_file():
        raise MissingError(f"no run in {directory}. Train one: nmt train RECIPE")
    return loading.load_stored(directory / "recipe.yaml")


def read_run(directory: Path, data: Path | None = None, *, any_corpus: bool = False) -> RunFiles:
    """Open a run, and the corpus it was trained on: `data`, else data/<corpus> here or beside runs/, else None."""
    settings, model = stored_recipe(directory), directory / "model"
    default = settings.corpus.directory
    beside = [parent / default for parent in directory.resolve().parents[1:2]]
    places = [data] if data else [place for place in (default, *beside) if artefact.present(place)]
    corpus = open_corpus(places[0]) if places else None
    if not corpus:
        warn(f"no prepared corpus in {default}: nothing can be said of texts and scores. Name it: --data DIR")
    trained_on = artefact.read_json(directory / "corpus.json").get("corpus")
    if corpus and corpus.identity != trained_on and not any_corpus:
        raise DataError(f"{directory} was trained on another corpus than {corpus.directory}. Name its own: --data DIR")
    records = metrics.read(directory / "metrics.jsonl")
    steps, validations = ([record for record in records if key in record] for key in ("rate", "dev_nll"))
    manifest = artefact.verify(model, "model", content=False) if artefact.present(model) else None
    return RunFiles(directory, settings, corpus, steps, validations, manifest)
