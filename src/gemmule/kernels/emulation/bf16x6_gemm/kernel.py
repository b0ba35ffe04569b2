"""BF16x6 splitting: float32 into three parts of bfloat16, for the tensor cores.

Idea
    a1 is a rounded to bfloat16, a2 the remainder rounded, a3 the last remainder: three times 8 bits, all 24 of a. One
    launch splits both operands, the next multiplies the parts.
Change from the rung before
    Three lines are written for one; zeros pad the parts to whole k-tiles.
Data movement
    Every element is read once, 4 bytes, and written once, 6 bytes.
Limits
    Memory: ten bytes for each element of the operands, M K + K N of them against M N K products.
Sources
    As of bf16x6_products.
"""

from __future__ import annotations

import cutlass
from cutlass import Float32, Int32, Uint32, cute

from gemmule.core.dtype import BFLOAT16
from gemmule.core.spec import Buildable
from gemmule.kernels.emulation.bf16x6_config import PARTS, RUN, SplitConfig
from gemmule.kernels.emulation.guard import PART_EXPONENTS
from gemmule.kernels.emulation.guard_words import NEVER
from gemmule.kernels.parts.tensors import major_tensor, tensor_1d
from gemmule.kernels.parts.words import words_at

_VECTOR = 4
# Bits of the fraction of a float32.
_FRACTION = 23
_VECTOR_BYTES = 16


class Bf16x6Split:
    """D1 + D2 + D3 = S for two pairs: S (length, lines, L) of float32 anywhere, D (length, lines, 3, L) of bfloat16."""

    def __init__(self, config: SplitConfig, types: dict[str, str]) -> None:
        self.threads, self.runs = config.threads, config.runs
        self.guarded = types.get("guarded") == "yes"

    @cute.jit
    def __call__(self, mA: cute.Tensor, pA: cute.Tensor, mB: cute.Tensor, pB: cute.Tensor, grid: Int32, shortfall=None):
        self.kernel(mA, pA, mB, pB, shortfall).launch(grid=(grid, 1, 1), block=(self.threads, 1, 1))

    @cute.kernel
    def kernel(self, mA: cute.Tensor, pA: cute.Tensor, mB: cute.Tensor, pB: cute.Tensor, shortfall=None):
        # Let the dependent grid launch; it waits for this one's end before it reads.
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()
        cta, _, _ = cute.arch.block_idx()
        firsts = cute.ceil_div(self.count(pA), self.threads * self.runs)
        if cta < firsts:
            self.split(mA, pA, cta, shortfall)
        else:
            self.split(mB, pB, cta - firsts, shortfall)

    @cute.jit
    def count(self, mD: cute.Tensor):
        """Return the vectors of a matrix's parts."""
        return mD.shape[0] // RUN * mD.shape[1] * mD.shape[3]

    @cute.jit
    def split(self, mS: cute.Tensor, mD: cute.Tensor, cta, shortfall):
        """Split this CTA's vectors: all loads are issued before the first is used."""
        tid, _, _ = cute.arch.thread_idx()
        per_line, lines, count = Uint32(mD.shape[0] // RUN), Uint32(mD.shape[1]), self.count(mD)
        found = cute.make_rmem_tensor(cute.make_layout((RUN, self.runs)), Float32)
        if cutlass.const_expr(self.guarded):
            # Past the last vector there is nothing to mark.
            found.fill(0.0)
        places = []
        for r in cutlass.range_constexpr(self.runs):
            number = (cta * self.runs + r) * self.threads + tid
            at = Uint32(number) // per_line
            place = Uint32(number) - at * per_line
            matrix = at // lines
            i, line, batch = Int32(place * RUN), Int32(at - matrix * lines), Int32(matrix)
            places.append((number, i, line, batch))
            if number < count:
                self.read(mS[None, None, batch], i, line, found[None, r])
        if cutlass.const_expr(self.guarded):
            self.guard(found, shortfall)
        for r in cutlass.range_constexpr(self.runs):
            number, i, line, batch = places[r]
            if number < count:
                self.write(mD[None, None, None, batch], i, line, found[None, r])

    @cute.jit
    def guard(self, values: cute.Tensor, shortfall: cute.Tensor):
        """Mark the product where an element has parts that do not hold it, or products that may overflow."""
        words = cute.recast_tensor(values, Uint32)
        least, most = cutlass.const_expr([exponent << _FRACTION for exponent in PART_EXPONENTS])
        outside = Int32(0)
        for e in cutlass.range_constexpr(cute.size(words)):
            magnitude = words[e] & Uint32(0x7FFFFFFF)
            fine = magnitude == 0 or magnitude - Uint32(least) < Uint32(most - least)
            outside = outside if fine else Int32(1)
        if cute.arch.warp_redux_sync(outside, "max") == 1 and cute.arch.lane_idx() == 0:
            cute.arch.atomic_max(shortfall.iterator, Int32(NEVER), sem="relaxed", scope="gpu")

    @cute.jit
    def write(self, gD: cute.Tensor, i, line, left: cute.Tensor):
        """Write the parts of a vector."""
        # A value that would round to infinity is clamped: the next part has the rest.
        most = Float32(BFLOAT16.max_value)
        whole = cute.make_rmem_tensor(cute.make_layout(RUN), Float32)
        for e in cutlass.range_constexpr(RUN):
            whole[e] = cute.arch.fmax(cute.arch.fmin(left[e], most), -most)
        for number in cutlass.range_constexpr(PARTS):
            part = cute.make_rmem_tensor(cute.make_layout(RUN), cutlass.BFloat16)
            part.store(whole.load().to(cutlass.BFloat16))
            place = gD.iterator + cute.crd2idx((i, line, number), gD.layout)
            cute.autovec_copy(cute.recast_tensor(part, Uint32), words_at(place, _VECTOR))
            # Exact: the remainder has fewer bits.
            left.store(left.load() - part.load().to(Float32))
            whole.store(left.load())

    @cute.jit
    def read(self, gS: cute.Tensor, i, line, values: cute.Tensor):
        """Read a vector; elements past the matrix are zero."""
        values.fill(0.0)
        if line < gS.shape[1]:
            start = gS.iterator + cute.crd2idx((i, line), gS.layout)
            if i + RUN <= gS.shape[0] and start.toint() % _VECTOR_BYTES == 0:
                words = cute.recast_tensor(values, Uint32)
                for half in cutlass.range_constexpr(RUN // _VECTOR):
                    target = cute.make_tensor(words.iterator + _VECTOR * half, cute.make_layout(_VECTOR))
                    cute.autovec_copy(words_at(start + _VECTOR * half, _VECTOR), target)
            else:
                for e in cutlass.range_constexpr(RUN):
                    if i + e < gS.shape[0]:
                        values[e] = gS[i + e, line]


def buildable(config: SplitConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel with fake arguments."""
    kernel, arguments = Bf16x6Split(config, types), []
    for _ in range(2):
        arguments += [major_tensor("float32", 0, batch=1), major_tensor("bfloat16", 0, batch=2, vector=8)]
    return Buildable(kernel, (*arguments, Int32(1), *((tensor_1d("int32"),) if kernel.guarded else ())))
