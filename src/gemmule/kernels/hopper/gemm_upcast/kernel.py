"""Upcast: lines of 8-bit floats of any alignment, copied as 16-bit floats to where TMA can load them.

Idea
    Every value of float8_e4m3fn and float8_e5m2 is one of float16, and of bfloat16, too. A and B are converted in one
    launch, and the kernels for 16-bit floats multiply them: products are exact, accumulators theirs.
Compared with hopper_gemm_repacked
    Of a vector of 16 bytes a thread makes two. Lines keep their direction: 16-bit floats may lie in any.
Data movement
    Every element is read as one byte and written as two, which the product reads from the L2 cache as far as they fit.
Limits
    Memory: three times the operands' bytes at the rate of a copy; then tensor cores at the rate of 16-bit floats, half
    of that of 8-bit floats, whose sums keep 13 bits of the fraction.
Sources
    NVIDIA, PTX ISA: cvt; the formats: Micikevicius et al., FP8 Formats for Deep Learning (arXiv 2209.05433).
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.repack import VECTOR, PackedLines, source_lines
from gemmule.kernels.hopper.repack_config import RepackConfig
from gemmule.kernels.parts.tensors import cute_type, major_tensor
from gemmule.kernels.parts.words import words_at


class UpcastLines(PackedLines):
    """D[:, j, l] = S[:, j, l] for one or two pairs, S of one byte an element, D of two of that type."""

    def __init__(self, config: RepackConfig, wide: Any, strided: bool) -> None:
        super().__init__(1, config.threads, config.vectors, strided)
        self.wide = wide

    @cute.jit
    def store(self, words: cute.Tensor, narrow: Any, target: cute.Pointer):
        """Write a vector of elements of that type as two."""
        values = cute.recast_tensor(words, narrow).load()
        if cutlass.const_expr(self.wide is cutlass.BFloat16):
            # There is no instruction for this, but one for what holds both.
            values = values.to(cutlass.Float32)
        out = cute.make_rmem_tensor(cute.make_layout(VECTOR), self.wide)
        out.store(values.to(self.wide))
        wide = cute.recast_tensor(out, cutlass.Uint32)
        for half in cutlass.range_constexpr(2):
            part = cute.make_tensor(wide.iterator + 4 * half, cute.make_layout(4))
            cute.autovec_copy(part, words_at(target + half * (VECTOR // 2), 4))


def buildable(config: RepackConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for one or two operands of those types, with fake arguments."""
    strided = types.get("strided") == "yes"
    pairs = [
        (source_lines(name, strided), major_tensor(types["wide"], 0, batch=1, vector=VECTOR // 2))
        for name in (types["element"], types["second"])
        if name != "none"
    ]
    return Buildable(UpcastLines(config, cute_type(types["wide"]), strided), (pairs, Int32(1)))
