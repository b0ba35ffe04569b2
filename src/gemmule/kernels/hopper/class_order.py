"""Lines copied with K in the order of classes modulo 8 within each k-tile, of which what lies beyond K is zero."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Uint32, cute

from .gemm_line_classes.config import CLASSES, TILE_K
from .repack import PackedLines

_WORDS = 4


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
    def misalignment(self, gS: cute.Tensor, i, line):
        """Return the address of an element of what is written to a line, modulo 16 bytes."""
        return super().misalignment(gS, i, source_k(line))

    @cute.jit
    def is_inside(self, gS: cute.Tensor, i, line, offset):
        """Return whether both vectors around the elements from i on are inside the line, and that is one."""
        return source_k(line) < gS.shape[1] and super().is_inside(gS, i, line, offset)

    @cute.jit
    def read(self, gS: cute.Tensor, i, line, offset, words: cute.Tensor):
        """Read the two vectors around the elements from i on."""
        super().read(gS, i, source_k(line), offset, words)

    @cute.jit
    def read_elements(self, gS: cute.Tensor, i, line, words: cute.Tensor):
        """Read the elements from i on one by one; those beyond the line, or the last line, are zero."""
        source = source_k(line)
        words.fill(Uint32(0))
        if source < gS.shape[1]:
            super().read_elements(gS, i, source, words)


class ClassOrderInLines(PackedLines):
    """As `PackedLines`, for lines that have K contiguous."""

    @cute.jit
    def per_line(self, mS: cute.Tensor):
        """Return the vectors of a line."""
        return whole_tiles(mS.shape[0]) // self.per_vector

    @cute.jit
    def is_inside(self, gS: cute.Tensor, i, line, offset):
        """Return whether the line has the whole k-tile."""
        del line, offset
        return i - i % TILE_K + TILE_K <= gS.shape[0]

    @cute.jit
    def read(self, gS: cute.Tensor, i, line, offset, words: cute.Tensor):
        """Read the elements that are written from i on, which are 8 apart."""
        del offset
        elements = cute.recast_tensor(words, gS.element_type)
        first = source_k(i)
        for e in cutlass.range_constexpr(self.per_vector):
            elements[e] = gS[first + CLASSES * e, line]

    def extract(self, loaded: cute.Tensor, offset: Any, words: cute.Tensor) -> None:
        """Return the elements, which `read` has put in order."""
        del offset
        for w in range(_WORDS):
            words[w] = loaded[w]

    @cute.jit
    def read_elements(self, gS: cute.Tensor, i, line, words: cute.Tensor):
        """Read the elements that are written from i on; those beyond the line are zero."""
        words.fill(Uint32(0))
        elements = cute.recast_tensor(words, gS.element_type)
        for e in cutlass.range_constexpr(self.per_vector):
            k = source_k(i + e)
            if k < gS.shape[0]:
                elements[e] = gS[k, line]
