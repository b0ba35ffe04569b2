"""How arrays of random problems lie in memory."""

from __future__ import annotations

import dataclasses

import numpy as np

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Lie:
    """How an array lies in memory.

    Attributes
    ----------
    order : tuple of int
        Its axes, the outermost first.
    step : int
        Elements from one to the next along the innermost axis.
    pads : tuple of int
        Elements between the lines of the innermost axis, between what those make, and so on.
    offset : int
        Bytes from an address that 256 divides to the first element.
    flipped : tuple of int
        Axes that are walked backwards.
    repeated : bool
        Whether the outermost axis in memory is one element, seen again and again.
    """

    order: tuple[int, ...]
    step: int = 1
    pads: tuple[int, ...] = ()
    offset: int = 0
    flipped: tuple[int, ...] = ()
    repeated: bool = False


def order_of(axes: int, is_col: bool) -> tuple[int, ...]:
    """Return the order of axes of matrices one after another, in rows or columns."""
    batch = tuple(range(axes - 2))
    return (*batch, axes - 1, axes - 2) if is_col else (*batch, axes - 2, axes - 1)


def random_lie(rng: np.random.Generator, name: str, shape: Shape, dtype: str, aligned: bool, flips: bool) -> Lie:
    """Return how an array lies.

    Parameters
    ----------
    rng : Generator
        Where the numbers come from.
    name, shape, dtype
        The array: what it is to the problem, its shape and the name of its type.
    aligned : bool
        Whether its lines are of whole 16 bytes, mostly.
    flips : bool
        Whether axes may be walked backwards.
    """
    itemsize = {"float64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}.get(dtype, 1)
    axes, unit = len(shape), 16 // itemsize
    order = order_of(axes, rng.random() < 0.5) if axes > 1 else (0,)
    if axes > 2 and rng.random() < 0.06:
        order = tuple(map(int, rng.permutation(axes)))
    step, pads, offset = 1, [0] * axes, 0
    if aligned:
        # Lines of whole 16 bytes, as the copy engine takes them.
        inner = shape[order[-1]] if axes else 1
        pads[0] = -inner % unit + (int(rng.choice((0, 0, 1, 5))) * unit if rng.random() < 0.5 else 0)
        offset = 16 * int(rng.choice((0, 0, 1, 3)))
        if rng.random() < 0.02:
            offset += itemsize
    elif rng.random() < 0.6:
        pads = [int(x) for x in rng.integers(0, 8, axes)]
        offset = itemsize * int(rng.choice((0, 0, 1, 2, 3, 7)))
        step = int(rng.choice((1, 1, 1, 1, 2, 3)))
    flipped = tuple(axis for axis in range(axes) if flips and rng.random() < 0.3)
    repeated = name not in ("out", "c") and axes > 1 and rng.random() < 0.02
    return Lie(order, step, tuple(pads), offset, flipped, repeated)
