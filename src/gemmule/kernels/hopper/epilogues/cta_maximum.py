"""The absolute maximum of a result, CTA by CTA: warps meet in shared memory, one of them raises the value in memory.

The kernel clears the value itself, where nothing that a call computed before must count: the first CTA does, and sets a
flag for each other CTA, whose spare warp waits for it while the others multiply. CTAs wait only for one of a lower
index, which starts before them. `stream_k_workspaces` says why flags need no zeros before a launch.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, Int64, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.schedulers.stream_k_fixup import reset_flag, wait_for_flag
from gemmule.kernels.parts.schedulers.stream_k_workspaces import FLAG_BYTES, READY

#: Threads of a warp.
_WARP = 32
#: Nanoseconds between two loads of a flag.
_DOZE_NS = 500


@dataclass(frozen=True)
class CtaMaximum:
    """The maxima of a CTA's consumer warps, and the spare warp that raises the value in memory to the largest."""

    clears: bool  #: Whether the kernel clears the value in memory; else it was cleared before the launch.
    barrier_id: int  #: A named barrier of the consumers and the spare warp.
    warpgroups: int  #: Consumer warpgroups of the CTA.

    @property
    def threads(self) -> int:
        """Threads of the consumers."""
        return self.warpgroups * WARPGROUP

    def allocate(self, smem: Any) -> Any:
        """Allocate a word for each consumer warp."""
        return smem.allocate_array(Int32, self.threads // _WARP)

    @cute.jit
    def clear(self, absmax: cute.Tensor, flags: cute.Tensor):
        """Clear the value in memory and set all flags, by the spare warp: in the first CTA."""
        lane, (cta, ctas) = cute.arch.lane_idx(), _cta_of_grid()
        if cta == 0:
            if lane == 0:
                absmax[0] = Int32(0)
            cute.arch.sync_warp()
            cute.arch.fence_acq_rel_gpu()
            for other in cutlass.range(1 + lane, ctas, _WARP, unroll=1):
                cute.arch.inline_ptx(
                    "st.relaxed.gpu.global.b64 [{$r0}], {$r1};", read_only_args=[_flag(flags, other), Int64(READY)]
                )

    @cute.jit
    def add_warp(self, maxima, largest: cute.Tensor):
        """Leave a consumer warp's maximum for the spare warp, of each thread's register."""
        of_warp = cute.arch.warp_redux_sync(largest[0].bitcast(Int32), "max")
        if cute.arch.lane_idx() == 0:
            maxima[cute.arch.warp_idx() - 4] = of_warp
        cute.arch.barrier_arrive(barrier_id=self.barrier_id, number_of_threads=self.threads + _WARP)

    @cute.jit
    def finish(self, maxima, absmax: cute.Tensor, flags):
        """Raise the value in memory to the largest of the CTA's maxima, by the spare warp."""
        lane, (cta, _) = cute.arch.lane_idx(), _cta_of_grid()
        if cutlass.const_expr(self.clears):
            if lane == 0:  # noqa: SIM102, values of the device
                if cta > 0:
                    _doze(_flag(flags, cta))
                    # It is set: this acquires what was written before.
                    wait_for_flag(_flag(flags, cta))
                    reset_flag(_flag(flags, cta))
            cute.arch.sync_warp()
        cute.arch.barrier(barrier_id=self.barrier_id, number_of_threads=self.threads + _WARP)
        largest = Int32(0)
        if lane < self.threads // _WARP:
            largest = maxima[lane]
        largest = cute.arch.warp_redux_sync(largest, "max")
        if lane == 0:
            cute.arch.atomic_max(absmax.iterator, largest, sem="relaxed", scope="gpu")


@cute.jit
def _doze(flag):
    """Wait until a flag is set, by seldom loads that acquire nothing: others would disturb the mainloop beside."""
    found = _load(flag)
    while found != READY:
        cute.arch.inline_ptx(f"nanosleep.u32 {_DOZE_NS};")
        found = _load(flag)


def _load(flag: Any) -> Any:
    return cute.arch.inline_ptx(
        "ld.relaxed.gpu.global.b64 {$w0}, [{$r0}];", write_only_types=[Int64], read_only_args=[flag]
    )


@cute.jit
def _cta_of_grid():
    """Return the index of this CTA among those of the grid, and how many these are."""
    column, row, _ = cute.arch.block_idx()
    columns, rows, _ = cute.arch.grid_dim()
    return row * columns + column, rows * columns


def _flag(flags: Any, cta: Any) -> Any:
    return flags.iterator.toint() + cta * FLAG_BYTES
