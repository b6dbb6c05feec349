"""Compare an imported model with Marian itself (pip install pymarian) on real text: reference scores and translations.

    nmt import MARIAN_DIRECTORY --out MODEL
    python tests/benchmarks/marian_models.py MARIAN_DIRECTORY MODEL test.en test.de

Marian scores the references token by token, and both translate the source greedily. Pre-norm models are only scored,
because for them, Marian's decoder computes another function than Marian's scorer.
"""

import sys
from pathlib import Path

import torch

from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.interop.marian_files import read_marian
from nmt_cli.interop.verification import differences_of
from nmt_cli.transformer.weights import load_model
from nmt_cli.translation.translator import Translator


def main() -> None:
    theirs, ours = read_marian(Path(sys.argv[1])).adapter, load_model(Path(sys.argv[2]))
    src, tgt = (Path(file).read_text("utf-8").splitlines() for file in sys.argv[3:])
    tokenizer = Tokenizer(ours.tokenizer_file)
    pairs = [tuple(tokenizer.encode_pair(*pair)) for pair in zip(src, tgt, strict=True)]
    translator = Translator.of(ours.model, tokenizer, ours.recipe, torch.float32)
    largest = differences_of(translator.score_ids(pairs), theirs.score(pairs))[0]
    print(f"{len(pairs)} references, {sum(len(pair[1]) for pair in pairs)} tokens: largest difference {largest:.1e}")
    if theirs.differs:
        return print(theirs.differs)
    found = [t.segments[0] for t in translator.translate(src, beam=1, alpha=0.0, split=False)]
    results = [(segment.ids, [*segment.hypotheses[0].ids, EOS]) for segment in found]
    limits = [len(pair[0]) + ours.recipe.decoding.extra_length for pair in results]
    others = list(theirs.translate([pair[0] for pair in results], 1, max(limits)))
    same, cut = 0, 0
    for (_, mine), other, limit in zip(results, others, limits, strict=True):
        if len(other) < limit:
            same += mine == other
        else:  # our translation stops at its length limit
            same += mine[:-1] == other[: len(mine) - 1]
            cut += 1
    print(f"{same} of {len(results)} greedy translations are equal ({cut} of them compared up to our length limit)")


if __name__ == "__main__":
    main()
