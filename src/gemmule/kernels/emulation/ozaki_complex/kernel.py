"""Emulated complex products: operands with their parts along K, for the kernels that emulate by residues.

Idea
    Real and imaginary parts are successive elements of K. Of each column of B there is (Br, -Bi), and of a row of A
    (Ar, Ai): three products of their residues, and of those of a sum and a difference, replace four (3M).
Change from the rung before
    Nothing is computed: columns are written with signs. A K-major A is a real matrix in place.
Data movement
    Each element of B, and of an A that is not K-major, is read and written.
Limits
    Memory.
Sources
    As of ozaki_gemm. Residues of sums are exact, so that 3M has no error here: in floating point it bounds imaginary
    parts by norms only.
"""

from __future__ import annotations

import cutlass
from cutlass import Float32, Float64, Int32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.dtype import dtype_named
from gemmule.core.spec import Buildable
from gemmule.kernels.emulation.ozaki_config import SIDE, THREADS, RealFormsConfig
from gemmule.kernels.parts.complex_parts import pair_at
from gemmule.kernels.parts.tensors import major_tensor

_WARPS = THREADS // 32
#: Types of the parts of an element.
_PARTS = {"complex64": Float32, "complex128": Float64}


class RealForms:
    """R[:, j] = line j of B (K, N), imaginary parts times a sign; of A (K, M) if it is copied, R[:, i] = line i."""

    def __init__(self, config: RealFormsConfig, types: dict[str, str]) -> None:
        del config
        self.part = _PARTS[types["element"]]
        self.copies_a, self.along = types["a_major"] == "m", types["b_major"] == "k"

    @cute.jit
    def __call__(self, mB: cute.Tensor, rB: cute.Tensor, sign, grid: Int32, mA=None, rA=None):
        self.kernel(mB, rB, sign, mA, rA).launch(grid=(grid, 1, 1), block=(THREADS, 1, 1))

    @cute.kernel
    def kernel(self, mB: cute.Tensor, rB: cute.Tensor, sign, mA=None, rA=None):
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()
        # One element more from k to k, so that columns are in different banks.
        tile = cute.make_layout((2, SIDE, SIDE), stride=(1, 2, 2 * (SIDE + 1)))
        block = SmemAllocator().allocate_tensor(self.part, tile, 16)
        cta, _, _ = cute.arch.block_idx()
        firsts = cute.ceil_div(mB.shape[0], SIDE) * cute.ceil_div(mB.shape[1], SIDE)
        if cutlass.const_expr(self.copies_a):
            if cta < firsts:
                self.copy(mB, rB, cta, block, sign, self.along)
            else:
                self.copy(mA, rA, cta - firsts, block, None, False)
        else:
            self.copy(mB, rB, cta, block, sign, self.along)

    @cute.jit
    def copy(self, mS: cute.Tensor, mR: cute.Tensor, cta, block, sign, along: cutlass.Constexpr[bool]):
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
                if cutlass.const_expr(sign is not None):
                    values[1, e] = sign * values[1, e]
                cute.autovec_copy(values[None, e], pair_at(mR, (2 * k, line), self.part))


def buildable(config: RealFormsConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel with fake arguments."""
    kernel, element, one = RealForms(config, types), types["element"], _PARTS[types["element"]](1)
    real = dtype_named(element).part.name
    b, forms = major_tensor(element, 0 if kernel.along else 1), major_tensor(real, 0, vector=2)
    copied = (major_tensor(element, 1), major_tensor(real, 0, vector=2)) if kernel.copies_a else ()
    return Buildable(kernel, (b, forms, one, Int32(1), *copied))
