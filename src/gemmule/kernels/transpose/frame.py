"""Frame of the transposes' kernels: D[i, j, l] = S[i, j, l] for S contiguous along i, and D contiguous along j."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Uint32, cute

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.tensors import cute_type, major_tensor
from gemmule.kernels.transpose.tile_config import TileConfig, packed_rows


class Words:
    """Types of a kernel or a tile: elements, and the words of 32 bits, or an element if larger, that it moves."""

    def __init__(self, config: TileConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.item = self.element.width // 8
        # Elements of a word.
        self.pack = packed_rows(self.item)
        self.word = Uint32 if self.pack > 1 else self.element
        self.threads = config.threads

    @cute.jit
    def put(self, kind: cutlass.Constexpr, address, value, shared: cutlass.Constexpr[bool] = False):
        """Store a value to device memory, or to shared memory."""
        space = cutlass.const_expr(cute.AddressSpace.smem if shared else cute.AddressSpace.gmem)
        target = cute.make_tensor(
            cute.make_ptr(kind, address, space, assumed_align=kind.width // 8), cute.make_layout(1)
        )
        target[0] = value


class Transpose(Words):
    """Base of kernels with a CTA for each tile."""

    kernel: Any
    #: Bytes that the rows of source and target are aligned to; an element where those are larger.
    alignment = 1
    #: The axes along which source and target are contiguous.
    contiguous: tuple[int, int] = (0, 1)

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor):
        # The launch recipe has the grid; only the block is compiled in.
        self.kernel(mS, mD).launch(grid=(1, 1, 1), block=(self.threads, 1, 1))

    @classmethod
    def buildable(cls, config: TileConfig, types: dict[str, str]) -> Buildable:
        """Return the kernel for a specialisation, with fake arguments."""
        name = types["element"]
        size = 16 if types.get("rows") == "wide" else cls.alignment
        vector = max(8 * size // cute_type(name).width, 1)
        return Buildable(
            cls(config, types), tuple(major_tensor(name, unit, batch=3, vector=vector) for unit in cls.contiguous)
        )


@cute.jit
def device_memory(kind: cutlass.Constexpr, address, count: cutlass.Constexpr[int] = 1):
    """Return device memory as a tensor; its address must be a multiple of its size."""
    size = cutlass.const_expr(count * kind.width // 8)
    place = cute.make_ptr(kind, address, cute.AddressSpace.gmem, assumed_align=size)
    return cute.make_tensor(place, cute.make_layout(count))
