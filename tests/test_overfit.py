"""Whether it learns at all: reversing unseen sequences.

Data, batches, loss, rate, Adam and search are the package's own; only the loop is this file's.
"""

import random
from pathlib import Path

import numpy as np
import torch
from reference import tiny

from nmt_cli import recipe
from nmt_cli.corpus.store import Corpus, Side
from nmt_cli.training.batches import BatchPlan
from nmt_cli.training.loss import smoothed_loss
from nmt_cli.training.optim import adam, noam_rate
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.search import SearchSettings, search
from nmt_cli.translation.segments import Segment

SIZES = {"num_layers": 1, "d_model": 64, "d_ff": 128, "num_heads": 4, "d_k": 16, "d_v": 16, "dropout": 0.0}


def test_unseen_sequences_are_reversed() -> None:
    seed = random.SystemRandom().randrange(2**31)
    draw = random.Random(seed)
    sequences = [[draw.randint(3, 12) for _ in range(draw.randint(3, 7))] for _ in range(6000)]
    pairs = [([*ids, 2], [*ids[::-1], 2]) for ids in sequences]
    train, test = pairs[:-200], pairs[-200:]
    # Without the cooldown the last steps still shake a model this small: 142 to 200 right, with it always all.
    training = recipe.Training(steps=400, tokens_per_step=500, warmup_steps=100, cooldown_steps=250, seed=seed)
    torch.manual_seed(seed)
    model = Transformer(tiny(**SIZES), 13)
    sides = []
    for side in (0, 1):
        offsets = np.cumsum([0, *(len(pair[side]) for pair in train)])
        sides.append(Side(np.concatenate([pair[side] for pair in train]).astype("<u2"), offsets))
    plan = BatchPlan(Corpus(Path(), {}, *sides), training.tokens_per_step, 1, seed)
    optimizer = adam(model, training)
    for step in range(training.steps):
        (sentences,) = plan.micro_batches_of(step)
        batch = plan.batch(sentences, step)
        loss, _ = smoothed_loss(model(batch), model.embedding.weight, batch.tgt_out_N, training.label_smoothing)
        (loss / len(batch.tgt_out_N)).backward()
        optimizer.param_groups[0]["lr"] = noam_rate(step + 1, 64, training)
        optimizer.step()
        optimizer.zero_grad()
    segments = iter([Segment(i, src) for i, (src, _) in enumerate(test)])
    steps = search([for_inference(model, torch.float32)], torch.float32, segments, SearchSettings(beam=1))
    best = {number: found[0].ids for results in steps for number, found in results}
    assert sum(best[i] == tgt[:-1] for i, (_, tgt) in enumerate(test)) >= 196, f"seed {seed}"
