"""One operand packed, for a product that takes the other as it lies.

Idea
    Where lines of A and of B begin anywhere, hopper_gemm_unaligned_a takes one of them as it is.
Compared with hopper_gemm_repacked
    Only the other one is copied: where the first is MN-major, with K in the order in which its classes are multiplied.
Data movement
    Every element of one operand is read once and written once.
Limits
    Memory.
Sources
    As of hopper_gemm_repacked.
"""

from __future__ import annotations

from cutlass import Int32

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.class_order import ClassOrderInLines, ClassOrderOfLines
from gemmule.kernels.hopper.repack import VECTOR, LineCopies, PackedLines, source_lines
from gemmule.kernels.hopper.repack_config import RepackConfig
from gemmule.kernels.parts.tensors import cute_type, major_tensor

_KINDS = {"lines": PackedLines, "k_lines": ClassOrderOfLines, "k_elements": ClassOrderInLines}


def buildable(config: RepackConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for that element size and order, with fake arguments."""
    name = types["element"]
    item = cute_type(name).width // 8
    pair = source_lines(name, False), major_tensor(name, 0, batch=1, vector=VECTOR // item)
    lines = _KINDS[types["order"]](item, config.threads, config.vectors)
    return Buildable(LineCopies([lines]), ([pair], Int32(1)))
