"""Rows and columns of an emulated product that the guard lists: float64 on tensor cores, lines gathered where they lie.

Idea
    The error bound of an emulated element concerns its row of A and its column of B. Where a few of these cannot be
    scaled, all others can: the product is emulated, and all elements of these lines are dot products of float64.
Change from the rung before
    The rows of the GEMM are read from a list in device memory. A CTA multiplies up to 32 of them with 32 lines of the
    other operand, its warps parts of K. Where nothing is listed, CTAs return at once.
Data movement
    The other operand once for every 32 lines; the listed ones for every 32 lines of it, from L2.
Limits
    Memory.
Sources
    PTX ISA: fragments of mma.sync for .f64.
"""

from __future__ import annotations

import cutlass
from cutlass import Float64, Int32, cute, select_
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.emulation.decision_word import decision, wait_for_emulation
from gemmule.kernels.emulation.guard_words import LISTED, NEVER
from gemmule.kernels.emulation.native_list import listed
from gemmule.kernels.emulation.ozaki_config import NOT_EMULATED, THREADS, NativeLinesConfig
from gemmule.kernels.parts.mma_sync import double_mma_name, mma_sync
from gemmule.kernels.parts.tensors import major_tensor, tensor_1d

#: Lines of a fragment, fragments of the lines of a CTA, and elements of K of an instruction.
_LINES, _FRAGMENTS, _DEPTH = 8, 4, 4
TILE = _LINES * _FRAGMENTS
#: Instructions along K whose elements a thread loads at once.
_STEPS = 4
_WARPS = THREADS // 32
_MMA = double_mma_name(_LINES, _DEPTH)


class NativeLines:
    """D = alpha * A @ B + beta * C in listed rows and columns: A (K, M) and B (K, N) lie anywhere, C and D in rows."""

    def __init__(self, config: NativeLinesConfig, types: dict[str, str]) -> None:
        del config
        self.reads_c = types["adds"] == "yes"

    @cute.jit
    def __call__(self, operands, matrices, factors, rows: cute.Tensor, shortfall: cute.Tensor, grid: Int32):
        self.kernel(operands, matrices, factors, rows, shortfall).launch(
            grid=(grid, 1, 1), block=(THREADS, 1, 1), min_blocks_per_mp=1
        )

    @cute.kernel
    def kernel(self, operands, matrices, factors, rows: cute.Tensor, shortfall: cute.Tensor):
        cute.arch.griddepcontrol_launch_dependents()
        sums = SmemAllocator().allocate_tensor(
            Float64, cute.make_layout((2 * _FRAGMENTS * _FRAGMENTS, 32, _WARPS // 2), stride=(32, 1, TILE * TILE)), 16
        )
        count, (cta, _, _) = decision(shortfall, NEVER), cute.arch.block_idx()
        wait_for_emulation(count, cta)
        if count > 0:
            for side in cutlass.range_constexpr(2):
                self.multiply(operands, (rows, matrices), (shortfall, sums), factors, side)

    @cute.jit
    def multiply(self, operands, target, shared, factors, side: cutlass.Constexpr[int]):
        """Multiply the listed lines of an operand with all of the other one."""
        shortfall, sums = shared
        mX, mY = operands[side], operands[1 - side]
        lines = listed(shortfall, side)
        count = shortfall[LISTED + side]
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        across = cute.ceil_div(mY.shape[1], TILE)
        depth = mX.shape[0] if factors[0] != 0 else Int32(0)
        for number in cutlass.range(cta, across * cute.ceil_div(count, TILE), ctas, unroll=1):
            first, other = number // across * TILE, number % across * TILE
            places = self.places(lines, (first, count), (other, mY.shape[1]))
            totals = cute.make_rmem_tensor(cute.make_layout((2, _FRAGMENTS, _FRAGMENTS)), Float64)
            totals.fill(0.0)
            self.add_products((mX, mY), places, depth, totals)
            self.add_warps(totals, sums)
            self.write(totals, places, target, factors, side)

    @cute.jit
    def places(self, lines: cute.Tensor, own, others):
        """Return for each fragment a lane's listed line, how many there are, and the other operand's first and end."""
        (first, count), (other, end) = own, others
        tid, _, _ = cute.arch.thread_idx()
        found = cute.make_rmem_tensor(cute.make_layout(_FRAGMENTS), Int32)
        for fragment in cutlass.range_constexpr(_FRAGMENTS):
            # Behind the last line it is read again, without a branch, and not written.
            found[fragment] = lines[cutlass.min(first + fragment * _LINES + tid % 32 // 4, count - 1)]
        return found, count - first, other, end

    @cute.jit
    def add_products(self, operands, places, depth, totals: cute.Tensor):
        """Add the products of a warp's parts of K."""
        tid, _, _ = cute.arch.thread_idx()
        span = cutlass.const_expr(_DEPTH * _STEPS)
        whole = depth // (_WARPS * span) * (_WARPS * span)
        for begin in cutlass.range(tid // 32 * span, whole, _WARPS * span, unroll=1):
            self.add_steps(operands, places, begin, None, totals)
        if whole < depth:
            self.add_steps(operands, places, whole + tid // 32 * span, depth, totals)

    @cute.jit
    def add_steps(self, operands, places, begin, depth, totals: cute.Tensor):
        """Add the products of some steps; `depth` is where K ends within them, or None."""
        (mX, mY), (lines, count, other, end) = operands, places
        lane = cute.arch.lane_idx()
        x, y = (cute.make_rmem_tensor(cute.make_layout((_STEPS, _FRAGMENTS)), Float64) for _ in range(2))
        for fragment in cutlass.range_constexpr(_FRAGMENTS):
            line = cutlass.min(other + fragment * _LINES + lane // 4, end - 1)
            for step in cutlass.range_constexpr(_STEPS):
                k = begin + step * _DEPTH + lane % 4
                if cutlass.const_expr(depth is None):
                    y[step, fragment] = mY[k, line]
                else:
                    y[step, fragment] = Float64(0.0)
                    if k < depth:
                        y[step, fragment] = mY[k, line]
        for fragment in cutlass.range_constexpr(_FRAGMENTS):
            if fragment * _LINES < count:
                for step in cutlass.range_constexpr(_STEPS):
                    k = begin + step * _DEPTH + lane % 4
                    if cutlass.const_expr(depth is None):
                        x[step, fragment] = mX[k, lines[fragment]]
                    else:
                        x[step, fragment] = Float64(0.0)
                        if k < depth:
                            x[step, fragment] = mX[k, lines[fragment]]
        for fragment in cutlass.range_constexpr(_FRAGMENTS):
            if fragment * _LINES < count:
                for step in cutlass.range_constexpr(_STEPS):
                    for across in cutlass.range_constexpr(_FRAGMENTS):
                        mma_sync(_MMA, totals[None, fragment, across], (x[step, fragment],), (y[step, across],))

    @cute.jit
    def add_warps(self, totals: cute.Tensor, sums: cute.Tensor):
        """Add the sums of all warps to those of the first, half of the warps at a time."""
        tid, _, _ = cute.arch.thread_idx()
        lane, warp = tid % 32, tid // 32
        for bit in cutlass.range_constexpr(_WARPS.bit_length() - 1):
            half = cutlass.const_expr(_WARPS >> bit + 1)
            if warp >= half and warp < 2 * half:
                for number in cutlass.range_constexpr(cute.size(totals)):
                    sums[number, lane, warp - half] = totals[number]
            cute.arch.sync_threads()
            if warp < half:
                for number in cutlass.range_constexpr(cute.size(totals)):
                    totals[number] = totals[number] + sums[number, lane, warp]
            # Other warps write here next.
            cute.arch.sync_threads()

    @cute.jit
    def write(self, totals: cute.Tensor, places, target, factors, side: cutlass.Constexpr[int]):
        """Write the first warp's sums; of listed columns not those rows that are listed too, which are written."""
        (lines, count, other, end), (rows, (mC, mD)), (alpha, beta) = places, target, factors
        tid, _, _ = cute.arch.thread_idx()
        if tid < 32:
            for fragment in cutlass.range_constexpr(_FRAGMENTS):
                own, is_listed = lines[fragment], fragment * _LINES + tid // 4 < count
                for across in cutlass.range_constexpr(_FRAGMENTS):
                    for v in cutlass.range_constexpr(2):
                        line = other + across * _LINES + 2 * (tid % 4) + v
                        inside = is_listed and line < end
                        if cutlass.const_expr(side == 1):
                            inside = inside and rows[Int32(select_(inside, line, Int32(0)))] < NOT_EMULATED
                        if inside:
                            row, col = (own, line) if cutlass.const_expr(side == 0) else (line, own)
                            value = alpha * totals[v, fragment, across]
                            if cutlass.const_expr(self.reads_c):
                                value = value + beta * mC[row, col]
                            mD[row, col] = value


def buildable(config: NativeLinesConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel with fake arguments."""
    operands = tuple(major_tensor("float64", 0 if types[f"{name}_major"] == "k" else 1) for name in "ab")
    matrices = tuple(major_tensor("float64", 1) for _ in "cd")
    words = (tensor_1d("int32"), tensor_1d("int32"))
    factors = (Float64(1), Float64(0))
    return Buildable(NativeLines(config, types), (operands, matrices, factors, *words, Int32(1)))
