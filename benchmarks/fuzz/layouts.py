"""Memory layouts of random arrays: order of axes, padding, gaps, misalignment, negative and zero strides."""

from __future__ import annotations

import dataclasses

import numpy as np

Shape = tuple[int, ...]
ITEMSIZES = {
    "complex128": 16, "complex64": 8, "float64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Layout:
    """How an array lies in memory.

    Attributes
    ----------
    order : tuple of int
        Its axes, the outermost first.
    step : int
        Elements between neighbours along the innermost axis.
    pads : tuple of int
        Elements of padding behind a line of the innermost axis, behind a stack of those, and so on.
    offset : int
        Bytes from an address that 256 divides to the first element.
    reversed_axes : tuple of int
        Axes with negative strides.
    repeated : bool
        Whether the outermost axis in memory has stride 0.
    """

    order: tuple[int, ...]
    step: int = 1
    pads: tuple[int, ...] = ()
    offset: int = 0
    reversed_axes: tuple[int, ...] = ()
    repeated: bool = False


@dataclasses.dataclass(frozen=True)
class Alignment:
    """What a random layout may be.

    Attributes
    ----------
    nbytes : int
        Bytes that all lines and the first element are multiples of; 1 for any element.
    column_major : bool
        Whether the last but one axis is the contiguous one.
    free : bool
        Whether gaps, permuted batches, negative and zero strides may come.
    contiguous : bool
        Whether there is no padding and no offset.
    """

    nbytes: int = 16
    column_major: bool = False
    free: bool = False
    contiguous: bool = False


def itemsize_of(dtype: str) -> int:
    """Return the bytes of an element."""
    return ITEMSIZES.get(dtype, 1)


def order_of(axes: int, column_major: bool) -> tuple[int, ...]:
    """Return the order of axes of a stack of row-major or column-major matrices."""
    batch = tuple(range(axes - 2))
    return (*batch, axes - 1, axes - 2) if column_major else (*batch, axes - 2, axes - 1)


def random_layout(
    rng: np.random.Generator, shape: Shape, dtype: str, wanted: Alignment, *, reverses: bool, repeats: bool
) -> Layout:
    """Draw a layout.

    Parameters
    ----------
    rng : Generator
        Source of random numbers.
    shape, dtype
        Shape of the array and name of its type.
    wanted : Alignment
        What it may be.
    reverses, repeats : bool
        Whether negative strides, and a stride of 0, are possible.
    """
    axes, item = len(shape), itemsize_of(dtype)
    order = order_of(axes, wanted.column_major) if axes > 1 else tuple(range(axes))
    if wanted.contiguous:
        return Layout(tuple(range(axes)))
    if wanted.free and axes > 2 and rng.random() < 0.2:
        order = tuple(map(int, rng.permutation(axes)))
    pads, step = [0] * axes, 1
    unit = max(wanted.nbytes // item, 1)
    if axes:
        extent = shape[order[-1]]
        pads[0] = -extent % unit + (int(rng.choice((0, 1, 1, 5))) * unit if rng.random() < 0.5 else 0)
    offset = max(wanted.nbytes, item) * int(rng.choice((0, 0, 1, 3)))
    if wanted.free and rng.random() < 0.4:
        step = int(rng.choice((1, 2, 3)))
        pads = [int(x) for x in rng.integers(0, 8, axes)]
    reversed_axes = tuple(axis for axis in range(axes) if reverses and wanted.free and rng.random() < 0.4)
    repeated = repeats and wanted.free and axes > 1 and rng.random() < 0.06
    return Layout(order, step, tuple(pads), offset, reversed_axes, repeated)
