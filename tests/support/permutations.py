"""Permutations of compact arrays."""

from __future__ import annotations

from gemmule.core.layout import compact_strides
from gemmule.core.permutation import transpose_problem


def permutation_of(shape, axes, itemsize, alignment=256):
    """The problem that makes a compact array of another one's axes."""
    moved, strides = tuple(shape[axis] for axis in axes), compact_strides(shape)
    source = tuple(strides[axis] for axis in axes)
    return transpose_problem(moved, source, compact_strides(moved), itemsize, (alignment, alignment))
