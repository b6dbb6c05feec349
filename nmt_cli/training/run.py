"""Read run directories. This module does not import torch, so that commands that only read a run start fast."""

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
from nmt_cli.training.metrics_log import read_records

TRANSLATIONS = "translations.json"


@dataclass(frozen=True)
class RunFiles:
    """The contents of a run directory, and its corpus. Missing parts are None or empty."""

    directory: Path
    settings: schema.Recipe
    corpus: Corpus | None
    steps: list[dict[str, Any]]  # records of training steps in metrics.jsonl
    validations: list[dict[str, Any]]  # records of validations in metrics.jsonl
    model: dict[str, Any] | None  # the manifest of the model directory

    @property
    def validation(self) -> dict[str, Any]:
        """The record of the best validation if averaging.best is set, or else of the last one. {} if there is none."""
        if self.settings.averaging.best and self.validations:
            return min(self.validations, key=lambda record: record["dev_nll"] or math.inf)
        return self.validations[-1] if self.validations else {}

    def translations(self, split: str) -> list[str] | None:
        """Return the translations that `nmt reproduce` wrote for a split ("dev", "test" or "general").

        Return None if the run has no translations by its current model with its current decoding settings.
        """
        stamp, hypotheses = self.directory / TRANSLATIONS, self.directory / f"{split}.hyp"
        if self.model is None or not stamp.is_file() or not hypotheses.is_file():
            return None
        same = artefact.read_json(stamp).get("made_by") == translations_id(self.model, self.settings.decoding)
        return read_lines(hypotheses) if same else None


# Decoding settings that older versions of nmt did not have, with their default values.
NEWER: dict[str, Any] = {"case": "auto", "spelling": "auto", "penalty_offset": 5, "target_prefix": ""}


def translations_id(model: dict[str, Any], decoding: schema.Decoding) -> str:
    """Return a digest of the decoding settings and of a model's weights. `model` is the manifest of the model.

    Leave out settings in NEWER that have their default values, so that translations by older versions stay valid.
    """
    settings = {name: value for name, value in decoding.model_dump().items() if NEWER.get(name) != value}
    return artefact.digest([model["files"]["model.safetensors"]["sha256"], settings])


def stored_recipe(directory: Path) -> schema.Recipe:
    """Return the recipe with which a run was trained. Raise MissingError if the directory is not a run."""
    if not (directory / "recipe.yaml").is_file():
        raise MissingError(f"no run in {directory}. Train one with nmt train RECIPE")
    return loading.load_stored(directory / "recipe.yaml")


def read_run(directory: Path, data: Path | None = None, *, any_corpus: bool = False) -> RunFiles:
    """Open a run and its corpus.

    The corpus is `data`. By default, it is data/<corpus> in the working directory or beside runs/. If neither exists,
    print a warning and return None as the corpus. Raise DataError if the run was trained on another corpus, unless
    `any_corpus` is true.
    """
    settings, model = stored_recipe(directory), directory / "model"
    default = settings.corpus.directory
    beside = [parent / default for parent in directory.resolve().parents[1:2]]
    candidates = [data] if data else [path for path in (default, *beside) if artefact.present(path)]
    corpus = open_corpus(candidates[0]) if candidates else None
    if not corpus:
        warn(f"no prepared corpus in {default}, so the output lacks text and scores. Pass --data DIR")
    trained_on = artefact.read_json(directory / "corpus.json").get("corpus")
    if corpus and corpus.identity != trained_on and not any_corpus:
        raise DataError(
            f"{directory} was trained on another corpus than {corpus.directory}. Pass the right one with --data DIR"
        )
    records = read_records(directory / "metrics.jsonl")
    steps, validations = ([record for record in records if key in record] for key in ("rate", "dev_nll"))
    manifest = artefact.verify(model, "model", content=False) if artefact.present(model) else None
    return RunFiles(directory, settings, corpus, steps, validations, manifest)
