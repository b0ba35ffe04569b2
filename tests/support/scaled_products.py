"""Scales of every form, and the products that they make of operands, in float64."""

from __future__ import annotations

import numpy as np

BLOCK = 128
#: Scales of A and of B, by name: of everything, of lines, and of blocks of 128 of K and one line or 128.
FORMS = {
    "tensor": ("tensor", "tensor"),
    "row": ("line", "line"),
    "row by tensor": ("line", "tensor"),
    "block": ("lines", "blocks"),
    "block1": ("lines", "lines"),
    "block by row": ("blocks", "line"),
    "tensor by block": ("tensor", "lines"),
}


def scales_of(form, shape, rng):
    """Return scales of A (M, K) and B (K, N) in float32."""
    m, n, k = shape
    a, b = FORMS[form]
    return _scales(a, m, k, rng), np.asfortranarray(_scales(b, n, k, rng).T)


def _scales(form, lines, k, rng):
    k_blocks, blocks = -(-k // BLOCK), -(-lines // BLOCK)
    sides = {"tensor": (1, 1), "line": (lines, 1), "lines": (lines, k_blocks), "blocks": (blocks, k_blocks)}[form]
    return np.exp(rng.standard_normal(sides)).astype(np.float32)


def whole(scales, shape):
    """Return a scale of each element of a matrix."""
    for axis, extent in enumerate(shape):
        if 1 < scales.shape[axis] < extent:
            scales = np.repeat(scales, BLOCK, axis)
        scales = scales[(slice(None),) * axis + (slice(extent),)]
    return np.broadcast_to(scales, shape).astype(np.float64)


def reference(a, b, scale_a, scale_b):
    """Return the product in float64, and that of the magnitudes."""
    left, right = a.astype(np.float64) * whole(scale_a, a.shape), b.astype(np.float64) * whole(scale_b, b.shape)
    return left @ right, np.abs(left) @ np.abs(right)
