"""How fast `nmt train` is on a CUDA GPU at the paper's batch size, and whether it learns the same there.

BASE and BIG at 25,000 source and 25,000 target tokens per update, bf16, beside Marian of transformers (where that is
installed) and torch.nn.Transformer, plain and compiled, on the same GPU. The corpus is generated: random pieces in
sentences as long as WMT14's. Then same_curve.py's check. From the repository root:

    PYTHONPATH=. python tests/benchmarks/gpu_train_speed.py
    PYTHONPATH=. python tests/benchmarks/gpu_train_speed.py --trial      # a minute on a CPU: does it all work?
"""

import math
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from same_curve import same_curve
from train_speed import arguments, compare
from training_systems import Job, default_corpus

from nmt_cli import artefact
from nmt_cli.corpus import store, tokenizer

TRIAL = ["--cases", "tiny:bf16", "--tokens", "600", "--pairs", "2000", "--vocabulary", "500"]
TRIAL += ["--rounds", "1", "--seconds", "0.5", "--curve-steps", "6"]
SYSTEMS = ["ours", "marian", "marian+compile", "textbook", "textbook+compile"]


def wmt14_lengths(pairs: int, draw: np.random.Generator) -> list[npt.NDArray[np.int64]]:
    """Return source and target lengths in pieces, EOS counted.

    Log-normal: of WMT14's English sentences the logarithm of the number of words is 2.9 on average and spreads by
    0.64, that of the ratio of German to English words spreads by 0.2; a word is about 1.25 pieces. Longest: 250.
    """
    src = draw.normal(2.9 + math.log(1.25), 0.64, pairs)
    tgt = src + draw.normal(0, 0.2, pairs)
    return [np.exp(side).round().astype(np.int64).clip(1, 250) + 1 for side in (src, tgt)]


def words(count: int) -> list[str]:
    """Return lines of made-up words, enough for a tokenizer of many pieces."""
    draw = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return [" ".join("".join(draw.choices(letters, k=draw.randint(4, 9))) for _ in range(10)) for _ in range(count)]


def generate(target: Path, pairs: int, vocabulary: int) -> Path:
    """Write a prepared corpus of random pieces, the frequent ones first as in language (Zipf), and return it."""
    draw = np.random.default_rng(1)
    about: dict[str, Any] = {"name": target.name, "pairs": pairs, "vocabulary_size": vocabulary}
    with artefact.staged(target, store.KIND, about) as stage:
        artefact.write_file(stage / "tokenizer.model", tokenizer.train(words(vocabulary // 3), vocabulary))
        for name, lengths in zip(("src", "tgt"), wmt14_lengths(pairs, draw), strict=True):
            first = tokenizer.EOS + 1
            ids = first + ((vocabulary - first) ** draw.random(lengths.sum()) - 1).astype(np.int64)
            ids[lengths.cumsum() - 1] = tokenizer.EOS
            writer = store.SideWriter(stage, name, vocabulary)
            writer.append(ids, lengths)
            writer.close()
    return target


def main() -> None:
    parser = arguments(__doc__, ("base:bf16", "big:bf16"), SYSTEMS)
    parser.add_argument("--tokens", type=int, default=25_000, help="target tokens per update")
    parser.add_argument("--pairs", type=int, default=300_000, help="of the generated corpus")
    parser.add_argument("--vocabulary", type=int, default=37_000)
    parser.add_argument("--curve-steps", type=int, default=300, help="updates of the quality check; 0 for none")
    parser.add_argument("--trial", action="store_true", help="everything very small, without a GPU")
    given = sys.argv[1:]
    options = parser.parse_args([*TRIAL, *given] if "--trial" in given else given)
    if torch.cuda.is_available():
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    elif not options.trial:
        sys.exit("no CUDA GPU here; --trial tries the script on the CPU")
    with tempfile.TemporaryDirectory() as directory:
        corpus = generate(Path(directory) / "wmt14-like", options.pairs, options.vocabulary)
        compare(options.cases, corpus, options.tokens, options)
        if options.curve_steps:
            size = "tiny" if options.trial else "small"
            print(f"\n{size}, {options.curve_steps} updates in both arithmetics")
            job = Job("ours", size, "fp32", str(default_corpus(Path(directory))), 600 if options.trial else 4096)
            sys.exit(not same_curve(job, options.curve_steps, not options.trial))


if __name__ == "__main__":
    main()
