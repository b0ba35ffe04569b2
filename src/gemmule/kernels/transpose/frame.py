"""Frame of the transposes' kernels: D[i, j, l] = S[i, j, l] for S contiguous along i, and D contiguous along j."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from gemmule.kernels.parts.tensors import cute_type, major_tensor
from gemmule.kernels.transpose.tile_config import TileConfig, packed_rows


class Transpose:
    """Base of kernels with a CTA for each tile."""

    kernel: Any

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
