"""Arrays of random problems: strided views into buffers with poisoned guards, of PyTorch, CuPy, JAX and NumPy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from layouts import Layout, Shape
from random_groups import DIVIDERS

from gemmule.core.dtype import numpy_dtype

if TYPE_CHECKING:
    from problems import FuzzProblem

#: Bytes of guard before and behind an array, and of memory that nobody has written: NaN of floats, -77 of int8.
GUARD = 256
POISON, POISON_INTEGER = 0xFF, 0xB3
#: Exponents of numbers that span many powers of two; and of numbers of which some are subnormal, and parts in bfloat16
#: have not all bits, with those of what they are multiplied by.
_REACH = {"float32": 55, "float64": 250}
_SUBNORMAL = {"float32": (-124, 100), "bfloat16": (-124, 0), "float64": (-1021, 900)}


def torch_dtype(name: str) -> Any:
    """Return PyTorch's type of that name."""
    import torch

    return getattr(torch, name)


def strides_of(shape: Shape, layout: Layout) -> tuple[tuple[int, ...], int]:
    """Return strides in elements, all positive or zero, and the elements that they span."""
    strides, reach, line = [0] * len(shape), 0, layout.step
    for place, axis in enumerate(reversed(layout.order)):
        repeats = layout.repeated and place == len(shape) - 1
        strides[axis] = 0 if repeats else line
        reach += 0 if repeats else max(shape[axis] - 1, 0) * line
        line = max(shape[axis], 1) * line + (layout.pads[place] if layout.pads else 0)
    return tuple(strides), reach + 1 if math.prod(shape) else 0


def stand_in(shape: Shape, dtype: str, layout: Layout) -> np.ndarray[Any, np.dtype[Any]]:
    """Return a NumPy array of that layout whose memory nobody reads: what a plan is made of without a GPU."""
    kind = numpy_dtype(dtype)
    strides, span = strides_of(shape, layout)
    buffer = np.empty(GUARD * 2 + layout.offset + span * kind.itemsize, np.uint8)
    first = -buffer.ctypes.data % GUARD + layout.offset
    view = np.ndarray(shape, kind, buffer, first, tuple(kind.itemsize * stride for stride in strides))
    return np.flip(view, layout.reversed_axes) if layout.reversed_axes else view


class Placed:
    """An array in a guarded buffer of its own.

    Parameters
    ----------
    shape : tuple of int
        Its shape.
    dtype : str
        Name of its type.
    layout : Layout
        Its layout.
    device : str
        PyTorch's name of the device.

    Attributes
    ----------
    view : torch.Tensor
        The array, but for the sign of strides.
    """

    def __init__(self, shape: Shape, dtype: str, layout: Layout, device: str) -> None:
        import torch

        kind = torch_dtype(dtype)
        self.reversed_axes, self.dtype = layout.reversed_axes, dtype
        strides, span = strides_of(shape, layout)
        size = kind.itemsize
        nbytes = GUARD + layout.offset + span * size + GUARD
        self.poison = POISON_INTEGER if dtype.startswith("int") else POISON
        # Storage of PyTorch on the host is aligned to 64 bytes only.
        whole = torch.full((-(-nbytes // 16) * 16 + GUARD,), self.poison, dtype=torch.uint8, device=device)
        self.bytes = whole[-whole.data_ptr() % GUARD :][: -(-nbytes // 16) * 16]
        integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(size, torch.int64)
        first = (self.bytes.storage_offset() + GUARD + layout.offset) // size
        self.view = whole.view(kind).as_strided(shape, strides, first)
        # Elements of 16 bytes have an axis of two integers.
        words = size // integer.itemsize
        pair = ((*shape, words), (*(words * stride for stride in strides), 1)) if words > 1 else (shape, strides)
        self.bits = whole.view(integer).as_strided(*pair, words * first)

    def fill(self, values: Any) -> None:
        """Write values; along an axis of stride 0 the last ones."""
        strides = self.view.stride()
        if 0 in strides and self.view.numel():
            own = tuple(
                slice(None) if stride or extent == 1 else slice(-1, None)
                for extent, stride in zip(self.view.shape, strides, strict=True)
            )
            self.view[own].copy_(values[own])
        else:
            self.view.copy_(values)

    def logical(self) -> Any:
        """Return the array as its user sees it."""
        import torch

        if self.view.is_complex():
            return torch.flip(self.view, self.reversed_axes)
        # Not every device flips 8-bit floats.
        return torch.flip(self.bits, self.reversed_axes).view(self.view.dtype) if self.reversed_axes else self.view

    def _reversed(self, array: Any) -> Any:
        steps = tuple(slice(None, None, -1 if axis in self.reversed_axes else None) for axis in range(array.ndim))
        return array[steps] if self.reversed_axes else array

    def given(self, library: str) -> Any:
        """Return the array for a call."""
        if library == "torch":
            return self.view
        if library == "cupy":
            import cupy

            return self._reversed(cupy.asarray(self.view))
        complete = self.view if self.view.is_complex() else self.bits
        array = self._reversed(complete.numpy().view(numpy_dtype(self.dtype)))
        if library == "numpy":
            return array
        import jax

        return jax.numpy.asarray(np.array(array))

    def checksum(self) -> Any:
        """Return a sum of all of its memory, which a write into it changes."""
        import torch

        return self.bytes.view(torch.int32).sum(dtype=torch.int64)

    def strayed(self) -> Any:
        """Return how many bytes around the array were written; this poisons the array."""
        size = self.bits.element_size()
        word = int.from_bytes(bytes([self.poison]) * size, "little")
        self.bits.fill_(word if size == 1 else word - (1 << 8 * size))
        return (self.bytes != self.poison).sum()


def as_tensor(result: Any, library: str, dtype: str, device: str) -> Any:
    """Return what a call returned as a tensor on `device`."""
    import torch

    if library == "torch":
        return result
    if library == "cupy":
        return torch.as_tensor(result, device=device)
    array = np.ascontiguousarray(np.asarray(result))
    assert array.dtype == numpy_dtype(dtype), f"the result is {array.dtype}, not {dtype}"
    if dtype.startswith("complex"):
        return torch.from_numpy(array.copy()).to(device)
    shape, size = array.shape, array.dtype.itemsize
    raw = array.reshape(-1).view({1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}[size])
    return torch.from_numpy(raw.copy()).view(torch_dtype(dtype)).reshape(shape).to(device)


def values_for(problem: FuzzProblem, name: str, generator: Any, device: str) -> Any:
    """Return values of an array."""
    import torch

    shape, dtype = problem.shapes[name], problem.dtypes[name]
    if name in DIVIDERS:
        return torch.tensor(problem.numbers, dtype=torch.int32, device=device)
    if dtype.startswith("complex"):
        part = {"complex64": "float32", "complex128": "float64"}[dtype]
        return torch.view_as_complex(_real_values(problem, name, ((*shape, 2), part), generator, device).contiguous())
    return _real_values(problem, name, (shape, dtype), generator, device)


def _real_values(problem: FuzzProblem, name: str, like: tuple[Shape, str], generator: Any, device: str) -> Any:
    """Return real values of a shape and type, parts of complex ones included."""
    import torch

    shape, dtype = like
    kind = torch.float64 if dtype == "float64" else torch.float32

    def normal() -> Any:
        return torch.randn(shape, generator=generator, device=device, dtype=kind)

    if dtype.startswith("int"):
        limits = torch.iinfo(torch_dtype(dtype))
        least, most = (-4, 5) if problem.values == "whole" else (limits.min, limits.max + 1)
        return torch.randint(least, most, shape, generator=generator, device=device, dtype=torch.int64)
    if name.startswith("scale"):
        # Positive, as quantisation makes them.
        return torch.exp(normal())
    if problem.values == "whole":
        return torch.randint(-4, 5, shape, generator=generator, device=device, dtype=torch.int64).to(kind)
    found = normal()
    if problem.values == "wide":
        found = found * torch.exp(2 * normal())
        if dtype == "float8_e4m3fn":
            found = found.clamp(-448, 448)
    if name not in "abcx":
        return found
    if problem.values == "special" and found.numel():
        places = torch.randint(0, found.numel(), (3,), generator=generator, device=device)
        odd = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-41, 2**-24.0], device=device, dtype=found.dtype)
        found.view(-1)[places] = odd[torch.randint(0, 6, (3,), generator=generator, device=device)]
    if problem.values in ("spans", "opposed", "subnormal", "zero") and name != "c":
        found = found * _powers(problem, name, (shape, dtype), generator, device)
    return found


def _powers(problem: FuzzProblem, name: str, like: tuple[Shape, str], generator: Any, device: str) -> Any:
    """Return powers of two: for each element its own, opposed along K, or of one operand tiny; or zeros of lines."""
    import torch

    shape, dtype = like
    kind = torch.float64 if dtype == "float64" else torch.float32
    reach, (tiny, huge) = _REACH.get(dtype, 8), _SUBNORMAL.get(dtype, (-14, 0))
    if problem.values == "opposed":
        rng = np.random.default_rng((problem.seed, problem.index, 7))
        steps = torch.tensor(rng.integers(-reach, reach + 1, problem.k), device=device)
        powers = torch.exp2(steps.to(torch.float64) * (1 if name == "a" else -1)).to(kind)
        axes = len(problem.shapes[name])
        axis = axes - 1 if name == "a" or axes == 1 else axes - 2
        return powers.reshape(*(-1 if place == axis else 1 for place in range(len(shape))))
    if problem.values == "zero":
        return torch.randint(0, 2, (*shape[:-1], 1), generator=generator, device=device).to(kind)
    if problem.values == "subnormal":
        # Where B is A transposed both are tiny.
        is_tiny = name == "x" or problem.gram or name == "ab"[problem.index // 2 % 2]
        return torch.full((), 2.0**tiny if is_tiny else 2.0**huge, dtype=kind, device=device)
    steps = torch.randint(-reach, reach + 1, shape, generator=generator, device=device)
    return torch.exp2(steps.to(torch.float64)).to(kind)
