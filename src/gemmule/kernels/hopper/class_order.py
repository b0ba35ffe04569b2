"""Lines copied with K in the order of classes modulo 8 within each k-tile, of which what lies beyond K is zero."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from .gemm_line_classes.config import CLASSES, TILE_K
from .repack import PackedLines


def source_k(place: Any) -> Any:
    """Return which k is at a place."""
    within = place % TILE_K
    return place - within + within % CLASSES * CLASSES + within // CLASSES


def whole_tiles(extent: Any) -> Any:
    """Return an extent, rounded up to whole k-tiles."""
    return cute.ceil_div(extent, TILE_K) * TILE_K


class ClassOrderOfLines(PackedLines):
    """As `PackedLines`, for lines that are rows of K."""

    def lines(self, mS: cute.Tensor) -> Any:
        """Return the lines that are written of a matrix."""
        return whole_tiles(mS.shape[1])

    @cute.jit
    def source(self, gS: cute.Tensor, i, line):
        """Return the pointer to what is written to a line from element i on."""
        return super().source(gS, i, source_k(line))

    @cute.jit
    def left(self, gS: cute.Tensor, i, line):
        """Return how many elements are written to a line from element i on: none beyond the last line."""
        return super().left(gS, i, line) if source_k(line) < gS.shape[1] else 0


class ClassOrderInLines(PackedLines):
    """As `PackedLines`, for lines that have K contiguous."""

    apart = CLASSES

    @cute.jit
    def per_line(self, mS: cute.Tensor):
        """Return the vectors of a line."""
        return whole_tiles(mS.shape[0]) // self.per_vector

    @cute.jit
    def source(self, gS: cute.Tensor, i, line):
        """Return the pointer to what is written to a line from element i on."""
        return super().source(gS, source_k(i), line)

    @cute.jit
    def left(self, gS: cute.Tensor, i, line):
        """Return how many elements of the line are written from element i on, of those 8 apart."""
        return cute.ceil_div(cutlass.max(super().left(gS, source_k(i), line), 0), CLASSES)

    @cute.jit
    def is_inside(self, i, left, offset):
        """Return that elements are not contiguous."""
        del i, left, offset
        return cutlass.Boolean(False)
