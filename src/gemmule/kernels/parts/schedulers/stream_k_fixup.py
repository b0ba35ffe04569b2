"""Stream-K fix-up: partial sums that a CTA writes to global memory for the CTA that owns their tile.

All threads of a warpgroup write its partials; then one of them sets a flag, which publishes them to the whole GPU
(release). In the owner one thread waits for the flag (acquire) before the warpgroup reads, and resets it. Each flag is
set once a launch, and one thread waits for it; `stream_k_workspaces` says why memory that nobody cleared will do.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int64, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.hopper_facts import WARPGROUP

from .persistent import PersistentScheduler
from .stream_k_workspaces import FLAG_BYTES, READY

#: Bytes that a thread moves at once; and most peers whose loads `add_all` issues together, and partials of theirs.
_BYTES, _TOGETHER, _HELD = 16, 8, 64


@dataclass(frozen=True)
class StreamKPartials:
    """Partial sums and flags in the workspaces."""

    warpgroups: int  #: Warpgroups that share a tile: each writes its own partials and sets its own flag.

    @cute.jit
    def write(self, workspaces, accumulators: cute.Tensor, cta, warpgroup_idx, barrier):
        """Write a warpgroup's partials to its CTA's part of the workspace, and set the flag.

        Parameters
        ----------
        workspaces : tuple of Tensor
            Partials of each CTA, and their flags.
        accumulators : Tensor
            This thread's accumulators, flat, of 32 or 64 bits.
        cta, warpgroup_idx : Int32
            The CTA's index in the grid, and the warpgroup's among those that share a tile.
        barrier : Int32
            The warpgroup's named barrier.
        """
        partials, flags = workspaces
        address = self.address(partials, accumulators, cta, warpgroup_idx)
        length, kind = _vector(accumulators)
        words = cutlass.const_expr(", ".join(f"{{$r{1 + v}}}" for v in range(length)))
        for vector in cutlass.range_constexpr(cute.size(accumulators) // length):
            cute.arch.inline_ptx(
                f"st.global.{kind} [{{$r0}}], {{{words}}};",
                read_only_args=[
                    address + vector * WARPGROUP * _BYTES,
                    *(accumulators[length * vector + v] for v in range(length)),
                ],
            )
        cute.arch.barrier(barrier_id=barrier, number_of_threads=WARPGROUP)
        tid, _, _ = cute.arch.thread_idx()
        if tid % WARPGROUP == 0:
            cute.arch.inline_ptx(
                "st.release.gpu.global.b64 [{$r0}], {$r1};",
                read_only_args=[self.flag(flags, cta, warpgroup_idx), Int64(READY)],
            )

    @cute.jit
    def add(self, workspaces, accumulators: cute.Tensor, peers, warpgroup_idx, barrier):
        """Add to a warpgroup's accumulators the partials of its peers.

        Parameters
        ----------
        peers : WorkRange
            The CTAs that wrote them: first, stride and end.
        workspaces, accumulators, warpgroup_idx, barrier
            As of `write`.
        """
        partials, flags = workspaces
        first, stride, end = peers
        self.wait_for_all(flags, peers, warpgroup_idx, barrier)
        for cta in cutlass.range(first, end, stride):
            length, address = _vector(accumulators)[0], self.address(partials, accumulators, cta, warpgroup_idx)
            for vector in cutlass.range_constexpr(cute.size(accumulators) // length):
                partial = _load(address, vector, accumulators)
                for v in cutlass.range_constexpr(length):
                    at = cutlass.const_expr(length * vector + v)
                    accumulators[at] = accumulators[at] + partial[v]

    @cute.jit
    def add_all(self, workspaces, accumulators: cute.Tensor, peers, warpgroup_idx, barrier):
        """As `add`, for many peers: loads of several are in flight."""
        partials, flags = workspaces
        first, stride, end = peers
        self.wait_for_all(flags, peers, warpgroup_idx, barrier)
        size, length = cutlass.const_expr((cute.size(accumulators), _vector(accumulators)[0]))
        together = cutlass.const_expr(max(min(_HELD // size, _TOGETHER), 1))
        for cta in cutlass.range(first, end, stride * together, unroll=1):
            loaded = cute.make_rmem_tensor(cute.make_layout((size, together)), accumulators.element_type)
            for peer in cutlass.range_constexpr(together):
                # Those after the last one are the last one again, and not added.
                one = cutlass.min(cta + peer * stride, end - stride)
                address = self.address(partials, accumulators, one, warpgroup_idx)
                for vector in cutlass.range_constexpr(size // length):
                    partial = _load(address, vector, accumulators)
                    for v in cutlass.range_constexpr(length):
                        loaded[length * vector + v, peer] = partial[v]
            for peer in cutlass.range_constexpr(together):
                for vector in cutlass.range_constexpr(size // length):
                    for v in cutlass.range_constexpr(length):
                        at = cutlass.const_expr(length * vector + v)
                        total = accumulators[at] + loaded[at, peer]
                        accumulators[at] = total if cta + peer * stride < end else accumulators[at]

    @cute.jit
    def wait_for_all(self, flags: cute.Tensor, peers, warpgroup_idx, barrier):
        """Wait for a warpgroup's flags of all peers, each thread for another one's, so that their latencies overlap."""
        tid, _, _ = cute.arch.thread_idx()
        first, stride, end = peers
        for cta in cutlass.range(first + tid % WARPGROUP * stride, end, stride * WARPGROUP, unroll=1):
            self.wait_for(flags, cta, warpgroup_idx)
        # Reconverge the warps of the waiting threads.
        cute.arch.sync_warp()
        cute.arch.barrier(barrier_id=barrier, number_of_threads=WARPGROUP)

    @cute.jit
    def wait_for(self, flags: cute.Tensor, cta, warpgroup_idx):
        """Wait for a warpgroup's flag, and reset it."""
        flag = self.flag(flags, cta, warpgroup_idx)
        wait_for_flag(flag)
        reset_flag(flag)

    def address(self, partials: Any, accumulators: Any, cta: Any, warpgroup_idx: Any) -> Any:
        """Return the address of a thread's first vector of a CTA's partials: those of all threads are contiguous."""
        tid, _, _ = cute.arch.thread_idx()
        vectors = cute.size(accumulators) // _vector(accumulators)[0]
        first = (cta * self.warpgroups + warpgroup_idx) * (vectors * WARPGROUP)
        return partials.iterator.toint() + (first + tid % WARPGROUP) * _BYTES

    def flag(self, flags: Any, cta: Any, warpgroup_idx: Any) -> Any:
        """Return the address of a flag."""
        return flags.iterator.toint() + (cta * self.warpgroups + warpgroup_idx) * FLAG_BYTES


@cute.jit
def wait_for_flag(address):
    """Wait until a flag is set, by a thread; the writes before it are visible then."""
    found = _load_flag(address)
    while found != READY:
        found = _load_flag(address)


def reset_flag(address: Any) -> None:
    """Reset a flag, by a thread."""
    cute.arch.inline_ptx("st.relaxed.gpu.global.b64 [{$r0}], {$r1};", read_only_args=[address, Int64(0)])


def _load_flag(address: Any) -> Any:
    return cute.arch.inline_ptx(
        "ld.acquire.gpu.global.b64 {$w0}, [{$r0}];", write_only_types=[Int64], read_only_args=[address]
    )


class FixupScheduler(PersistentScheduler):
    """Every cluster computes parts of tiles' K; one CTA of a tile adds the others' partial sums.

    Parameters
    ----------
    warpgroups : int
        Warpgroups that share a CTA's tile.
    shape : int
        The parameters of `PersistentScheduler`; CTAs of a cluster do not split K.
    """

    requires_fixup = True

    def __init__(self, warpgroups: int, *shape: int) -> None:
        super().__init__(*shape)
        self.partials = StreamKPartials(warpgroups)

    def warpgroup_idx(self, ctx: Any) -> Any:
        """Return the warpgroup's index among those that share a tile."""
        return ctx.warpgroup_idx if self.partials.warpgroups > 1 else 0


def _vector(accumulators: Any) -> tuple[int, str]:
    """Return the accumulators that a thread moves at once, and how PTX names such a vector."""
    length = _BYTES * 8 // accumulators.element_type.width
    return length, f"v{length}.b{accumulators.element_type.width}"


def _load(address: Any, vector: int, accumulators: Any) -> Any:
    """Load a vector of a peer's partials, whose first one is at `address`."""
    length, kind = _vector(accumulators)
    words = ", ".join(f"{{$w{v}}}" for v in range(length))
    return cute.arch.inline_ptx(
        f"ld.global.{kind} {{{words}}}, [{{$r0}}];",
        write_only_types=[accumulators.element_type] * length,
        read_only_args=[address + vector * WARPGROUP * _BYTES],
    )
