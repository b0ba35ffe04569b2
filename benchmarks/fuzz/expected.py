"""Exact or more exact results of random problems, and componentwise bounds on the error of what is computed."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from bounded_product import Tensors, product, single, smallest, whole_product
from expected_parts import complex_product
from expected_scales import scaled_product
from operands import torch_dtype
from planning import STEP
from problems import FuzzProblem

from gemmule.core.dtype import Kind, accumulator, dtype_named

_ROOT = math.sqrt(2)


def expected(problem: FuzzProblem, arrays: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the result should be before it is rounded, and how much the computed one may differ then.

    Of complex results, that of both parts, along an axis of their own.

    Parameters
    ----------
    problem : FuzzProblem
        The product.
    arrays : dict of str to Tensor
        Its arrays as their user sees them.
    """
    if problem.is_complex:
        return complex_product(problem, arrays)
    if problem.divided:
        return product_of_groups(problem, arrays)
    if problem.operation == "scaled_gemm":
        return scaled_product(problem, arrays)
    alpha, beta = problem.alpha, problem.beta
    sums = accumulator(dtype_named(problem.dtypes["a"]), dtype_named(problem.dtypes["b"]))
    if sums.kind is Kind.INTEGER:
        total = (
            whole_product(arrays["a"], arrays["b"]) * alpha
            if alpha
            else torch.zeros((), dtype=torch.int64, device=arrays["a"].device)
        )
        if beta:
            total = total + beta * arrays["c"].long()
        # What is before rounding is a whole number of 32 bits.
        total = (total.long() + 2**31) % 2**32 - 2**31
        return total.expand(problem.result), torch.zeros((), device=total.device)
    if sums.name == "float32":
        alpha, beta = single(alpha), single(beta)
    x, error = product(problem, arrays, "b", alpha)
    unit, tiny = sums.unit_roundoff, smallest(sums.name)
    if problem.beta != 0 and "c" in arrays:
        c = beta * arrays["c"].double()
        # What is infinite for certain stays so.
        size = (c.abs() + x.abs()).nan_to_num(0, 0, 0)
        x, error = x + c, error + 2 * unit * size + 2 * tiny
    if problem.epilogue is None or problem.epilogue == "absmax":
        return x, error
    return finished(problem, arrays, x, error, alpha)


def groups_of(problem: FuzzProblem) -> Iterator[tuple[int, Any]]:
    """Yield the number of each group, or matrix, and what of the divided dimension it has; ends are cut off."""
    if problem.divided == "row":
        for number in range(problem.extent):
            yield number, [row for row, one in enumerate(problem.numbers) if one == number]
    else:
        ends = (0, *(min(end, problem.extent) for end in problem.numbers))
        yield from enumerate(itertools.starmap(slice, itertools.pairwise(ends)))


def length_of(part: Any) -> int:
    """Return how many rows, columns or k a group has."""
    return part.stop - part.start if isinstance(part, slice) else len(part)


def product_of_groups(problem: FuzzProblem, arrays: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the products of all groups, zero where none is."""
    y = torch.zeros(problem.result, dtype=torch.float64, device=arrays["a"].device)
    error = torch.zeros_like(y)
    for group, part in groups_of(problem):
        if not (count := length_of(part)):
            continue
        own = _of_group(problem, arrays, group, part)
        place: Any = {"n": (slice(None), part), "k": group}.get(problem.divided, part)
        divided: dict[str, Any] = {"m" if problem.divided == "row" else problem.divided: count}
        one = dataclasses.replace(problem, divided="", result=tuple(y[place].shape), **divided)
        y[place], error[place] = (scaled_product if "scale_a" in own else expected)(one, own)
    return y, error


def _of_group(problem: FuzzProblem, arrays: Tensors, group: int, part: Any) -> Tensors:
    """Return the arrays of a group."""
    a, b = arrays["a"], arrays["b"]
    if problem.divided == "n":
        return {"a": a[group], "b": b[:, part]}
    if problem.divided == "k":
        return {"a": a[:, part], "b": b[part]}
    own = {"a": a[part], "b": b[group]}
    if "bias" in arrays:
        own["bias"] = arrays["bias"][group]
    if "scale_a" in arrays:
        rows, columns = arrays["scale_a"], arrays["scale_b"]
        own["scale_a"] = rows[part] if rows.ndim > 1 else rows.reshape(1, 1)
        own["scale_b"] = columns[group] if columns.ndim > 1 else columns.reshape(1, 1)
    return own


def finished(
    problem: FuzzProblem, arrays: Tensors, x: torch.Tensor, error: torch.Tensor, alpha: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what an epilogue makes of a product, and how far the computed one may be from that."""
    epilogue = problem.epilogue
    sums = accumulator(dtype_named(problem.dtypes["a"]), dtype_named(problem.dtypes["b"]))
    unit = sums.unit_roundoff
    given = {name: array.double() for name, array in arrays.items() if name in ("bias", "x", "y", "c")}
    if epilogue in ("swiglu", "pairs", "second"):
        gate, up, errors = _halves(problem, arrays, alpha)
        if epilogue == "swiglu":
            n = problem.n
            gate, up = gate + given["bias"][:n], up + given["bias"][n:]
            errors = tuple(e + 2 * unit * y.abs() for e, y in zip(errors, (gate, up), strict=True))
            y, slack = _silu(gate), 1.1 * errors[0] + _slack(problem, gate, unit)
        else:
            y, slack = torch.relu(gate), torch.where(gate < -errors[0], 0.0, errors[0])
        scale = 0.75 if epilogue == "pairs" else 1.0
        return scale * y * up, (slack * up.abs() + y.abs() * errors[1] + slack * errors[1]) * 1.01 + 8 * unit * (
            y * up
        ).abs()
    if "bias" in given:
        x = x + given["bias"]
        error = error + 2 * unit * (x.abs() + given["bias"].abs())
    if epilogue == "bias":
        return x, error
    if epilogue == "relu":
        return torch.where(x > 0, x, torch.where(x.isnan(), x, 0.0)), error
    if epilogue == "residual":
        y = 0.75 * torch.where(x > 0, x, torch.where(x.isnan(), x, 0.0)) + given["c"]
        return y, error + 4 * unit * (y.abs() + given["c"].abs())
    if epilogue == "two_matrices":
        other, factor = given["x"], given["y"]
        apart = x - other
        y = torch.where(apart > 0, apart * factor, -apart)
        error = error + 2 * unit * (x.abs() + other.abs())
        return y, error * factor.abs().clamp(min=1) + 2 * unit * y.abs()
    function = {"gelu": _gelu, "gelu_tanh": _gelu_tanh, "silu": _silu}[str(epilogue)]
    return function(x), 1.13 * error + _slack(problem, x, unit)


def _halves(
    problem: FuzzProblem, arrays: Tensors, alpha: Any
) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
    b, n = arrays["b"], problem.n
    if problem.epilogue == "second":
        halves = (b, arrays["up"])
    elif problem.epilogue == "pairs":
        halves = (b[..., ::2], b[..., 1::2])
    else:
        halves = (b[..., :n], b[..., n:])
    (gate, first), (up, second) = (product(problem, {**arrays, "b": half}, "b", alpha) for half in halves)
    return gate, up, (first, second)


def _slack(problem: FuzzProblem, x: torch.Tensor, unit: float) -> torch.Tensor:
    """Return what the activations may be off for an exact argument, as docs/epilogues.md says."""
    size = x.abs().nan_to_num(0, 0, 0)
    if unit < 2.0**-50:
        return 64 * unit * size.clamp(min=1)
    relative = 2.0**-16 * size + 2.0**-21 * size.clamp(min=1)
    if problem.epilogue == "gelu":
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


def verdict(problem: FuzzProblem, got: torch.Tensor, y: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """Return how many elements are wrong, and the greatest error as a share of its bound."""
    out = dtype_named(problem.dtypes["out"])
    if out.kind is Kind.INTEGER:
        wrong = (got.long() != y.to(torch_dtype(out.name)).long()).sum()
        return torch.stack((wrong.double(), torch.zeros_like(wrong, dtype=torch.float64)))
    if problem.operation == "staircase":
        row = torch.arange(problem.m, device=got.device)[:, None] // STEP
        needed = torch.arange(problem.n, device=got.device) < problem.first + (row + 1) * STEP
        got, y, error = (torch.where(needed, x, 0.0) for x in (got, y, error))
    got, out = (torch.view_as_real(got).double() if got.is_complex() else got.double()), out.part
    if y.dtype != torch.float64:
        y = y.double()
    most = out.max_value
    if out.is_float8:
        y = y.clamp(-most, most)
    bound = error + out.unit_roundoff * y.abs() * 1.01 + smallest(out.name)
    share = (got - y).abs() / bound
    fits = share <= 1
    if not out.is_float8:
        # An infinity in the place of what is beyond the type's largest number, or may be.
        fits |= (got == y.sign() * math.inf) & (y.abs() + error >= most * (1 + out.unit_roundoff / 2) * (1 - 1e-6))
    # Infinities and NaN are where they should be; a sum of about 0 times infinity may be of either sign.
    fits |= (got == y) | (got.isnan() & y.isnan())
    # 8-bit floats hold their largest number in the place of an infinity.
    fits |= (~got.isfinite() | (got.abs() >= most if out.is_float8 else False)) & (error == math.inf)
    counted = torch.where(share.isfinite(), share, 0.0)
    worst = counted.max() if counted.numel() else torch.zeros((), dtype=torch.float64, device=got.device)
    return torch.stack(((~fits).sum().double(), worst))
