"""Frame of the transposes' kernels: D[i, j, l] = S[i, j, l] for S contiguous along i, and D contiguous along j."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Uint32, cute

from gemmule.kernels.parts.tensors import cute_type, major_tensor
from gemmule.kernels.parts.words import packed, words_at
from gemmule.kernels.transpose.tile_config import TileConfig, WordTileConfig, packed_rows


class Transpose:
    """Base of kernels with a CTA for each tile."""

    def __init__(self, config: TileConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.item = self.element.width // 8
        # Elements of a word of 32 bits.
        self.pack = packed_rows(self.item)
        self.threads = config.threads

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor):
        # The launch recipe has the grid; only the block is compiled in.
        self.kernel(mS, mD).launch(grid=(1, 1, 1), block=(self.threads, 1, 1))


class WordTranspose(Transpose):
    """Base of kernels for small matrices of 1- and 2-byte elements, whose threads write words."""

    def __init__(self, config: WordTileConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.tile_i, self.tile_words = config.tile_i(self.item), config.tile_words
        # Bytes at a multiple of which the first word of a row of the target begins.
        self.begin = config.row_alignment

    @cute.jit
    def first_of(self, row: cute.Pointer, word):
        """Return the first element of a word of a row of the target; it may come before the row does."""
        return word * self.pack - cutlass.Int32(row.toint() & (self.begin - 1)) // self.item

    @cute.jit
    def write_word(self, place: cute.Pointer, elements: cute.Tensor, j, last):
        """Write the elements j to j + pack - 1 of a row, j at `place`, as a word; at the row's ends those within it."""
        if j >= 0 and j + self.pack - 1 <= last:
            words_at(place, 1)[0] = Uint32(packed(elements))
        else:
            for e in cutlass.range_constexpr(self.pack):
                if j + e >= 0 and j + e <= last:
                    cute.make_tensor(place + e, cute.make_layout(1))[0] = elements[e]


@cute.jit
def device_memory(kind: cutlass.Constexpr, address, count: cutlass.Constexpr[int] = 1):
    """Return device memory as a tensor; its address must be a multiple of its size."""
    size = cutlass.const_expr(count * kind.width // 8)
    place = cute.make_ptr(kind, address, cute.AddressSpace.gmem, assumed_align=size)
    return cute.make_tensor(place, cute.make_layout(count))


def transpose_arguments(types: dict[str, str], size: int = 1) -> tuple[Any, Any]:
    """Return stand-ins for source and target with three batch modes.

    Their rows are aligned to 16 bytes where ``types["rows"]`` is ``wide``, else to `size` bytes or an element.
    """
    name = types["element"]
    vector = max(8 * (16 if types.get("rows") == "wide" else size) // cute_type(name).width, 1)
    return major_tensor(name, 0, batch=3, vector=vector), major_tensor(name, 1, batch=3, vector=vector)
