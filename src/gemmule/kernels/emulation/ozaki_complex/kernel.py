"""Emulated complex products: real forms of the operands, for the kernels that emulate real types.

Idea
    Real and imaginary parts are successive elements of K. Of complex64 they are also those of the columns of D: of each
    column of B there are two real ones, (Br, -Bi) for real parts and (Bi, Br) for imaginary ones. A product of
    M x N x K complex numbers is one of M x 2 N x 2 K real numbers, in the same memory of D, and with the same bound of
    each part. Of complex128 there is one, (Br, -Bi): three products of residues replace four (3M).
Change from the rung before
    Nothing is computed: columns are written with signs. A K-major A is a real matrix as it lies.
Data movement
    Of complex128, 16 bytes of each element of B, and of an A that is not K-major, are read and written; of complex64
    8, and of B 16 are written.
Limits
    Memory.
Sources
    As of ozaki_gemm and bf16x6_gemm. Residues of sums are exact, so that 3M has no error here: in floating point it
    bounds imaginary parts by norms only.
"""

from __future__ import annotations

import cutlass
from cutlass import Float32, Float64, Int32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.dtype import dtype_named
from gemmule.core.spec import Buildable
from gemmule.kernels.emulation.ozaki_config import FORMS, SIDE, THREADS, RealFormsConfig
from gemmule.kernels.parts.complex_parts import pair_at
from gemmule.kernels.parts.tensors import major_tensor

_WARPS = THREADS // 32
#: Types of the parts of an element.
_PARTS = {"complex64": Float32, "complex128": Float64}


class RealForms:
    """R[:, F j] ... = the F forms of line j of B (K, N), one or two; of A (K, M) if it is copied, R[:, i] = line i."""

    def __init__(self, config: RealFormsConfig, types: dict[str, str]) -> None:
        del config
        self.part, self.forms = _PARTS[types["element"]], FORMS[types["element"]]
        self.copies_a, self.along = types["a_major"] == "m", types["b_major"] == "k"

    @cute.jit
    def __call__(self, mB: cute.Tensor, rB: cute.Tensor, signs, grid: Int32, mA=None, rA=None):
        self.kernel(mB, rB, signs, mA, rA).launch(grid=(grid, 1, 1), block=(THREADS, 1, 1))

    @cute.kernel
    def kernel(self, mB: cute.Tensor, rB: cute.Tensor, signs, mA=None, rA=None):
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()
        # One element more from k to k, so that columns lie in different banks.
        tile = cute.make_layout((2, SIDE, SIDE), stride=(1, 2, 2 * (SIDE + 1)))
        block = SmemAllocator().allocate_tensor(self.part, tile, 16)
        cta, _, _ = cute.arch.block_idx()
        firsts = cute.ceil_div(mB.shape[0], SIDE) * cute.ceil_div(mB.shape[1], SIDE)
        if cutlass.const_expr(self.copies_a):
            if cta < firsts:
                self.copy(mB, rB, cta, block, signs, self.along)
            else:
                self.copy(mA, rA, cta - firsts, block, None, False)
        else:
            self.copy(mB, rB, cta, block, signs, self.along)

    @cute.jit
    def copy(self, mS: cute.Tensor, mR: cute.Tensor, cta, block, signs, along: cutlass.Constexpr[bool]):
        """Copy a square of a complex matrix (K, lines); shared memory transposes it unless it is K-major."""
        tid, _, _ = cute.arch.thread_idx()
        lane, warp = tid % 32, tid // 32
        across = cute.ceil_div(mS.shape[1], SIDE)
        k0, line0 = cta // across * SIDE, cta % across * SIDE
        steps = cutlass.const_expr(SIDE // _WARPS)
        values = cute.make_rmem_tensor(cute.make_layout((2, steps)), self.part)
        values.fill(self.part(0))
        for e in cutlass.range_constexpr(steps):
            other = warp + _WARPS * e
            k, line = (k0 + lane, line0 + other) if cutlass.const_expr(along) else (k0 + other, line0 + lane)
            if k < mS.shape[0] and line < mS.shape[1]:
                cute.autovec_copy(pair_at(mS, (k, line), self.part), values[None, e])
        if cutlass.const_expr(not along):
            for e in cutlass.range_constexpr(steps):
                cute.autovec_copy(values[None, e], block[None, lane, warp + _WARPS * e])
            cute.arch.sync_threads()
            for e in cutlass.range_constexpr(steps):
                cute.autovec_copy(block[None, warp + _WARPS * e, lane], values[None, e])
        for e in cutlass.range_constexpr(steps):
            k, line = k0 + lane, line0 + warp + _WARPS * e
            if k < mS.shape[0] and line < mS.shape[1]:
                self.write(values[None, e], mR, (k, line), signs)

    @cute.jit
    def write(self, value: cute.Tensor, mR: cute.Tensor, place, signs):
        """Write an element, or its forms."""
        k, line = place
        if cutlass.const_expr(signs is None):
            cute.autovec_copy(value, pair_at(mR, (2 * k, line), self.part))
        else:
            for form in cutlass.range_constexpr(self.forms):
                found = cute.make_rmem_tensor(cute.make_layout(2), self.part)
                if cutlass.const_expr(form == 0):
                    found[0], found[1] = value[0], signs[0] * value[1]
                else:
                    found[0], found[1] = signs[1] * value[1], signs[2] * value[0]
                cute.autovec_copy(found, pair_at(mR, (2 * k, self.forms * line + form), self.part))


def buildable(config: RealFormsConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel with stand-ins for its arguments."""
    kernel, element, one = RealForms(config, types), types["element"], _PARTS[types["element"]](1)
    real = dtype_named(element).part.name
    b, forms = major_tensor(element, 0 if kernel.along else 1), major_tensor(real, 0, vector=2)
    copied = (major_tensor(element, 1), major_tensor(real, 0, vector=2)) if kernel.copies_a else ()
    return Buildable(kernel, (b, forms, (one, one, one), Int32(1), *copied))
