"""Repacking: lines of A and B of any alignment, copied to where TMA can load them.

Idea
    TMA loads only matrices whose address and leading dimension are multiples of 16 bytes. Other operands are copied, in
    one launch, to such lines (rows, or columns of a column-major matrix); the kernels for aligned matrices multiply.
    So are matrices in which neither rows nor columns are contiguous, element by element.
Compared with hopper_gemm
    Two launches instead of one. The second may start while the first ends, and waits for its writes.
Data movement
    Every element is read once and written once. A thread makes 16 bytes from two contiguous vectors of 16 bytes, of
    which the second is the next thread's first: it comes from the L1 cache. The product reads the copies from the L2
    cache, as far as they fit.
Limits
    Memory: twice the operands' bytes at the rate of a copy, M K + K N elements against M N K products.
Sources
    NVIDIA, PTX ISA: shf, griddepcontrol.
"""

from __future__ import annotations

from cutlass import Int32

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.class_order import ClassOrderInLines, ClassOrderOfLines
from gemmule.kernels.hopper.repack import VECTOR, LineCopies, PackedLines, source_lines
from gemmule.kernels.hopper.repack_config import RepackConfig
from gemmule.kernels.parts.tensors import cute_type, major_tensor

#: Copies in the order of classes, by the signature.
_ORDERS = {"k_lines": ClassOrderOfLines, "k_elements": ClassOrderInLines}


def buildable(config: RepackConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for that element size and number of operands, with fake arguments."""
    name = types["element"]
    width = cute_type(name).width
    if "order" in types:
        pair = source_lines(name, False), major_tensor(name, 0, batch=1, vector=VECTOR * 8 // width)
        ordered = _ORDERS[types["order"]](width // 8, config.threads, config.vectors)
        return Buildable(LineCopies([ordered]), ([pair], Int32(1)))
    strided = types.get("strided") == "yes"
    pairs = [
        (source_lines(name, strided), major_tensor(name, 0, batch=1, vector=VECTOR * 8 // width))
        for _ in range(int(types["operands"]))
    ]
    lines = [PackedLines(width // 8, config.threads, config.vectors, strided)] * len(pairs)
    return Buildable(LineCopies(lines), (pairs, Int32(1)))
