"""The simpler simple recurrent unit (SSRU), which can replace the decoder's self-attention (Kim et al. 2019).

    f_t = sigmoid(x_t W_f + b_f)    c_t = f_t * c_(t-1) + (1 - f_t) * (x_t W)    h_t = relu(c_t)

A step of decoding takes the same time at every position, because a hypothesis keeps only one vector per layer.
Shapes: N tokens in a packed batch, R hypotheses, D d_model. The states are in float32 or wider.
"""

from typing import Any

import torch
from torch import Tensor, nn

from nmt_cli.transformer.attention import Layout, linear


def _combined(factors_ND: Tensor, terms_ND: Tensor, positions_N: Tensor, longest: int) -> Tensor:
    """Return y with y_t = factor_t * y_(t-1) + term_t within each sentence, where y = 0 before the first token.

    After a pass of the loop, each factor and each term stand for twice as many steps as before. `positions_N` numbers
    the tokens of each sentence from 0, in the order of the rows. `longest` is at least the number of tokens in the
    longest sentence.
    """
    distance = 1
    while distance < min(longest, len(terms_ND)):
        inside_N1 = (positions_N[distance:] >= distance)[:, None]
        zero = factors_ND.new_zeros(())
        earlier = torch.where(inside_N1, terms_ND[:-distance], zero)
        terms_ND = torch.cat([terms_ND[:distance], torch.addcmul(terms_ND[distance:], factors_ND[distance:], earlier)])
        earlier = torch.where(inside_N1, factors_ND[:-distance], zero)
        factors_ND = torch.cat([factors_ND[:distance], factors_ND[distance:] * earlier])
        distance *= 2
    return terms_ND


class _Scan(torch.autograd.Function):
    """The recurrence of `_combined` with a gradient. The same recurrence in reverse gives the gradient of the terms.

    `left_N` holds the number of tokens that follow each token in its sentence.
    """

    @staticmethod
    def forward(
        ctx: Any, factors_ND: Tensor, terms_ND: Tensor, positions_N: Tensor, left_N: Tensor, longest: int
    ) -> Tensor:
        states_ND = _combined(factors_ND, terms_ND, positions_N, longest)
        ctx.save_for_backward(factors_ND, states_ND, positions_N, left_N)
        ctx.longest = longest
        return states_ND

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        factors_ND, states_ND, positions_N, left_N = ctx.saved_tensors
        next_factors_ND = factors_ND.roll(-1, 0)
        terms_ND = _combined(next_factors_ND.flip(0), grads[0].flip(0), left_N.flip(0), ctx.longest).flip(0)
        before_ND = torch.where((positions_N > 0)[:, None], states_ND.roll(1, 0), states_ND.new_zeros(()))
        return terms_ND * before_ND, terms_ND, None, None, None


class SSRU(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.forget = nn.Linear(d_model, d_model)

    def gates(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Return, for each token, the factor f and the term (1 - f) * (x W) of the recurrence."""
        wide = torch.promote_types(x_ND.dtype, torch.float32)
        forget_ND = torch.sigmoid(linear(x_ND, self.forget).to(wide))
        return forget_ND, (1 - forget_ND) * linear(x_ND, self.value).to(wide)

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        """Return the output for each token of packed sentences, N x D."""
        factors_ND, terms_ND = self.gates(x_ND)
        left_N = layout.lengths_B.repeat_interleave(layout.lengths_B, output_size=len(x_ND)) - 1 - layout.positions_N
        longest = layout.max_length if x_ND.is_cuda else max(width for _, width in layout.blocks)
        states_ND: Tensor = _Scan.apply(factors_ND, terms_ND, layout.positions_N, left_N, longest)  # type: ignore[no-untyped-call]
        return torch.relu(states_ND).to(x_ND.dtype)

    def step(self, x_RD: Tensor, before_RD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and the new state of each hypothesis, given its layer input and its previous state."""
        forget_RD, term_RD = self.gates(x_RD)
        states_RD = torch.addcmul(term_RD, forget_RD, before_RD)
        return torch.relu(states_RD).to(x_RD.dtype), states_RD
