"""Complex products as real ones of their parts."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from bounded_product import Tensors, finite_size, product, single, smallest
from problems import FuzzProblem

from gemmule.core.dtype import accumulator, dtype_named


def complex_product(problem: FuzzProblem, arrays: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the parts of a complex product: each is a real product with a K twice as long."""
    # A real factor is converted, as in NumPy: infinity times its imaginary part is NaN.
    a, b = (arrays[name].to(torch.complex128) for name in "ab")
    sums = accumulator(dtype_named(problem.dtypes["a"]), dtype_named(problem.dtypes["b"])).part
    unit, tiny = sums.unit_roundoff, smallest(sums.name)
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
    return (single(whole.real), single(whole.imag)) if name == "float32" else (whole.real, whole.imag)


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
        terms = [(scalar[0] * x, finite_size(scalar[0]) * of_x)]
        if scalar[1]:
            terms.append((sign * scalar[1] * y, finite_size(scalar[1]) * of_y))
        size = sum(term.abs().nan_to_num(0, 0, 0) for term, _ in terms)
        error = sum(error for _, error in terms) + 3 * unit * size + 4 * tiny
        found.append((sum(term for term, _ in terms), error))
    return found
