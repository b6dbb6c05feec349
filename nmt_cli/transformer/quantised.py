"""Linear layers with 8-bit weights and activations, for CPUs whose vector units multiply bytes.

Weights have one scale per output, activations one scale per row, found at run time. A scale per row, not per tensor,
so that a sentence's translation does not depend on the sentences beside it.
"""

import torch
from torch import Tensor, nn

ZERO = 128  # activations are stored as unsigned bytes: oneDNN's fast kernels want those


class Int8Linear(nn.Module):
    """x W^T + b in bytes.

    Args:
        weight_OI: of the layer.
        bias_O: None for none.
        dtype: of the output.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.scale_O = weight_OI.float().abs().amax(1).clamp_min(1e-12) / 127
        bytes_OI = (weight_OI.float() / self.scale_O[:, None]).round().to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(bytes_OI, None)
        self.zeros_O = torch.zeros(len(self.scale_O), dtype=torch.int64)
        # What the offset of the activations adds to every product; taking it off here is faster than a zero point.
        self.offset_O = bytes_OI.sum(1, dtype=torch.float32) * self.scale_O * (-ZERO / 127)
        self.bias_O = None if bias_O is None else bias_O.to(dtype)
        self.dtype = dtype

    def forward(self, x_NI: Tensor) -> Tensor:
        """Return N x O."""
        x_NI = x_NI.float()
        largest_N1 = x_NI.abs().amax(1, keepdim=True).clamp_min_(1e-12)
        # Half a step more before the fraction is cut off rounds to nearest; to bytes by way of int16 is the fast way.
        bytes_NI = (x_NI * (127 / largest_N1)).add_(ZERO + 0.5).to(torch.int16).to(torch.uint8)
        y_NO: Tensor = torch.ops.onednn.qlinear_pointwise(
            bytes_NI,
            1 / 127,
            0,
            self.packed,
            self.scale_O,
            self.zeros_O,
            self.offset_O,
            1.0,
            0,
            self.dtype,
            "none",
            [],
            "",
        )
        largest_N1 = largest_N1.to(self.dtype)
        return y_NO.mul_(largest_N1) if self.bias_O is None else torch.addcmul(self.bias_O, y_NO, largest_N1)
