"""Upcast: lines of A and B of any alignment, copied as their common type to where other kernels read them fast.

Idea
    Every value of a narrower type is one of the common type: of 8-bit floats or int8 and a 16-bit float that one, of
    other floats float32 or float64. What differs from it is converted in one launch, and the kernels for operands of
    one type multiply: products are exact, or rounded as theirs, and so are accumulators.
Compared with hopper_gemm_repacked
    A thread converts a vector of 16 bytes to up to eight. Lines keep their direction where kernels take both.
Data movement
    Every element is read as it is and written in the common type, which the product reads from the L2 cache as far as
    it fits.
Limits
    Memory: the bytes of both at the rate of a copy; then the kernel of the common type.
Sources
    NVIDIA, PTX ISA: cvt; the formats: Micikevicius et al., FP8 Formats for Deep Learning (arXiv 2209.05433).
"""

from __future__ import annotations

import cutlass
from cutlass import Float32, Float64, Int32, cute

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.repack import VECTOR, LineCopies, PackedLines, source_lines
from gemmule.kernels.hopper.repack_config import NONE, OPERANDS, RepackConfig
from gemmule.kernels.parts.tensors import PARTS, cute_type, major_tensor
from gemmule.kernels.parts.words import words_at

_WORDS = VECTOR // 4


class UpcastLines(PackedLines):
    """D[:, j] = S[:, j], D of a type that holds all values of S; of complex ones the parts are converted.

    Parameters
    ----------
    config : RepackConfig
        Division among threads.
    narrow, wide : str
        Names of the types.
    strided : bool
        As of `PackedLines`.
    """

    def __init__(self, config: RepackConfig, narrow: str, wide: str, strided: bool) -> None:
        super().__init__(cute_type(narrow).width // 8, config.threads, config.vectors, strided)
        self.narrow, self.wide = cute_type(PARTS.get(narrow, narrow)), cute_type(PARTS.get(wide, wide))
        #: Whether imaginary parts, zeros, are added.
        self.adds_parts = wide in PARTS and narrow not in PARTS
        self.wide_item = cute_type(wide).width // 8

    @cute.jit
    def store(self, words: cute.Tensor, target: cute.Pointer):
        """Write a vector of elements as several of the wide type."""
        values = cute.recast_tensor(words, self.narrow).load()
        if cutlass.const_expr(self.through_float32):
            # There is no instruction for this, but one for what holds both.
            values = values.to(Float32)
        parts = cutlass.const_expr(VECTOR * 8 // self.narrow.width)
        step = cutlass.const_expr(2 if self.adds_parts else 1)
        out = cute.make_rmem_tensor(cute.make_layout(parts * step), self.wide)
        if cutlass.const_expr(self.adds_parts):
            out.fill(self.wide(0))
        found = cute.make_tensor(out.iterator, cute.make_layout(parts, stride=step))
        found.store(values.to(self.wide))
        wide = cute.recast_tensor(out, cutlass.Uint32)
        for number in cutlass.range_constexpr(cute.size(wide) // _WORDS):
            vector = cute.make_tensor(wide.iterator + _WORDS * number, cute.make_layout(_WORDS))
            cute.autovec_copy(vector, words_at(target + number * VECTOR // self.wide_item, _WORDS))

    @property
    def through_float32(self) -> bool:
        """Whether float32 is between both types."""
        if self.wide is Float64:
            return bool(self.narrow.width < Float32.width)
        return self.wide is cutlass.BFloat16 and self.narrow is not cutlass.BFloat16


def buildable(config: RepackConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for one operand or more of those types, with fake arguments."""
    strided, wide = types.get("strided") == "yes", types["wide"]
    names = [types[key] for key in OPERANDS if types.get(key, NONE) != NONE]
    vector = VECTOR * 8 // cute_type(wide).width
    pairs = [(source_lines(name, strided), major_tensor(wide, 0, batch=1, vector=vector)) for name in names]
    return Buildable(LineCopies([UpcastLines(config, name, wide, strided) for name in names]), (pairs, Int32(1)))
