"""Everything that is checked, loaded and tried before a run's first update."""

import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nmt_cli import artefact, recipe
from nmt_cli.corpus.store import Corpus, open_corpus
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.errors import DataError, StorageError
from nmt_cli.training import checkpoints
from nmt_cli.training.batches import Updates
from nmt_cli.training.checkpoints import State
from nmt_cli.training.metrics import Metrics
from nmt_cli.training.optim import adam
from nmt_cli.training.update import LossModel, Trainer
from nmt_cli.training.validation import DevSet, dev_set
from nmt_cli.transformer.hardware import choose_dtype, reuse_memory
from nmt_cli.transformer.model import Transformer, parameter_count
from nmt_cli.transformer.weights import TOKENIZER, load_into, load_model

# Knobs that may change between the parts of a run: they say when, where and how much at once, not what is learnt.
# Where the text lies may change too: what it says is compared by hash.
FREE_KNOBS = re.compile(
    r"(training\.(steps|max_hours|log_every|validate_every|validate_bleu|checkpoint_every|keep_checkpoints"
    r"|patience|memory_tokens)|corpus\.(train_src|train_tgt|dev_src|dev_tgt|test_src|test_tgt|tokenizer\.file)"
    r"|name|(averaging|decoding|expect)\.\w+): "
)


@dataclass
class Run:
    """A run that is ready to train.

    Attributes:
        metrics: on the main process.
        shown: the last metrics, for the progress line.
        failed_saves: checkpoints in a row that could not be written.
        warned: that a validation is off the curve that the recipe expects; once is enough.
    """

    settings: recipe.Recipe
    directory: Path
    corpus: Corpus
    tokenizer: Tokenizer
    dev: DevSet
    trainer: Trainer
    state: State
    metrics: Metrics | None
    shown: str = ""
    failed_saves: int = 0
    warned: bool = False

    @property
    def accelerator(self) -> Any:
        """Return Accelerate's, which knows the other processes."""
        return self.trainer.accelerator


def check_run(settings: recipe.Recipe, data: Path, run: Path) -> int:
    """Compare a run with its recipe and corpus, or found it; return the step of its newest good checkpoint, else 0.

    Raises:
        NmtError: it does not fit, is damaged, or the disk is too small.
    """
    corpus = open_corpus(data, content=True)
    _check_same(settings, corpus, run)
    parameters = parameter_count(settings.model, int(corpus.manifest["vocabulary_size"]))
    need = disk_megabytes(settings.training, parameters, len(checkpoints.steps_in(run)))
    free = artefact.free_megabytes(run)
    if free < need:
        raise StorageError(f"{run} needs {need} MB for checkpoints and has {free} MB free. Free some space")
    return checkpoints.newest(run, corpus.identity)


def disk_megabytes(training: recipe.Training, parameters: int, have: int = 0) -> int:
    """Return the disk space a run still needs when it has some checkpoints already."""
    # Those kept, the best, the newest, and the one being written; a third of one is the model at the end.
    return round(max(1.4, training.keep_checkpoints + 3.4 - have) * 12 * parameters / 1e6)


def _check_same(settings: recipe.Recipe, corpus: Corpus, run: Path) -> None:
    """Compare a run's stored recipe and corpus with today's, or store them where the run is new."""
    stored, identity = run / "recipe.yaml", run / "corpus.json"
    if not stored.exists():  # it is written last
        if checkpoints.steps_in(run):
            raise DataError(f"{stored} is missing, but there are checkpoints. Put it back, or choose another --run")
        artefact.replace_file(run / TOKENIZER, corpus.tokenizer_file.read_bytes())
        artefact.replace_file(identity, artefact.json_bytes({"corpus": corpus.identity}))
        artefact.replace_file(stored, recipe.to_yaml(settings))
        return
    changed = recipe.differences(recipe.to_plain(recipe.load_stored(stored)), recipe.to_plain(settings))
    fixed = [line for line in changed if not FREE_KNOBS.match(line)]
    if fixed:
        raise DataError(f"{run} was trained with another recipe: {'; '.join(fixed)}. Put it back, or use another --run")
    if artefact.read_json(identity).get("corpus") != corpus.identity:
        raise DataError(
            f"{run} was trained on other data or with another tokenizer than {corpus.directory} holds. "
            "Prepare it as before, or use another --run"
        )
    if changed:
        artefact.replace_file(stored, recipe.to_yaml(settings))


def open_run(settings: recipe.Recipe, data: Path, run: Path, step: int, accelerator: Any) -> Run:
    """Load corpus and model, restore the checkpoint of `step` (0: none), and try the largest batch.

    Raises:
        NmtError: something does not fit.
    """
    training, corpus = settings.training, open_corpus(data)
    tokenizer = Tokenizer(corpus.tokenizer_file)
    dev = dev_set(corpus, tokenizer, settings)
    if training.patience and not dev.sources:
        raise DataError(
            f"training.patience needs a development set, and {data} has none. Prepare one, or set it to null"
        )
    updates = Updates(corpus, training.tokens_per_step, training.micro_batches, training.seed)
    longest = max(int(updates.src_lengths.max()), int(updates.tgt_lengths.max()))
    if longest > settings.model.max_length:
        raise DataError(
            f"{data} has a sentence of {longest} pieces, the model takes {settings.model.max_length}. "
            "Raise model.max_length, or lower corpus.cleaning.max_tokens and prepare again"
        )
    torch.manual_seed(training.seed)
    transformer = Transformer(settings.model, tokenizer.vocabulary_size)
    state = State()
    moments: dict[str, torch.Tensor] = {}
    if step:
        state = checkpoints.read_state(run, step)
        weights, moments = checkpoints.load(run, step)
        load_into(transformer, weights, checkpoints.directory_of(run, step))
    elif training.init_from:
        _start_from(Path(training.init_from), transformer, corpus)
    trainer = make_trainer(settings, updates, accelerator, transformer, moments)
    metrics = Metrics(run / "metrics.jsonl", state.metrics_bytes) if accelerator.is_main_process else None
    return Run(settings, run, corpus, tokenizer, dev, trainer, state, metrics)


def make_trainer(
    settings: recipe.Recipe,
    updates: Updates,
    accelerator: Any,
    transformer: Transformer,
    moments: dict[str, torch.Tensor],
) -> Trainer:
    """Return a model with its optimizer on the accelerator's device, after trying the largest batch."""
    reuse_memory()
    training = settings.training
    dtype = choose_dtype(training.precision, accelerator.device)
    transformer.to(accelerator.device)
    model, optimizer = LossModel(transformer, training.label_smoothing, dtype), adam(transformer, training)
    checkpoints.restore_optimizer(transformer, optimizer, moments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # DDP's new word for broadcast_buffers is too new for us
        wrapped, prepared = accelerator.prepare(model, optimizer)
    tokens = training.memory_tokens or memory_tokens(settings.model, accelerator.device)
    trainer = Trainer(settings, updates, accelerator, transformer, wrapped, prepared, dtype, tokens)
    trainer.rehearse()
    return trainer


def _start_from(directory: Path, model: Transformer, corpus: Corpus) -> None:
    source = load_model(directory)
    if artefact.sha256(source.tokenizer_file) != artefact.sha256(corpus.tokenizer_file):
        raise DataError(
            f"{source.directory} has another tokenizer than {corpus.directory}. "
            f"Prepare the corpus with --tokenizer {source.tokenizer_file}"
        )
    load_into(model, source.model.state_dict(), source.directory)


def activation_bytes(model: recipe.Model) -> int:
    """Return about how much memory one source and one target token take between forward and backward pass."""
    width = 14 * model.d_model + 2 * model.d_ff + 4 * model.num_heads * (model.d_k + model.d_v)
    return 4 * width * 2 * model.num_layers + 16 * model.d_model


def memory_tokens(model: recipe.Model, device: torch.device) -> int:
    """Return how many tokens of one side fit into memory at once, from what a token's activations take.

    Of all memory, not of what is free now: it decides what is summed first, and a resumed run must sum as before.
    """
    per_token = activation_bytes(model)
    if device.type == "cuda":
        return max(256, int(0.6 * torch.cuda.get_device_properties(device).total_memory / per_token))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # More than this makes the CPU slower, not faster: activations no longer stay in its caches.
    return max(256, min(8192, int(0.4 * memory / per_token)))
