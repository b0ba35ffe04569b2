"""What random products should be, in float64 or whole numbers, and how far from that a result may be."""

from __future__ import annotations

import math
from typing import Any

import torch
from random_arrays import dtype_of
from random_draw import RandomProblem

from gemmule.core.dtype import Kind, accumulator, dtype_named

Tensors = dict[str, torch.Tensor]
_ROOT = math.sqrt(2)


def expected(problem: RandomProblem, arrays: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the result should be before it is rounded, and how much the computed one may differ then.

    Parameters
    ----------
    problem : RandomProblem
        The product.
    arrays : dict of str to Tensor
        Its arrays as their user sees them.
    """
    alpha, beta = problem.alpha, problem.beta
    sums = accumulator(dtype_named(problem.dtypes["a"]), dtype_named(problem.dtypes["b"]))
    if sums.kind is Kind.INTEGER:
        total = (
            _whole(arrays["a"], arrays["b"]) * alpha
            if alpha
            else torch.zeros((), dtype=torch.int64, device=arrays["a"].device)
        )
        if beta:
            total = total + beta * arrays["c"].long()
        # What is before rounding is a whole number of 32 bits.
        total = (total.long() + 2**31) % 2**32 - 2**31
        return total.expand(problem.result), torch.zeros((), device=total.device)
    if sums.name == "float32":
        alpha, beta = _single(alpha), _single(beta)
    x, error = product(problem, arrays, "b", alpha)
    unit, tiny = sums.unit_roundoff, _tiny(sums.name)
    if problem.beta != 0 and "c" in arrays:
        c = beta * arrays["c"].double()
        x, error = x + c, error + 2 * unit * (c.abs() + x.abs()) + 2 * tiny
    if problem.ending is None or problem.ending == "absmax":
        return x, error
    return finished(problem, arrays, x, error, alpha)


def product(problem: RandomProblem, arrays: Tensors, b: str, alpha: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return alpha * A @ B, and how far a sum in the accumulator's type may be from it."""
    first, second = arrays["a"].double(), arrays[b].double()
    sums = accumulator(dtype_named(problem.dtypes["a"]), dtype_named(problem.dtypes["b"]))
    unit, tiny = sums.unit_roundoff, _tiny(sums.name)
    if alpha == 0:
        nothing = torch.zeros(problem.result, dtype=torch.float64, device=first.device)
        return nothing, nothing
    total = torch.matmul(first, second)
    error = (problem.k + 3) * tiny * (1 + _finite(alpha)) + 2 * unit * _finite(alpha) * total.abs()
    if problem.values != "whole":
        # float64's own reference errs as much.
        size = torch.matmul(first.abs(), second.abs())
        relative = (problem.k + 3) * unit * (2 if sums.name == "float64" else 1)
        if problem.precision == "tf32":
            relative += 2 * 2.0**-11 + 2.0**-22
            # TF32's own subnormal numbers are rounded to multiples of 2**-136.
            reach = sum(x.abs().nan_to_num(0, 0, 0).sum() for x in (first, second))
            error = error + 2.0**-136 * _finite(alpha) * reach
        error = error + relative * _finite(alpha) * size
    if not math.isfinite(alpha):
        # A sum that may be 0, or of either sign.
        error = torch.where(total.abs() <= error, math.inf, error)
    return alpha * total, error


def _finite(number: float) -> float:
    return abs(number) if math.isfinite(number) else 1.0


def _single(number: float) -> float:
    return float(torch.tensor(number, dtype=torch.float64).float())


def _tiny(name: str) -> float:
    """Return the smallest subnormal number of a type."""
    info = torch.finfo(dtype_of(name))
    return float(info.smallest_normal) * float(info.eps)


def _whole(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
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


def finished(
    problem: RandomProblem, arrays: Tensors, x: torch.Tensor, error: torch.Tensor, alpha: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what an epilogue makes of a product, and how far the computed one may be from that."""
    ending = problem.ending
    sums = accumulator(dtype_named(problem.dtypes["a"]), dtype_named(problem.dtypes["b"]))
    unit = sums.unit_roundoff
    given = {name: array.double() for name, array in arrays.items() if name in ("bias", "x", "y", "c")}
    if ending in ("swiglu", "pairs", "second"):
        gate, up, errors = _halves(problem, arrays, alpha)
        if ending == "swiglu":
            n = problem.n
            gate, up = gate + given["bias"][:n], up + given["bias"][n:]
            errors = tuple(e + 2 * unit * y.abs() for e, y in zip(errors, (gate, up), strict=True))
            y, slack = _silu(gate), 1.1 * errors[0] + _slack(problem, gate, unit)
        else:
            y, slack = torch.relu(gate), errors[0]
        scale = 0.75 if ending == "pairs" else 1.0
        return scale * y * up, (slack * up.abs() + y.abs() * errors[1] + slack * errors[1]) * 1.01 + 8 * unit * (
            y * up
        ).abs()
    if "bias" in given:
        x = x + given["bias"]
        error = error + 2 * unit * (x.abs() + given["bias"].abs())
    if ending == "bias":
        return x, error
    if ending == "relu":
        return torch.where(x > 0, x, torch.where(x.isnan(), x, 0.0)), error
    if ending == "residual":
        y = 0.75 * torch.where(x > 0, x, torch.where(x.isnan(), x, 0.0)) + given["c"]
        return y, error + 4 * unit * (y.abs() + given["c"].abs())
    if ending == "two_matrices":
        other, factor = given["x"], given["y"]
        apart = x - other
        y = torch.where(apart > 0, apart * factor, -apart)
        error = error + 2 * unit * (x.abs() + other.abs())
        return y, error * factor.abs().clamp(min=1) + 2 * unit * y.abs()
    function = {"gelu": _gelu, "gelu_tanh": _gelu_tanh, "silu": _silu}[str(ending)]
    return function(x), 1.13 * error + _slack(problem, x, unit)


def _halves(
    problem: RandomProblem, arrays: Tensors, alpha: Any
) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
    b, n = arrays["b"], problem.n
    if problem.ending == "second":
        halves = (b, arrays["up"])
    elif problem.ending == "pairs":
        halves = (b[..., ::2], b[..., 1::2])
    else:
        halves = (b[..., :n], b[..., n:])
    (gate, first), (up, second) = (product(problem, {**arrays, "b": half}, "b", alpha) for half in halves)
    return gate, up, (first, second)


def _slack(problem: RandomProblem, x: torch.Tensor, unit: float) -> torch.Tensor:
    """Return what the activations may be off for an exact argument, as docs/epilogues.md says."""
    size = x.abs().nan_to_num(0, 0, 0)
    if unit < 2.0**-50:
        return 64 * unit * size.clamp(min=1)
    relative = 2.0**-16 * size + 2.0**-21 * size.clamp(min=1)
    if problem.ending == "gelu":
        relative = 2.0**-21 * size.clamp(min=1)
        if problem.dtypes["out"] != "float32":
            relative = relative + 2.0**-14 * size * torch.special.erfc(size / _ROOT) / 2
    return relative


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x == -math.inf, 0.0, x * torch.special.erfc(-x / _ROOT) / 2)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return torch.where(x == -math.inf, 0.0, x * torch.sigmoid(2 * inner))


def _silu(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x == -math.inf, 0.0, x * torch.sigmoid(x))


def verdict(problem: RandomProblem, got: torch.Tensor, y: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """Return how many elements are wrong, and the greatest error as a share of its bound."""
    out = dtype_named(problem.dtypes["out"])
    if out.kind is Kind.INTEGER:
        wrong = (got.long() != y.to(dtype_of(out.name)).long()).sum()
        return torch.stack((wrong.double(), torch.zeros_like(wrong, dtype=torch.float64)))
    got = got.double()
    if y.dtype != torch.float64:
        y = y.double()
    most = out.max_value
    if out.is_float8:
        y = y.clamp(-most, most)
    bound = error + out.unit_roundoff * y.abs() * 1.01 + _tiny(out.name)
    share = (got - y).abs() / bound
    fits = share <= 1
    # An infinity in the place of what is beyond the type's largest number, or may be.
    fits |= (got == y.sign() * math.inf) & (y.abs() + error >= most * (1 + out.unit_roundoff / 2) * (1 - 1e-6))
    # Infinities and NaN are where they should be; a sum of about 0 times infinity may be of either sign.
    fits |= (got == y) | (got.isnan() & y.isnan())
    fits |= ~got.isfinite() & (error == math.inf)
    counted = torch.where(share.isfinite(), share, 0.0)
    worst = counted.max() if counted.numel() else torch.zeros((), dtype=torch.float64, device=got.device)
    return torch.stack(((~fits).sum().double(), worst))
