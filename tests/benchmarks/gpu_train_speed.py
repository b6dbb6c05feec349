"""Measure `nmt train` on a CUDA GPU at the paper's batch size: 25,000 source and target tokens per step.

For the sizes base and big in bf16, compares it with torch.nn.Transformer and transformers' Marian (if installed), both
eager and compiled. cuDNN's attention is off for all systems. "ours+flash" always uses flash attention.
The corpus consists of random tokens with the sentence lengths of WMT14. A step of "ours" is faster once its sizes have
occurred twice, so warm up for some hundred steps to see the speed of a long training run. Run from the repository root:

    PYTHONPATH=. python tests/benchmarks/gpu_train_speed.py --systems ours ours+flash --warmup 300
    PYTHONPATH=. python tests/benchmarks/gpu_train_speed.py --profile    # also prints slow kernels and host waits
    PYTHONPATH=. python tests/benchmarks/gpu_train_speed.py --trial      # a minute on a CPU, to try the script
"""

import importlib.util
import math
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from train_speed import arguments, compare

from nmt_cli.corpus import store, tokenizer
from nmt_cli.storage import artefact

TRIAL = "--cases tiny:bf16 --tokens 600 --rounds 1 --seconds 0.5 --systems ours textbook".split()  # noqa: SIM905


def wmt14_lengths(pairs: int, rng: np.random.Generator) -> list[npt.NDArray[np.int64]]:
    """Return random source and target lengths in tokens, including EOS.

    The distribution is log-normal. In WMT14, the logarithm of the number of words in an English sentence has mean 2.9
    and standard deviation 0.64. The logarithm of the ratio of German to English words has standard deviation 0.2. A
    word has about 1.25 tokens. The longest sentence has 250 tokens and EOS.
    """
    src = rng.normal(2.9 + math.log(1.25), 0.64, pairs)
    tgt = src + rng.normal(0, 0.2, pairs)
    return [np.exp(side).round().astype(np.int64).clip(1, 250) + 1 for side in (src, tgt)]


def generate(target: Path, pairs: int, vocabulary: int) -> Path:
    """Write a prepared corpus of random tokens with Zipfian frequencies, and return its directory."""
    letter_rng, letters = random.Random(1), "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(letter_rng.choices(letters, k=letter_rng.randint(4, 9))) for _ in range(10 * vocabulary // 3)]
    lines = [" ".join(words[i : i + 10]) for i in range(0, len(words), 10)]
    rng = np.random.default_rng(1)
    manifest = {"name": target.name, "src": "en", "tgt": "de", "pairs": pairs, "vocabulary_size": vocabulary}
    with artefact.staged(target, store.KIND, manifest) as stage:
        artefact.write_file(stage / "tokenizer.model", tokenizer.train(lines, vocabulary))
        for name, lengths in zip(("src", "tgt"), wmt14_lengths(pairs, rng), strict=True):
            first = tokenizer.EOS + 1
            ids = first + ((vocabulary - first) ** rng.random(lengths.sum()) - 1).astype(np.int64)
            ids[lengths.cumsum() - 1] = tokenizer.EOS
            writer = store.SideWriter(stage, name, vocabulary)
            writer.append(ids, lengths)
            writer.close()
    return target


def main() -> None:
    systems = ["textbook", *(["marian"] if importlib.util.find_spec("transformers") else [])]
    systems = ["ours", *systems, *(f"{system}+compile" for system in systems)]
    parser = arguments(__doc__, ["base:bf16", "big:bf16"], systems, 25_000)
    parser.add_argument("--trial", action="store_true", help="use tiny sizes and no GPU")
    words = sys.argv[1:]
    options = parser.parse_args([*TRIAL, *words] if "--trial" in words else words)
    if not torch.cuda.is_available() and not options.trial:
        sys.exit("no CUDA GPU found; --trial tries the script on the CPU")
    print(f"torch {torch.__version__}", torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU")
    pairs, vocabulary = (2000, 500) if options.trial else (300_000, 37_000)
    with tempfile.TemporaryDirectory() as directory:
        compare(options, generate(Path(directory) / "wmt14-like", pairs, vocabulary))


if __name__ == "__main__":
    main()
