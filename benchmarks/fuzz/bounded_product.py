"""Products more exact than kernels compute them, and bounds on the error of a sum in the accumulator's type."""

from __future__ import annotations

import math
from typing import Any

import torch
from operands import torch_dtype
from problems import FuzzProblem
from recipes import INT8_PRODUCTS

from gemmule.core.dtype import FLOAT8_CERTAIN, FLOAT8_SEEN, accumulator, dtype_named

Tensors = dict[str, torch.Tensor]


def product(problem: FuzzProblem, arrays: Tensors, b: str, alpha: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return alpha * A @ B, and how far a sum in the accumulator's type may be from it."""
    first, second = arrays["a"].double(), arrays[b].double()
    sums = accumulator(dtype_named(problem.dtypes["a"]), dtype_named(problem.dtypes["b"])).part
    unit, tiny = sums.unit_roundoff, smallest(sums.name)
    if alpha == 0:
        nothing = torch.zeros(problem.result, dtype=torch.float64, device=first.device)
        return nothing, nothing
    total = torch.matmul(first, second)
    if sums.name == "float64" and problem.values != "whole" and total.numel() and problem.k:
        exact = sliced_product(first, second)
        total = torch.where(exact.isfinite(), exact, total)
    error = (problem.k + 3) * tiny * (1 + finite_size(alpha)) + 2 * unit * finite_size(alpha) * total.abs()
    if problem.values != "whole" or problem.precision == "float8":
        error = error + finite_size(alpha) * _rounding(problem, first, second, unit)
    if not math.isfinite(alpha):
        # A sum that may be 0, or of either sign.
        error = torch.where(total.abs() <= error, math.inf, error)
    return alpha * total, error


def _rounding(problem: FuzzProblem, first: torch.Tensor, second: torch.Tensor, unit: float) -> torch.Tensor:
    """Return how far sums may be from the product, but for what is subnormal."""
    size = torch.matmul(first.abs(), second.abs())
    # Numbers of very different sizes round in float64's own reference too.
    spans = problem.values in ("special", "spans", "opposed", "subnormal")
    relative = (problem.k + 3) * unit * (2 if unit == 2.0**-53 and spans else 1)
    if problem.precision == "tf32":
        relative += 2 * 2.0**-11 + 2.0**-22
    if problem.precision == "float8":
        # A product that is far larger than the others of its sum cuts more of their bits.
        relative += FLOAT8_SEEN if problem.values in ("normal", "whole") else FLOAT8_CERTAIN
    error = relative * size
    if problem.precision == "tf32":
        # TF32's own subnormal numbers are rounded to multiples of 2**-136.
        error = error + 2.0**-136 * sum(x.abs().nan_to_num(0, 0, 0).sum() for x in (first, second))
    if problem.precision in INT8_PRODUCTS:
        # An element is off by at most half of the unit of its row of A, or column of B, which its norm sets.
        unit = 2.0 ** (-58 + 4 * (15 - int(problem.precision[-2:])))
        rows = torch.linalg.vector_norm(first, dim=-1, keepdim=True) * second.abs().sum(-2, keepdim=True)
        columns = first.abs().sum(-1, keepdim=True) * torch.linalg.vector_norm(second, dim=-2, keepdim=True)
        error = error + unit * (rows + columns)
    return error


def sliced_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b, summed without rounding in slices of few bits down to 2**-60 of the largest terms."""
    if min(a.ndim, b.ndim) == 1:
        rows, columns = a if a.ndim > 1 else a[None], b if b.ndim > 1 else b[:, None]
        return sliced_product(rows, columns).squeeze(-2 if a.ndim == 1 else -1)
    bits = (53 - math.ceil(math.log2(max(a.shape[-1], 2)))) // 2
    count = -(-63 // bits)
    (left, rest_a), (right, rest_b) = _slices(a, bits, count, -1), _slices(b, bits, count, -2)
    high: Any = 0.0
    low: Any = 0.0
    # What two slices contribute falls with the sum of their numbers.
    for order in range(count):
        for i in range(order + 1):
            term = torch.matmul(left[i], right[order - i])
            total = high + term
            rest = total - high
            low = low + ((high - (total - rest)) + (term - rest))
            high = total
    # Numbers below that matter where no larger ones meet.
    for i in range(count):
        low = low + torch.matmul(left[i], rest_b[count - i])
    found: torch.Tensor = high + (low + torch.matmul(rest_a[count], b))
    return found


def _slices(x: torch.Tensor, bits: int, count: int, axis: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Cut a matrix into parts of `bits` bits below the largest element of each row (axis -1) or column (axis -2).

    Returns the parts, and what is left behind none of them, one of them, and so on.
    """
    _, exponent = torch.frexp(x.abs().amax(axis, keepdim=True))
    parts, left = [], [x]
    for number in range(1, count + 1):
        # Powers of two, put together from their bits.
        unit = ((exponent.long() - number * bits + 1023).clamp(1, 2046) << 52).view(torch.float64)
        part = torch.round(x / unit) * unit
        x = x - part
        parts.append(part)
        left.append(x)
    return parts, left


def finite_size(number: float) -> float:
    """Return the magnitude of a scalar, 1 of one that is not finite."""
    return abs(number) if math.isfinite(number) else 1.0


def single(number: Any) -> float:
    """Return a number rounded to float32."""
    return float(torch.tensor(number, dtype=torch.float64).float())


def smallest(name: str) -> float:
    """Return the smallest subnormal number of a type."""
    info = torch.finfo(torch_dtype(name))
    return float(info.smallest_normal) * float(info.eps)


def whole_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a product of integers modulo 2**32: float64 holds sums of products of 16 bits."""

    def parts(x: torch.Tensor) -> list[tuple[torch.Tensor, int]]:
        if x.dtype == torch.int8:
            return [(x.double(), 0)]
        low = (x.long() & 0xFFFF).double()
        return [(low, 0), ((x.long() >> 16).double(), 16)]

    total: Any = 0
    for first, up in parts(a):
        for second, further in parts(b):
            if up + further < 32:
                total = total + (torch.matmul(first, second).long() << (up + further))
    return (total + 2**31) % 2**32 - 2**31
