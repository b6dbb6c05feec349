"""eole as one of the systems of training_systems.py: its own command's code, stopped between updates.

Its model is pre-norm and its batches are its own: as many target places as our batches have target tokens.
"""

import itertools
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from nmt_cli.corpus.store import open_corpus
from nmt_cli.corpus.tokenizer import Tokenizer


def train(job: Any, commands: Callable[[], Iterator[float]], answer: Callable[..., None]) -> None:
    """Run eole's training loop; see training_systems for the conversation."""
    import eole.train_single
    import eole.trainer
    from eole.config.run import TrainConfig

    logging.disable(logging.INFO)
    loop = eole.trainer.Trainer.train

    def told(self: Any, batches: Any, *_: Any, **__: Any) -> None:
        loop(self, counted(iter(batches), self.train_loss.padding_idx), 0, save_checkpoint_steps=0)

    def counted(batches: Any, pad: int) -> Iterator[Any]:
        for seconds in commands():
            start, took, updates, tokens = time.perf_counter(), 0.0, 0, 0
            while not updates or took < seconds:
                batch, bucket = next(batches)
                tokens, updates = tokens + int((batch["tgt"][:, 1:] != pad).sum()), updates + 1
                yield batch, bucket  # the update happens here
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                took = time.perf_counter() - start
            answer(updates, tokens, took)
        sys.exit()  # it would save a model now

    eole.trainer.Trainer.train = told
    with tempfile.TemporaryDirectory() as name:
        config = TrainConfig(**_config(job, Path(name)))
        eole.train_single.main(config, 0 if job.device.type == "cuda" else -1)


def _config(job: Any, where: Path) -> dict[str, Any]:
    """Write the corpus as pieces and return eole's configuration for the same model and batches."""
    corpus, model = open_corpus(Path(job.corpus)), job.settings.model
    pieces = Tokenizer(corpus.tokenizer_file).pieces(list(range(job.vocabulary_size)))
    for name, side in (("src", corpus.src), ("tgt", corpus.tgt)):
        words = [pieces[i] for i in side.ids]
        lines = (" ".join(words[a : b - 1]) for a, b in itertools.pairwise(side.offsets))
        (where / name).write_text("\n".join(lines) + "\n")
    names = ["<unk>", "<blank>", "<s>", "</s>", *(p for p in pieces if p not in ("<unk>", "<pad>", "<s>", "</s>"))]
    (where / "vocab").write_text("\n".join(f"{p}\t1" for p in names) + "\n")
    bf16 = job.precision == "bf16"
    return {
        "data": {"corpus": {"path_src": str(where / "src"), "path_tgt": str(where / "tgt"), "transforms": []}},
        "src_vocab": str(where / "vocab"),
        "tgt_vocab": str(where / "vocab"),
        "share_vocab": True,
        "save_data": str(where),
        "n_sample": 0,
        "seed": 1,
        "report_every": 10**9,
        "model": {
            "architecture": "transformer",
            "layers": model.num_layers,
            "hidden_size": model.d_model,
            "heads": model.num_heads,
            "transformer_ff": model.d_ff,
            "mlp_activation_fn": "relu",
            "share_embeddings": True,
            "share_decoder_embeddings": True,
            "add_ffnbias": True,
            "add_qkvbias": False,
            "embeddings": {"position_encoding_type": "SinusoidalInterleaved", "word_vec_size": model.d_model},
            "position_encoding_type": "SinusoidalInterleaved",
        },
        "training": {
            "model_path": str(where / "model"),
            "world_size": 1 if job.device.type == "cuda" else 0,
            "gpu_ranks": [0] if job.device.type == "cuda" else [],
            "batch_type": "tokens",
            "batch_size": job.tokens,
            "batch_size_multiple": 1,
            "normalization": "tokens",
            "accum_count": [1],
            "bucket_size": len(corpus.src),
            "num_workers": 0,
            "optim": "adam",
            "adam_beta2": 0.98,
            "learning_rate": 2.0,
            "warmup_steps": 4000,
            "decay_method": "noam",
            "max_grad_norm": 0.0,
            "dropout": [model.dropout],
            "attention_dropout": [0.0],
            "label_smoothing": job.settings.training.label_smoothing,
            "param_init_method": "xavier_uniform",
            "compute_dtype": "bf16" if bf16 else "fp32",
            "train_steps": 10**9,
            "valid_steps": 10**9,
            "save_checkpoint_steps": 10**9,
        },
    }
