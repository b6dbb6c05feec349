"""Golden learning rates, and the settings of Adam (section 5.3 of "Attention Is All You Need")."""

import pytest
import torch
from reference import batch_of, random_model, random_pairs, tiny

from nmt_cli.recipe.schema import Training
from nmt_cli.training.loss import smoothed_loss
from nmt_cli.training.optim import adam, noam_rate

PAPER = Training()
GOLDEN = {  # (d_model, step): rate, by hand
    (512, 1): 1.74693e-7,
    (512, 4000): 6.98771e-4,
    (512, 100_000): 1.39754e-4,
    (1024, 1): 1.23526e-7,
    (1024, 4000): 4.94106e-4,
    (1024, 100_000): 9.88212e-5,
    (1024, 300_000): 5.70544e-5,
}


@pytest.mark.parametrize(("size_and_step", "rate"), GOLDEN.items())
def test_golden_rates(size_and_step: tuple[int, int], rate: float) -> None:
    assert noam_rate(size_and_step[1], size_and_step[0], PAPER) == pytest.approx(rate, rel=1e-5)


def test_a_cooldown_ends_just_above_zero_and_changes_nothing_before_it() -> None:
    cooled = Training(steps=1000, warmup_steps=10, cooldown_steps=100)
    plain = cooled.model_copy(update={"cooldown_steps": 0})
    ratios = {s: noam_rate(s, 512, cooled) / noam_rate(s, 512, plain) for s in (1, 10, 500, 900, 901, 950, 999, 1000)}
    assert ratios[1] == ratios[10] == ratios[500] == ratios[900] == 1
    assert ratios[901] == pytest.approx(100 / 101)
    assert ratios[950] == pytest.approx(51 / 101)
    assert ratios[999] == pytest.approx(2 / 101)
    assert ratios[1000] == pytest.approx(1 / 101)


def test_the_optimizer_is_the_papers_adam() -> None:
    model = random_model(tiny(positions="learned"), 23).float()
    (group,) = adam(model, PAPER).param_groups
    assert group["betas"] == (0.9, 0.98)
    assert group["eps"] == 1e-9
    assert (group["weight_decay"], group["amsgrad"]) == (0, False)
    assert len(group["params"]) == len({p.data_ptr() for p in group["params"]}) == len(list(model.parameters()))
    (group,) = adam(model, Training(adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-6)).param_groups
    assert (group["betas"], group["eps"]) == ((0.8, 0.95), 1e-6)
    assert (PAPER.warmup_steps, PAPER.label_smoothing, PAPER.rate_factor, PAPER.cooldown_steps) == (4000, 0.1, 1.0, 0)


def test_the_row_of_pad_stays_zero_through_training() -> None:
    model = random_model(tiny(), 23).float()
    with torch.no_grad():
        model.embedding.weight[0] = 0
    optimizer = adam(model, PAPER)
    optimizer.param_groups[0]["lr"] = 1e-2
    for seed in range(3):
        batch = batch_of(random_pairs(seed, 23, [(4, 5), (3, 2)]))
        loss, _ = smoothed_loss(model(batch), model.embedding.weight, batch.tgt_out_N, 0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not model.embedding.weight[0].any()
