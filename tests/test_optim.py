"""Golden learning rates and what Adam is made of (section 5.3)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import batch_of, random_model, random_pairs, tiny

from nmt_cli.recipe import Training
from nmt_cli.training.loss import smoothed_loss
from nmt_cli.training.optim import adam, noam_rate

PAPER = Training()
GOLDEN = {  # (d_model, step): rate, by a pocket calculator
    (512, 1): 1.74693e-7,
    (512, 4000): 6.98771e-4,
    (512, 100_000): 1.39754e-4,
    (1024, 1): 1.23526e-7,
    (1024, 4000): 4.94106e-4,
    (1024, 100_000): 9.88212e-5,
    (1024, 300_000): 5.70544e-5,
}


@pytest.mark.parametrize(("where", "rate"), GOLDEN.items())
def test_golden_rates(where: tuple[int, int], rate: float) -> None:
    assert noam_rate(where[1], where[0], PAPER) == pytest.approx(rate, rel=1e-5)


@given(st.integers(1, 200_000), st.integers(2, 4096), st.integers(1, 20_000))
def test_the_rate_rises_in_a_line_then_falls_with_the_root(step: int, d_model: int, warmup: int) -> None:
    training = Training(warmup_steps=warmup)
    rate, after = noam_rate(step, d_model, training), noam_rate(step + 1, d_model, training)
    peak = 1 / math.sqrt(d_model * warmup)
    assert 0 < rate <= peak * (1 + 1e-12)
    if step < warmup:
        assert after / rate == pytest.approx((step + 1) / step)
    else:
        assert after / rate == pytest.approx(math.sqrt(step / (step + 1)))
    assert noam_rate(warmup, d_model, training) == pytest.approx(peak)


def test_a_cooldown_ends_just_above_zero_and_changes_nothing_before_it() -> None:
    cooled = Training(steps=1000, warmup_steps=10, cooldown_steps=100)
    plain = cooled.model_copy(update={"cooldown_steps": 0})
    ratios = {s: noam_rate(s, 512, cooled) / noam_rate(s, 512, plain) for s in (1, 10, 500, 900, 901, 950, 999, 1000)}
    assert ratios[1] == ratios[10] == ratios[500] == ratios[900] == 1
    assert ratios[901] == pytest.approx(100 / 101)
    assert ratios[950] == pytest.approx(51 / 101)
    assert ratios[999] == pytest.approx(2 / 101)
    assert ratios[1000] == pytest.approx(1 / 101)


def test_the_papers_adam_and_nothing_more() -> None:
    model = random_model(tiny(positions="learned"), 23).float()
    (group,) = adam(model, PAPER).param_groups
    assert group["betas"] == (0.9, 0.98)
    assert group["eps"] == 1e-9
    assert len(group["params"]) == len({p.data_ptr() for p in group["params"]}) == len(list(model.parameters()))
    (group,) = adam(model, Training(adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-6)).param_groups
    assert (group["betas"], group["eps"]) == ((0.8, 0.95), 1e-6)
    assert (PAPER.warmup_steps, PAPER.label_smoothing, PAPER.rate_factor, PAPER.cooldown_steps) == (4000, 0.1, 1.0, 0)


def test_two_steps_of_adam_by_hand() -> None:
    linear = torch.nn.Linear(1, 1, bias=False).double()
    optimizer, weight, mean, square = adam(linear, Training(adam_epsilon=0.01)), linear.weight.item(), 0.0, 0.0
    optimizer.param_groups[0]["lr"] = 0.1
    for step, gradient in enumerate((0.5, -2.0), 1):
        mean, square = 0.9 * mean + 0.1 * gradient, 0.98 * square + 0.02 * gradient**2
        weight -= 0.1 * mean / (1 - 0.9**step) / (math.sqrt(square / (1 - 0.98**step)) + 0.01)
        linear.weight.grad = torch.full((1, 1), gradient, dtype=torch.float64)
        optimizer.step()
        assert linear.weight.item() == pytest.approx(weight, rel=1e-9)


def test_pads_row_stays_zero_through_training() -> None:
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
