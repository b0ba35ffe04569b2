"""Operands with scales by blocks on the host: multiplied out in float32, which rounds each element once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..core.block_scales import BLOCK, SCALES
from ..executor.tiles import Array


def with_scales(arrays: Mapping[str, Array], blocks: tuple[int, int]) -> dict[str, Array]:
    """Return A and B in float32, each element times the scale of its block.

    Parameters
    ----------
    arrays : mapping of str to numpy.ndarray
        A (M, K), B (K, N), and their scales by ``scale_a`` and ``scale_b``: one for each block of 128 of K and of 1 or
        128 rows or columns; one for all of K, or for everything, is broadcast.
    blocks : tuple of int
        Rows of A and columns of B in a block.
    """
    a, b = arrays["a"], arrays["b"]
    of_a, of_b = (arrays[name] for name in SCALES)
    return {"a": _scaled(a, of_a, (blocks[0], BLOCK)), "b": _scaled(b, of_b, (BLOCK, blocks[1]))}


def _scaled(matrix: Array, scales: Array, block: tuple[int, int]) -> Array:
    wide = matrix.astype(np.float32)
    if scales.size == 1:
        return wide * scales.reshape(())
    for axis, lines in enumerate(block):
        if scales.shape[axis] > 1:
            scales = np.repeat(scales, lines, axis)
            scales = scales[: matrix.shape[0]] if axis == 0 else scales[:, : matrix.shape[1]]
    return wide * scales
