"""Ozaki scheme II, residues: float64 to integers, and their residues for 15 small moduli, a byte each, K-major.

Idea
    An integer of 64 bits is 8 bytes, and a sum of its bytes times small weights, modulo p, is what it is itself: two
    instructions for a number of 18 bits with the same residue. That is in the last bits of a float32, and two more
    multiplications take the nearest multiple of p away. No division, no conversion.
Change from the rung before
    15 bytes are written for 8 that are read. Lines that are MN-major are transposed in shared memory. Of a k-tile of
    128 a lane has every 32nd element: A and B share this permutation of K, so dot products are unchanged. Complex
    elements have three planes: their parts, and of A the sum of them, of B the difference (3M).
Data movement
    Every element is read once, 8 bytes, and written once, 15 bytes; of a complex one 16 and 45.
Limits
    Memory, and instructions nearly as much: six for a modulus and an element.
Sources
    As of ozaki_gemm.
"""

from __future__ import annotations

import cutlass
from cutlass import Float32, Float64, Int32, Int64, Uint32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.emulation.decision_word import decision, wait_for_emulation
from gemmule.kernels.emulation.float64_bits import power
from gemmule.kernels.emulation.instruction import instruction
from gemmule.kernels.emulation.moduli import counts_of, real_of, scale_step
from gemmule.kernels.emulation.ozaki_config import (
    LINES,
    NOT_EMULATED,
    PARTS,
    PITCH,
    RUN,
    SLICE,
    THREADS,
    ResiduesConfig,
)
from gemmule.kernels.emulation.residues import FLOAT_BASE, FLOAT_BITS, MODULI, byte_weights
from gemmule.kernels.parts.complex_parts import pair_at
from gemmule.kernels.parts.tensors import cute_type, major_tensor, tensor_1d
from gemmule.kernels.parts.words import packed, words_at

_WARPS = THREADS // 32


class OzakiResidues:
    """D[:, j, l] = S[:, j] * 2**scale[j], rounded, modulo the l-th modulus, for two matrices (length, lines).

    For complex elements, whose parts are successive, D[:, j, 3 l + p] is plane p.
    """

    def __init__(self, config: ResiduesConfig, types: dict[str, str]) -> None:
        self.along = (types["a_major"] == "k", types["b_major"] == "k")
        self.counts = counts_of(types)
        self.moduli = MODULI[: self.counts[-1]]
        self.parts = PARTS if "planes" in types else 1
        self.part = cute_type(real_of(types))
        self.runs = config.runs

    @cute.jit
    def __call__(
        self, mA, sA: cute.Tensor, rA: cute.Tensor, mB, sB: cute.Tensor, rB: cute.Tensor, grid: Int32, shortfall=None
    ):
        self.kernel(mA, sA, rA, mB, sB, rB, shortfall).launch(grid=(grid, 1, 1), block=(THREADS, 1, 1))

    @cute.kernel
    def kernel(
        self, mA: cute.Tensor, sA: cute.Tensor, rA: cute.Tensor, mB: cute.Tensor, sB: cute.Tensor, rB, shortfall=None
    ):
        # Let the dependent grid launch; it waits for this one's end before it reads.
        cute.arch.griddepcontrol_launch_dependents()
        if cutlass.const_expr(len(self.counts) > 1):
            count, (cta, _, _) = decision(shortfall, self.counts[-1]), cute.arch.block_idx()
            wait_for_emulation(count, cta)
            if count > 0:
                self.convert_both((mA, sA, rA), (mB, sB, rB), count)
        else:
            cute.arch.griddepcontrol_wait()
            self.convert_both((mA, sA, rA), (mB, sB, rB), None)

    @cute.jit
    def convert_both(self, a, b, count):
        """Convert this CTA's parts of A and of B, for a number of moduli that may be decided at run time."""
        block = None
        if cutlass.const_expr(not all(self.along)):
            transposed = cute.make_layout((SLICE, LINES), stride=(1, PITCH))
            block = SmemAllocator().allocate_tensor(Float64, transposed, 16)
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        firsts = self.parts_of(a[2], self.along[0])
        for part in cutlass.range(cta, firsts + self.parts_of(b[2], self.along[1]), ctas, unroll=1):
            if part < firsts:
                self.convert(a, part, block, count, self.along[0], 1)
            else:
                self.convert(b, part - firsts, block, count, self.along[1], -1)

    @cute.jit
    def parts_of(self, mD: cute.Tensor, along: cutlass.Constexpr[bool]):
        """Return in how many parts a matrix is converted."""
        k_tiles = mD.shape[0] // SLICE
        if cutlass.const_expr(along):
            found = cute.ceil_div(k_tiles * mD.shape[1], _WARPS * self.runs)
        else:
            found = k_tiles * cute.ceil_div(mD.shape[1], LINES)
        return found

    @cute.jit
    def convert(self, matrices, part, block, count, along: cutlass.Constexpr[bool], sign: cutlass.Constexpr[int]):
        """Convert a part: k-tiles of K-major lines, or a block of MN-major ones."""
        if cutlass.const_expr(along):
            self.convert_k_tiles(matrices, part, count, sign)
        else:
            self.convert_block(matrices, part, block, count)

    @cute.jit
    def convert_k_tiles(self, matrices, number_of, count, sign: cutlass.Constexpr[int]):
        """Convert k-tiles of K-major lines, a warp each; all loads are issued before the first is used.

        The third plane of complex elements is the first one plus `sign` times the second.
        """
        mS, scales, mD = matrices
        tid, _, _ = cute.arch.thread_idx()
        lane, warp = tid % 32, tid // 32
        k_tiles = Uint32(mD.shape[0] // SLICE)
        length = mS.shape[0] // self.parts
        values = cute.make_rmem_tensor(cute.make_layout((self.parts, RUN, self.runs)), Float64)
        values.fill(0.0)
        places = []
        for r in cutlass.range_constexpr(self.runs):
            number = Uint32((number_of * self.runs + r) * _WARPS + warp)
            at = number // k_tiles
            line, k = Int32(at), Int32((number - at * k_tiles) * SLICE)
            places.append((line, k))
            if line < mS.shape[1]:
                for e in cutlass.range_constexpr(RUN):
                    if k + 32 * e + lane < length:
                        if cutlass.const_expr(self.parts == 1):
                            values[0, e, r] = mS[k + 32 * e + lane, line]
                        else:
                            pair = cute.make_rmem_tensor(cute.make_layout(PARTS), self.part)
                            cute.autovec_copy(pair_at(mS, (PARTS * (k + 32 * e + lane), line), self.part), pair)
                            for part in cutlass.range_constexpr(PARTS):
                                values[part, e, r] = Float64(pair[part])
        for r in cutlass.range_constexpr(self.runs):
            line, k = places[r]
            if line < mS.shape[1]:
                self.write(values[None, None, r], scales[line], mD, (k + RUN * lane, line), (count, sign))

    @cute.jit
    def convert_block(self, matrices, number_of, block: cute.Tensor, count):
        """Convert a k-tile of MN-major lines, which shared memory transposes."""
        mS, scales, mD = matrices
        tid, _, _ = cute.arch.thread_idx()
        lane, warp = tid % 32, tid // 32
        across = cute.ceil_div(mD.shape[1], LINES)
        k, first = number_of // across * SLICE, number_of % across * LINES
        steps = cutlass.const_expr(SLICE // _WARPS)
        values = cute.make_rmem_tensor(cute.make_layout(steps), Float64)
        values.fill(0.0)
        if first + lane < mS.shape[1]:
            for e in cutlass.range_constexpr(steps):
                if k + warp + _WARPS * e < mS.shape[0]:
                    values[e] = mS[k + warp + _WARPS * e, first + lane]
        # The block before was read.
        cute.arch.sync_threads()
        for e in cutlass.range_constexpr(steps):
            block[warp + _WARPS * e, lane] = values[e]
        cute.arch.sync_threads()
        for x in cutlass.range(LINES // _WARPS, unroll=1):
            line = warp + _WARPS * x
            if first + line < mS.shape[1]:
                own = cute.make_rmem_tensor(cute.make_layout((1, RUN)), Float64)
                for e in cutlass.range_constexpr(RUN):
                    own[0, e] = block[lane + 32 * e, line]
                self.write(own, scales[first + line], mD, (k + RUN * lane, first + line), (count, 1))

    @cute.jit
    def write(self, values: cute.Tensor, scale, mD: cute.Tensor, place, options):
        """Write the residues of four elements: a word for each modulus and plane."""
        count, sign = options
        # In two steps: each is a power of two that float64 has. The scale marks lines that are not emulated, whose
        # residues may be any bytes.
        scale = scale if scale < NOT_EMULATED else Int32(0)
        if cutlass.const_expr(len(self.counts) > 1):
            scale = scale + scale_step(count, self.counts)
        half = scale >> 1
        first, second = power(half), power(scale - half)
        planes = []
        for part in cutlass.range_constexpr(self.parts):
            whole = cute.make_rmem_tensor(cute.make_layout(RUN), Int64)
            for e in cutlass.range_constexpr(RUN):
                whole[e] = instruction("cvt.rni.s64.f64", Int64, values[part, e] * first * second)
            planes.append(whole)
        if cutlass.const_expr(self.parts == PARTS):
            # Both are below a norm of 2**62 at most.
            third = cute.make_rmem_tensor(cute.make_layout(RUN), Int64)
            for e in cutlass.range_constexpr(RUN):
                third[e] = planes[0][e] + sign * planes[1][e]
            planes.append(third)
        words = [cute.recast_tensor(whole, Uint32) for whole in planes]
        start = mD.iterator + cute.crd2idx((*place, 0), mD.layout)
        for number in cutlass.range_constexpr(len(self.moduli)):
            if cutlass.const_expr(number < self.counts[0]):
                self.write_modulus(words, (start, mD.stride[2]), number)
            else:
                self.write_further_modulus(words, (start, mD.stride[2]), number, count)

    @cute.jit
    def write_further_modulus(self, words, target, number: cutlass.Constexpr[int], count):
        """Write the residues for a modulus if the guard decided for so many."""
        if number < count:
            self.write_modulus(words, target, number)

    @cute.jit
    def write_modulus(self, words, target, number: cutlass.Constexpr[int]):
        """Write the residues of four elements for a modulus."""
        modulus = cutlass.const_expr(self.moduli[number])
        start, stride = target
        for plane in cutlass.range_constexpr(len(words)):
            own = words[plane]
            found = cute.make_rmem_tensor(cute.make_layout(RUN), Uint32)
            for e in cutlass.range_constexpr(RUN):
                found[e] = own[2 * e]
                if cutlass.const_expr(modulus != 256):
                    found[e] = residue(own[2 * e], own[2 * e + 1] ^ Uint32(0x80000000), modulus)
            words_at(start + (number * len(words) + plane) * stride, 1)[0] = packed(found)


@cute.jit
def residue(low, high, modulus: cutlass.Constexpr[int]):
    """Return a word whose lowest byte is the residue, between -modulus / 2 and modulus / 2."""
    weights_low, weights_high, start = byte_weights(modulus)
    # A sum, and a word's bytes times signed bytes.
    bits = instruction("dp4a.u32.s32", Int32, low, weights_low, Int32(FLOAT_BITS + start))
    value = instruction("dp4a.u32.s32", Int32, high, weights_high, bits).bitcast(Float32)
    turns = instruction("fma.rn.f32", Float32, difference(value), 1 / modulus, FLOAT_BASE)
    return instruction("fma.rn.f32", Float32, difference(turns), -modulus, value).bitcast(Uint32)


def difference(value: Float32) -> Float32:
    """Return a float32 less the base."""
    return instruction("add.rn.f32", Float32, value, -FLOAT_BASE)


def buildable(config: ResiduesConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel with fake arguments."""
    arguments = []
    for name in "ab":
        arguments += [
            major_tensor(real_of(types), 0 if types[f"{name}_major"] == "k" else 1),
            tensor_1d("int32"),
            major_tensor("int8", 0, batch=1, vector=16),
        ]
    kernel = OzakiResidues(config, types)
    shortfall = (tensor_1d("int32"),) if len(kernel.counts) > 1 else ()
    return Buildable(kernel, (*arguments, Int32(1), *shortfall))
