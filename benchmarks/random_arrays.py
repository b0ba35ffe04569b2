"""Arrays of random problems: strided views into memory of PyTorch, poisoned around them."""

from __future__ import annotations

import math
from typing import Any

import torch
from random_draw import RandomProblem
from random_lies import Lie, Shape

_GUARD = 256
#: Bytes of memory that nobody has written: NaN of every float, -77 of int8.
POISON, POISON_WHOLE = 0xFF, 0xB3
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def dtype_of(name: str) -> torch.dtype:
    """Return PyTorch's type of that name."""
    found: torch.dtype = getattr(torch, name)
    return found


class Placed:
    """An array in memory of its own.

    Parameters
    ----------
    shape : tuple of int
        Its shape.
    dtype : str
        Name of its type.
    lie : Lie
        How it lies.
    device : str
        Where.

    Attributes
    ----------
    view : torch.Tensor
        The array, but for axes that are walked backwards.
    """

    def __init__(self, shape: Shape, dtype: str, lie: Lie, device: str) -> None:
        kind = dtype_of(dtype)
        self.flipped, self.dtype = lie.flipped, dtype
        strides, span = _strides(shape, lie)
        size = kind.itemsize
        nbytes = _GUARD + lie.offset + span * size + _GUARD
        self.poison = POISON_WHOLE if dtype.startswith("int") else POISON
        self.bytes = torch.full((-(-nbytes // 16) * 16,), self.poison, dtype=torch.uint8, device=device)
        first = (_GUARD + lie.offset) // size
        self.view = self.bytes.view(kind).as_strided(shape, strides, first)
        self._bits = self.bytes.view(_INTEGERS[size]).as_strided(shape, strides, first)

    def fill(self, values: torch.Tensor) -> None:
        """Write values; those that an axis repeats are the last."""
        if 0 in self.view.stride() and self.view.numel():
            own = [slice(None) if stride or extent == 1 else slice(-1, None) for extent, stride in self._axes()]
            self.view[tuple(own)].copy_(values[tuple(own)])
        else:
            self.view.copy_(values)

    def _axes(self) -> list[tuple[int, int]]:
        return list(zip(self.view.shape, self.view.stride(), strict=True))

    def logical(self) -> torch.Tensor:
        """Return the array as its user sees it."""
        return torch.flip(self.view, self.flipped) if self.flipped else self.view

    def given(self, library: str) -> Any:
        """Return the array for a call."""
        if library == "torch":
            return self.view
        import cupy

        return cupy.asarray(self.view)[
            tuple(slice(None, None, -1 if axis in self.flipped else None) for axis in range(self.view.ndim))
        ]

    def sum(self) -> torch.Tensor:
        """Return a sum of all of its memory, which a write into it changes."""
        return self.bytes.view(torch.int32).sum(dtype=torch.int64)

    def strayed(self) -> torch.Tensor:
        """Return how many bytes around the array were written; the array itself is poisoned by that."""
        word = int.from_bytes(bytes([self.poison]) * self._bits.element_size(), "little")
        bits = 8 * self._bits.element_size()
        self._bits.fill_(word if self._bits.dtype == torch.uint8 else word - (1 << bits))
        return (self.bytes != self.poison).sum()


def _strides(shape: Shape, lie: Lie) -> tuple[tuple[int, ...], int]:
    """Return strides in elements, and the elements that they span."""
    strides, reach, line = [0] * len(shape), 0, lie.step
    for place, axis in enumerate(reversed(lie.order)):
        repeats = lie.repeated and place == len(shape) - 1
        strides[axis] = 0 if repeats else line
        reach += 0 if repeats else max(shape[axis] - 1, 0) * line
        line = max(shape[axis], 1) * line + (lie.pads[place] if lie.pads else 0)
    return tuple(strides), reach + 1 if math.prod(shape) else 0


def values_for(problem: RandomProblem, name: str, generator: torch.Generator, device: str) -> torch.Tensor:
    """Return values of an array."""
    shape, dtype = problem.shapes[name], problem.dtypes[name]

    def normal() -> torch.Tensor:
        kind = torch.float64 if dtype == "float64" else torch.float32
        return torch.randn(shape, generator=generator, device=device, dtype=kind)

    if dtype.startswith("int"):
        limits = torch.iinfo(dtype_of(dtype))
        least, most = (-4, 5) if problem.values == "whole" else (limits.min, limits.max + 1)
        return torch.randint(least, most, shape, generator=generator, device=device, dtype=torch.int64)
    if problem.values == "whole":
        return torch.randint(-4, 5, shape, generator=generator, device=device, dtype=torch.int64).to(torch.float32)
    found = normal()
    if problem.values == "wide":
        found = found * torch.exp(2 * normal())
        if dtype == "float8_e4m3fn":
            found = found.clamp(-448, 448)
    if problem.values == "special" and found.numel() and name in "abc":
        places = torch.randint(0, found.numel(), (3,), generator=generator, device=device)
        odd = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-41, 2**-24.0], device=device, dtype=found.dtype)
        found.view(-1)[places] = odd[torch.randint(0, 6, (3,), generator=generator, device=device)]
    return found
