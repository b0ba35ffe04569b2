"""Products of 8-bit floats with scales."""

from __future__ import annotations

from typing import Any

import torch
from bounded_product import Tensors, product
from problems import FuzzProblem

from gemmule.core.block_scales import BLOCK


def scaled_product(problem: FuzzProblem, arrays: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a product of operands with scales, each of everything, of lines, or of blocks of them and 128 of K."""
    a, b = arrays["a"].double(), arrays["b"].double()
    a = a * _spread(arrays["scale_a"].double(), a.shape)
    b = b * _spread(arrays["scale_b"].double().mT, b.mT.shape).mT
    x, error = product(problem, {**arrays, "a": a, "b": b}, "b", 1.0)
    unit = 2.0**-24
    # Rounded: products of scales, and what they multiply.
    error = error + 8 * unit * torch.matmul(a.abs(), b.abs())
    if "bias" in arrays:
        bias = arrays["bias"].double()
        x, error = x + bias, error + 2 * unit * (x.abs() + 2 * bias.abs())
    if "scale_result" in arrays:
        scale = arrays["scale_result"].double()
        x, error = x * scale, error * scale + 2 * unit * (x * scale).abs()
    return x, error


def _spread(scales: torch.Tensor, shape: Any) -> torch.Tensor:
    """Return scales of (lines, K): of one element, of lines, or of blocks of 1 or 128 lines and 128 of K."""
    for axis, extent in enumerate(shape):
        if scales.shape[axis] not in (1, extent) or (axis == 1 and scales.shape[1] > 1):
            scales = scales.repeat_interleave(BLOCK, axis).narrow(axis, 0, extent)
    return scales
