"""What quantisation should make of a matrix, and a verdict on what it made."""

from __future__ import annotations

import math
from typing import Any

import torch
from problems import FuzzProblem

from gemmule.core.block_scales import BLOCK
from gemmule.core.dtype import dtype_named
from gemmule.core.quantize_problem import LEAST_SCALE, scales_shape


def quantized_verdict(problem: FuzzProblem, x: torch.Tensor, got: Any) -> torch.Tensor:
    """Return how many scales and 8-bit floats are wrong, and the greatest error as a share of half a unit.

    Scales are the largest magnitude of their part over the largest 8-bit float, correctly rounded, or the next power of
    two; in parts with an infinity or NaN, all products of values and scales are NaN.
    """
    values, scales = got
    out = dtype_named(problem.dtypes["out"])
    rows, cols = x.shape[-2:]
    shape = (*x.shape[:-2], *scales_shape(problem.options["by"], rows, cols))
    assert tuple(values.shape) == tuple(x.shape), f"the values have shape {tuple(values.shape)}"
    assert tuple(scales.shape) == shape, f"the scales have shape {tuple(scales.shape)}, not {shape}"
    wide = x.double()
    most = _largest(problem.options["by"], wide)
    finite = most.isfinite()
    exact = (most / out.max_value).clamp(min=LEAST_SCALE).float().double()
    if problem.options["scale_dtype"] != "float32":
        assert scales.dtype == torch.float8_e8m0fnu, f"the scales are {scales.dtype}"
        mantissa, exponent = torch.frexp(exact)
        exact = torch.exp2((exponent - (mantissa == 0.5).int()).double())
    found = scales.float().double()
    wrong = (finite & (found != exact)).sum() + (~finite & found.isfinite()).sum()
    whole = found.repeat_interleave(BLOCK, -1)[..., :cols] if problem.options["by"] == "block" else found
    of_finite = finite.repeat_interleave(BLOCK, -1)[..., :cols] if problem.options["by"] == "block" else finite
    of_finite = of_finite.expand(x.shape)
    wanted = (wide / whole).clamp(-out.max_value, out.max_value)
    smallest = float(torch.finfo(values.dtype).smallest_normal) * float(torch.finfo(values.dtype).eps)
    # Half a unit of an 8-bit float, and a quotient rounded twice.
    bound = torch.maximum(wanted.abs() * out.unit_roundoff, torch.full_like(wanted, smallest / 2)) * (1 + 2.0**-20)
    share = torch.where(of_finite, (values.double() - wanted).abs() / bound, 0.0)
    wrong = wrong + (of_finite & ~(share <= 1)).sum() + (~of_finite & ~(values.double() * whole).isnan()).sum()
    worst = share.nan_to_num(math.inf).max() if share.numel() else torch.zeros((), dtype=torch.float64, device=x.device)
    return torch.stack((wrong.double(), worst))


def _largest(by: str, x: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude of each part, NaN and infinity included; 0 of what has no elements."""
    if by == "block":
        x = torch.nn.functional.pad(x, (0, -x.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    axes = (-2, -1) if by == "tensor" else (-1,)
    # With a zero, which is no larger than any.
    padded = torch.nn.functional.pad(x.abs(), (0, 1, 0, 1) if by == "tensor" else (0, 1))
    # amax hands NaN on.
    return padded.amax(axes, keepdim=by != "block")
