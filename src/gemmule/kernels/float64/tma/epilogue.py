"""Epilogue of float64 whose lanes have rows and columns in the order of stages that TMA fills."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.float64.epilogue import Float64Epilogue


@dataclass(frozen=True)
class TmaEpilogue(Float64Epilogue):
    """Writes of a warp tile; fields as of `Float64Epilogue`, and the stages."""

    stage_a: Any = None  #: TmaStage. Of A: its rows are those of D.
    stage_b: Any = None  #: TmaStage. Of B: its rows are columns of D.

    @cute.jit
    def write(self, gD: cute.Tensor, gC: cute.Tensor, rC: cute.Tensor, m, n, alpha, beta):
        if cutlass.const_expr(self.stage_b.k_major):
            exchange(rC)
        Float64Epilogue.write(self, gD, gC, rC, m, n, alpha, beta)

    def row(self, m: Any, g: Any) -> Any:
        return m + self.stage_a.row(g)

    def row_step(self, i: int, half: int) -> int:
        return self.stage_a.octet(2 * i + half)

    def column_step(self, j: int) -> int:
        return self.stage_b.octet(j)

    def columns(self, n: Any, t: Any) -> tuple[Any, Any]:
        # Of a K-major B after `exchange`: lanes 0 and 2, and 1 and 3, have contiguous pairs.
        first = n + (t % 2 * 4 + t // 2 * 2 if self.stage_b.k_major else self.stage_b.row(2 * t))
        return first, first + 1


@cute.jit
def exchange(rC: cute.Tensor):
    """Exchange accumulators with the lane two further: columns c and c + 2, c + 1 and c + 3 there, become pairs."""
    tid, _, _ = cute.arch.thread_idx()
    upper = tid % 4 // 2
    for at in cutlass.range_constexpr(0, cute.size(rC), 2):
        given, kept = rC[at + 1], rC[at]
        if upper == 1:
            given, kept = kept, given
        got = _from_lane(given, Int32(2))
        rC[at] = got if upper == 1 else kept
        rC[at + 1] = kept if upper == 1 else got


@cute.jit
def _from_lane(value, mask):
    """Return the float64 of the lane whose number differs by `mask`."""
    return cute.arch.inline_ptx(
        "{ .reg .b32 low, high; mov.b64 {low, high}, {$r0}; shfl.sync.bfly.b32 low, low, {$r1}, 31, -1; "
        "shfl.sync.bfly.b32 high, high, {$r1}, 31, -1; mov.b64 {$w0}, {low, high}; }",
        write_only_types=[cutlass.Float64],
        read_only_args=[value, mask],
    )
