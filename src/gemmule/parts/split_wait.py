"""A wait of all warps of a CTA for each other in two halves: a warp says that it is there, goes on, and waits later.

Warps then need not be at the same place at the same time: those that are early have work until the last one is there.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, cute


@cute.jit
def prepare_wait(barrier: cute.Pointer, warps: cutlass.Constexpr[int]):
    """Make a barrier for that many warps, by one thread; all must meet before it is used."""
    tid, _, _ = cute.arch.thread_idx()
    if tid == 0:
        cute.arch.mbarrier_init(barrier, warps)


@cute.jit
def say_there(barrier: cute.Pointer):
    """Say that this warp is there, and what it did before."""
    tid, _, _ = cute.arch.thread_idx()
    cute.arch.sync_warp()
    if tid % 32 == 0:
        cute.arch.inline_ptx(
            "{ .reg .b64 phase; mbarrier.arrive.shared.b64 phase, [{$r0}]; }", read_only_args=[barrier.toint()]
        )


@cute.jit
def await_all(barrier: cute.Pointer, turn):
    """Wait until all warps were there for this turn, of 0, 1, 2 and so on."""
    cute.arch.inline_ptx(
        "{ .reg .pred there; AGAIN: mbarrier.test_wait.parity.shared.b64 there, [{$r0}], {$r1}; @!there bra AGAIN; }",
        read_only_args=[barrier.toint(), Int32(turn % 2)],
    )
