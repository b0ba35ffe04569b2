"""Exact or more exact results of random problems, and componentwise bounds on the error of what is computed."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from operands import torch_dtype
from planning import STEP
from problems import FuzzProblem
from recipes import INT8_PRODUCTS

from gemmule.core.block_scales import BLOCK
from gemmule.core.dtype import FLOAT8_CERTAIN, FLOAT8_SEEN, Kind, accumulator, dtype_named

Tensors = dict[str, torch.Tensor]
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
        # What is infinite for certain stays so.
        size = (c.abs() + x.abs()).nan_to_num(0, 0, 0)
        x, error = x + c, error + 2 * unit * size + 2 * tiny
    if problem.epilogue is None or problem.epilogue == "absmax":
        return x, error
    return finished(problem, arrays, x, error, alpha)


def complex_product(problem: FuzzProblem, arrays: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the parts of a complex product: each is a real product with a K twice as long."""
    # A real factor is converted, as in NumPy: infinity times its imaginary part is NaN.
    a, b = (arrays[name].to(torch.complex128) for name in "ab")
    sums = accumulator(dtype_named(problem.dtypes["a"]), dtype_named(problem.dtypes["b"])).part
    unit, tiny = sums.unit_roundoff, _tiny(sums.name)
    alpha, beta = (_rounded_parts(x, sums.name) for x in (problem.alpha, problem.beta))
    longer = dataclasses.replace(problem, k=2 * problem.k)
    # A real alpha multiplies each part alone, an infinite one too.
    factor = alpha[0] if not alpha[1] else 1.0
    parts = [product(longer, dict(zip("ab", pair, strict=True)), "b", factor) for pair in _real_factors(a, b)]
    if alpha[1]:
        parts = _times(alpha, parts, unit, tiny)
    if any(beta) and "c" in arrays:
        c = arrays["c"].to(torch.complex128)
        exact = [(part, torch.zeros((), dtype=torch.float64, device=part.device)) for part in (c.real, c.imag)]
        added = _times(beta, exact, unit, tiny)
        parts = [
            (x + y, e + f + 2 * unit * (x.abs() + y.abs()).nan_to_num(0, 0, 0) + 2 * tiny)
            for (x, e), (y, f) in zip(parts, added, strict=True)
        ]
    values, errors = zip(*parts, strict=True)
    return torch.stack(values, -1), torch.stack([e.expand(problem.result) for e in errors], -1)


def _rounded_parts(number: Any, name: str) -> tuple[float, float]:
    whole = complex(number)
    return (_single(whole.real), _single(whole.imag)) if name == "float32" else (whole.real, whole.imag)


def _real_factors(a: torch.Tensor, b: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the factors of the real products that are the real and the imaginary part."""
    axis = -1 if b.ndim == 1 else -2
    return [
        (torch.cat((a.real, -a.imag), -1), torch.cat((b.real, b.imag), axis)),
        (torch.cat((a.real, a.imag), -1), torch.cat((b.imag, b.real), axis)),
    ]


def _times(
    scalar: tuple[float, float], parts: Any, unit: float, tiny: float
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the parts of complex numbers times a scalar, each with its error; a real scalar multiplies each alone."""
    real, imag = parts
    found = []
    for (x, of_x), (y, of_y), sign in ((real, imag, -1), (imag, real, 1)):
        terms = [(scalar[0] * x, _finite(scalar[0]) * of_x)]
        if scalar[1]:
            terms.append((sign * scalar[1] * y, _finite(scalar[1]) * of_y))
        size = sum(term.abs().nan_to_num(0, 0, 0) for term, _ in terms)
        error = sum(error for _, error in terms) + 3 * unit * size + 4 * tiny
        found.append((sum(term for term, _ in terms), error))
    return found


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


def product(problem: FuzzProblem, arrays: Tensors, b: str, alpha: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return alpha * A @ B, and how far a sum in the accumulator's type may be from it."""
    first, second = arrays["a"].double(), arrays[b].double()
    sums = accumulator(dtype_named(problem.dtypes["a"]), dtype_named(problem.dtypes["b"])).part
    unit, tiny = sums.unit_roundoff, _tiny(sums.name)
    if alpha == 0:
        nothing = torch.zeros(problem.result, dtype=torch.float64, device=first.device)
        return nothing, nothing
    total = torch.matmul(first, second)
    if sums.name == "float64" and problem.values != "whole" and total.numel() and problem.k:
        exact = _sliced_product(first, second)
        total = torch.where(exact.isfinite(), exact, total)
    error = (problem.k + 3) * tiny * (1 + _finite(alpha)) + 2 * unit * _finite(alpha) * total.abs()
    if problem.values != "whole" or problem.precision == "float8":
        error = error + _finite(alpha) * _rounding(problem, first, second, unit)
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


def _sliced_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b, summed without rounding in slices of few bits down to 2**-60 of the largest terms."""
    if min(a.ndim, b.ndim) == 1:
        rows, columns = a if a.ndim > 1 else a[None], b if b.ndim > 1 else b[:, None]
        return _sliced_product(rows, columns).squeeze(-2 if a.ndim == 1 else -1)
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


def _finite(number: float) -> float:
    return abs(number) if math.isfinite(number) else 1.0


def _single(number: Any) -> float:
    return float(torch.tensor(number, dtype=torch.float64).float())


def _tiny(name: str) -> float:
    """Return the smallest subnormal number of a type."""
    info = torch.finfo(torch_dtype(name))
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
    bound = error + out.unit_roundoff * y.abs() * 1.01 + _tiny(out.name)
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
