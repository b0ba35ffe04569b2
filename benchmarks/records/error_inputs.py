"""Inputs that errors of products are measured with, from harmless to wide; for benchmarks, on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

#: Rows of A and columns of B, and the largest power of two by which they are scaled.
SIDE, SCALES = 512, 40
DEVICE = "cuda"


def uniform(*shape: int) -> torch.Tensor:
    """Numbers from 0 to 1."""
    return torch.rand(*shape, device=DEVICE, dtype=torch.float64)


def normal(*shape: int) -> torch.Tensor:
    """Numbers of the normal distribution."""
    return torch.randn(*shape, device=DEVICE, dtype=torch.float64)


def wide(spread: float, shift: float) -> Callable[..., torch.Tensor]:
    """Numbers of both signs (shift 0.5) or one (0) whose logarithm spreads."""
    return lambda *shape: (uniform(*shape) - shift) * torch.exp(spread * normal(*shape))


FAMILIES: dict[str, Callable[..., torch.Tensor]] = {
    "normal(0, 1)": normal,
    "from 0 to 1": uniform,
    "(x - 0.5) exp(0.5 z)": wide(0.5, 0.5),
    "(x - 0.5) exp(z)": wide(1, 0.5),
    "(x - 0.5) exp(2 z)": wide(2, 0.5),
    "(x - 0.5) exp(4 z)": wide(4, 0.5),
    "x exp(2 z)": wide(2, 0),
    "rows and columns times 2**-40 to 2**40": normal,
    "columns of A and rows of B times 2**-40 to 2**40": normal,
    "[A, -A] times [B; B + 2**-12 B']": normal,
}


def scales(*shape: int) -> torch.Tensor:
    """Random powers of two."""
    return torch.exp2(torch.randint(-SCALES, SCALES + 1, shape, device=DEVICE).double())


def factors(family: str, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A and B of a family in float64, fresh."""
    draw = FAMILIES[family]
    a, b = draw(SIDE, k), draw(k, SIDE)
    if family.startswith("rows"):
        a, b = a * scales(SIDE, 1), b * scales(1, SIDE)
    if family.startswith("columns"):
        a, b = a * scales(1, k), b * scales(k, 1)
    if family.startswith("[A") and k > 1:
        half = k // 2
        a[:, half : 2 * half] = -a[:, :half]
        b[half : 2 * half] = b[:half] + 2.0**-12 * b[half : 2 * half]
    return a, b
