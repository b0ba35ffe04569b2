"""Ozaki scheme II, CRT reconstruction: float64 from residues for 15 moduli, scaled back, times alpha, plus beta * C.

Idea
    The integer is a sum of residues times weights, less a multiple of the product of all moduli. Weights have 118 bits:
    in three parts whose sums float64 holds exactly. The first determines the multiple to subtract, and then the three
    are the remainder, without any error until they are added.
Change from the rung before
    15 bytes are read for an element. Of a complex one it is 45, residues of three products: those of its parts are
    sums of them, without any error.
Data movement
    15 bytes read and 8 written for an element, 8 more read where there is a C; 45 and 16 of a complex one.
Limits
    Memory, and multiplications of float64 nearly as much: 3 for a modulus and an element.
Sources
    As of ozaki_gemm.
"""

from __future__ import annotations

import cutlass
from cutlass import Boolean, Float64, Int32, Uint32, cute

from gemmule.core.dtype import COMPLEX64, COMPLEX128, dtype_named
from gemmule.core.spec import Buildable
from gemmule.kernels.emulation.decision_word import decision, wait_for_emulation
from gemmule.kernels.emulation.float64_bits import power
from gemmule.kernels.emulation.guard import SCALE_STEPS
from gemmule.kernels.emulation.instruction import instruction
from gemmule.kernels.emulation.moduli import counts_of, real_of
from gemmule.kernels.emulation.ozaki_config import (
    GROUP,
    NOT_EMULATED,
    PARTS,
    PLANES,
    RUN,
    THREADS,
    ReconstructionConfig,
)
from gemmule.kernels.emulation.residues import MODULI, middle, product, weights
from gemmule.kernels.parts.complex_parts import pair_at
from gemmule.kernels.parts.tensors import cute_type, major_tensor, tensor_1d
from gemmule.kernels.parts.words import words_at

# The largest exponent of a scale, which is applied in halves.
_MOST = 2040
# The float64 2**52, to which bytes are added in the last bits, by its upper word.
_BASE, _BASE_WORD = 2.0**52, 0x43300000


class OzakiReconstruction:
    """D = alpha * X * 2**-(row + column) + beta * C, for the integers X of residues R (M, N, L); C and D in rows."""

    #: Products for each modulus.
    planes = 1

    def __init__(self, config: ReconstructionConfig, types: dict[str, str]) -> None:
        del config
        self.counts, self.part = counts_of(types), cute_type(real_of(types))
        self.reads_c = types["adds"] == "yes"

    @cute.jit
    def __call__(self, mR: cute.Tensor, scales, mC: cute.Tensor, mD: cute.Tensor, factors, grid: Int32, shortfall=None):
        self.kernel(mR, scales, mC, mD, factors, shortfall).launch(grid=(grid, 1, 1), block=(THREADS, 1, 1))

    @cute.kernel
    def kernel(self, mR: cute.Tensor, scales, mC: cute.Tensor, mD: cute.Tensor, factors, shortfall=None):
        cute.arch.griddepcontrol_launch_dependents()
        if cutlass.const_expr(len(self.counts) > 1):
            decided, (cta, _, _) = decision(shortfall, self.counts[-1]), cute.arch.block_idx()
            wait_for_emulation(decided, cta)
            for count in cutlass.range_constexpr(self.counts[0], self.counts[-1] + 1):
                if decided == count:
                    self.reconstruct(mR, scales, (mC, mD), factors, count)
        else:
            cute.arch.griddepcontrol_wait()
            self.reconstruct(mR, scales, (mC, mD), factors, self.counts[0])

    @cute.jit
    def reconstruct(self, mR: cute.Tensor, scales, matrices, factors, count: cutlass.Constexpr[int]):
        """Write this CTA's parts of the result, from the residues for a number of moduli."""
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        threads = Uint32(matrices[1].shape[0]) * Uint32(mR.shape[1] // RUN)
        for part in cutlass.range(cta, Int32((threads + Uint32(THREADS - 1)) // THREADS), ctas, unroll=1):
            self.write_part(mR, scales, matrices, factors, part, count)

    @cute.jit
    def write_part(self, mR: cute.Tensor, scales, matrices, factors, part, count: cutlass.Constexpr[int]):
        """Write four columns of a row in each thread."""
        tid, _, _ = cute.arch.thread_idx()
        per_row = Uint32(mR.shape[1] // RUN)
        number = Uint32(part * THREADS + tid)
        row = Int32(number // per_row)
        place = Int32(number - Uint32(row) * per_row) * RUN
        if row < matrices[1].shape[0]:
            # 16 bytes of 64 columns belong to lanes 0, 1, 2, 3: two contiguous elements of every 8 columns.
            col = place // GROUP * GROUP + place % 16 * 4 + place % GROUP // 16 * 2
            words = cute.make_rmem_tensor(cute.make_layout(count * self.planes), Uint32)
            start = mR.iterator + cute.crd2idx((row, place, 0), mR.layout)
            for number_of in cutlass.range_constexpr(count * self.planes):
                words[number_of] = words_at(start + number_of * mR.stride[2], 1)[0]
            rows, columns = scales
            row_scale = rows[row]
            is_emulated = Boolean(True)
            if cutlass.const_expr(len(self.counts) > 1):
                is_emulated = row_scale < NOT_EMULATED
                # Both scales exceed those that were found by as much.
                row_scale = row_scale + 2 * SCALE_STEPS[self.counts.index(count)]
            if is_emulated:
                for pair in cutlass.range_constexpr(2):
                    residues = (words, 2 * pair)
                    self.write(matrices, residues, (row_scale, columns), (row, col + 8 * pair), factors)

    @cute.jit
    def write(self, matrices, residues, scales, place, factors):
        """Write two contiguous elements.

        Parameters
        ----------
        matrices : tuple of Tensor
            C and D.
        residues : tuple
            Words of residues by modulus and plane, and the byte of the first element in them.
        scales : tuple
            The row's scale, and those of all columns.
        place : tuple of Int32
            Row and column of the first element.
        factors : tuple of Float64
            Alpha and beta.
        """
        mD, (row, col) = matrices[1], place
        if col < mD.shape[1]:
            mC, (words, byte), (row_scale, columns), (alpha, beta) = matrices[0], residues, scales, factors
            count = cutlass.const_expr(cute.size(words))
            both = cute.make_rmem_tensor(cute.make_layout(2), Float64)
            for v in cutlass.range_constexpr(2):
                # Past the last column there is a scale to read: the workspace is longer.
                both[v] = alpha * self.scaled(self.whole_number(words, byte + v, count), row_scale, columns[col + v])
            first, second = Boolean(True), col + 1 < mD.shape[1]
            if cutlass.const_expr(len(self.counts) > 1):
                # The native kernel has written columns that are not emulated.
                first, second = columns[col] < NOT_EMULATED, second and columns[col + 1] < NOT_EMULATED
            target = mD.iterator + cute.crd2idx((row, col), mD.layout)
            aligned = target.toint() % 16 == 0
            if cutlass.const_expr(self.reads_c):
                if first:
                    both[0] = both[0] + beta * mC[row, col]
                if second:
                    both[1] = both[1] + beta * mC[row, col + 1]
            if first and second and aligned:
                cute.autovec_copy(cute.recast_tensor(both, Uint32), words_at(target, 4))
            else:
                if first:
                    mD[row, col] = both[0]
                if second:
                    mD[row, col + 1] = both[1]

    @cute.jit
    def whole_number(
        self, words, byte: cutlass.Constexpr[int], count: cutlass.Constexpr[int], part: cutlass.Constexpr[int] = 0
    ):
        """Return the integer that has these residues, as float64."""
        sums = []
        every, whole = cutlass.const_expr(weights(count))
        # With few moduli two parts are all.
        used = cutlass.const_expr(3 if whole[2] else 2)
        for number in cutlass.range_constexpr(count):
            bits = cute.make_rmem_tensor(cute.make_layout(2), Uint32)
            bits[0], bits[1] = self.residue(words, number, byte, part), Uint32(_BASE_WORD)
            residue = shifted(cute.recast_tensor(bits, Float64)[0], -_BASE - middle(MODULI[number]))
            parts = cutlass.const_expr(every[number][:used])
            if cutlass.const_expr(number == 0):
                sums = [instruction("mul.rn.f64", Float64, residue, part) for part in parts]
            else:
                sums = [fused(residue, part, total) for part, total in zip(parts, sums, strict=True)]
        # The nearest multiple, by adding and subtracting a number whose last bit is 1.
        multiple = instruction("mul.rn.f64", Float64, sums[0], 1.0 / product(count))
        multiple = shifted(shifted(multiple, 1.5 * _BASE), -1.5 * _BASE)
        left = [fused(multiple, -whole[p], sums[p]) for p in range(used)]
        # The first two may cancel to the size of the third: they are added with their rounding error (two-sum).
        total = left[0] + left[1]
        second = total - left[0]
        error = (left[0] - (total - second)) + (left[1] - second)
        return total + (error + left[2] if cutlass.const_expr(used == 3) else error)

    @cute.jit
    def residue(
        self, words, number: cutlass.Constexpr[int], byte: cutlass.Constexpr[int], part: cutlass.Constexpr[int]
    ):
        """Return a residue plus the middle of its modulus, which is not negative."""
        del part
        return words[number] >> 8 * byte & 0xFF

    @cute.jit
    def scaled(self, value, row_scale, column_scale):
        """Undo the scales of a row and a column; NaN where one of them marks a line that is not emulated."""
        exponent = cutlass.max(cutlass.min(-row_scale - column_scale, _MOST), -_MOST)
        half = exponent >> 1
        found = value * power(half) * power(exponent - half)
        if row_scale == NOT_EMULATED or column_scale == NOT_EMULATED:
            found = Float64(float("nan"))
        return found


class ComplexReconstruction(OzakiReconstruction):
    """The same of complex elements, from products of planes: P of real parts, Q of imaginary ones, S of the third.

    Real parts are P + Q, imaginary ones S - P + Q, times the sign of A: of A times B, with the parts of B as
    `RealForms` writes them.
    """

    planes = PLANES

    @cute.jit
    def write(self, matrices, residues, scales, place, factors):
        """Write two contiguous elements; parameters as of `OzakiReconstruction`, and the sign among the factors."""
        mD, (row, col) = matrices[1], place
        mC, (words, byte), (row_scale, columns), (alpha, beta, sign) = matrices[0], residues, scales, factors
        count = cutlass.const_expr(cute.size(words) // PLANES)
        for v in cutlass.range_constexpr(2):
            if col + v < mD.shape[1]:
                both = cute.make_rmem_tensor(cute.make_layout(PARTS), Float64)
                for part in cutlass.range_constexpr(PARTS):
                    whole = self.whole_number(words, byte + v, count, part)
                    both[part] = Float64(alpha) * self.scaled(whole, row_scale, columns[col + v])
                both[1] = Float64(sign) * both[1]
                if cutlass.const_expr(self.reads_c):
                    addend = pair_at(mC, (row, col + v), self.part)
                    for part in cutlass.range_constexpr(PARTS):
                        both[part] = both[part] + Float64(beta) * Float64(addend[part])
                rounded = cute.make_rmem_tensor(cute.make_layout(PARTS), self.part)
                for part in cutlass.range_constexpr(PARTS):
                    rounded[part] = self.part(both[part])
                cute.autovec_copy(rounded, pair_at(mD, (row, col + v), self.part))

    @cute.jit
    def residue(
        self, words, number: cutlass.Constexpr[int], byte: cutlass.Constexpr[int], part: cutlass.Constexpr[int]
    ):
        modulus = cutlass.const_expr(MODULI[number])
        first, second, third = (words[PLANES * number + plane] >> 8 * byte & 0xFF for plane in range(PLANES))
        # Each has the middle of the modulus already.
        real = cutlass.const_expr(part == 0)
        found = first + second - Uint32(middle(modulus)) if real else third - first + second
        # From -modulus to 2 * modulus: one modulus is added, or subtracted, unless the result would wrap around.
        found = instruction("min.u32", Uint32, found, found + Uint32(modulus))
        return instruction("min.u32", Uint32, found, found - Uint32(modulus))


def shifted(value: Float64, by: float) -> Float64:
    """Return a value plus a constant, rounded by itself."""
    return instruction("add.rn.f64", Float64, value, by)


def fused(value: Float64, factor: float, total: Float64) -> Float64:
    """Return a sum, and a product with a constant, rounded once."""
    return instruction("fma.rn.f64", Float64, value, factor, total)


def buildable(config: ReconstructionConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel with fake arguments."""
    residues = major_tensor("uint8", 1, batch=1, vector=16)
    is_complex = "planes" in types
    kernel = (ComplexReconstruction if is_complex else OzakiReconstruction)(config, types)
    real = dtype_named(real_of(types))
    element = next(one for one in (COMPLEX64, COMPLEX128) if one.part == real) if is_complex else real
    c, d = (major_tensor(element.name, 1) for _ in range(2))
    scales = (tensor_1d("int32"), tensor_1d("int32"))
    factors = tuple(map(kernel.part, (1, 0, 1) if is_complex else (1, 0)))
    shortfall = (tensor_1d("int32"),) if len(kernel.counts) > 1 else ()
    return Buildable(kernel, (residues, scales, c, d, factors, Int32(1), *shortfall))
