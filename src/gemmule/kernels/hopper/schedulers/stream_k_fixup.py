"""Sums that a CTA leaves in global memory for the CTA that finishes their tile: put there, announced, and added up.

A warpgroup's sums are written by all its threads; then one of them sets a flag, which publishes what all have written
to the whole GPU (release). Who needs them lets one thread wait for the flag (acquire) and then reads. Flags are zero
when a launch begins, and each is set once.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import cutlass
from cutlass import Int32, cute

#: Threads of a warpgroup, and bytes that one of them moves at once.
_THREADS, _BYTES = 128, 16


@dataclasses.dataclass(frozen=True)
class LeftSums:
    """Where the sums of CTAs are left.

    Attributes
    ----------
    parts : int
        Warpgroups that share a tile: each leaves its own sums and sets its own flag.
    """

    parts: int

    @cute.jit
    def leave(self, memory, sums: cute.Tensor, slot, part, barrier):
        """Write a warpgroup's sums into the slot of its CTA, and set the flag.

        Parameters
        ----------
        memory : tuple of Tensor
            Slots of sums, one for each CTA, and their flags.
        sums : Tensor
            This thread's registers, flat, as wgmma leaves them.
        slot, part : Int32
            The CTA's number, and the warpgroup's among those that share a tile.
        barrier : Int32
            The warpgroup's named barrier.
        """
        slots, flags = memory
        address = self.address(slots, sums, slot, part)
        for quad in cutlass.range_constexpr(cute.size(sums) // 4):
            cute.arch.inline_ptx(
                "st.global.v4.b32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
                read_only_args=[address + quad * _THREADS * _BYTES, *(sums[4 * quad + v] for v in range(4))],
            )
        cute.arch.barrier(barrier_id=barrier, number_of_threads=_THREADS)
        tid, _, _ = cute.arch.thread_idx()
        if tid % _THREADS == 0:
            cute.arch.inline_ptx(
                "st.release.gpu.global.b32 [{$r0}], {$r1};",
                read_only_args=[self.flag(flags, slot, part), Int32(1)],
            )

    @cute.jit
    def add(self, memory, sums: cute.Tensor, first, step, last, part, barrier):
        """Add to a warpgroup's sums those of the slots from `first` on, every `step`-th before `last`, in this order.

        Parameters
        ----------
        first, step, last : Int32
            The slots.
        memory, sums, part, barrier
            As of `leave`.
        """
        slots, flags = memory
        tid, _, _ = cute.arch.thread_idx()
        for slot in cutlass.range(first, last, step):
            if tid % _THREADS == 0:
                there = self.flag_at(self.flag(flags, slot, part))
                while there == 0:
                    there = self.flag_at(self.flag(flags, slot, part))
            # The others of its warp have been ahead of it.
            cute.arch.sync_warp()
            cute.arch.barrier(barrier_id=barrier, number_of_threads=_THREADS)
            address = self.address(slots, sums, slot, part)
            for quad in cutlass.range_constexpr(cute.size(sums) // 4):
                left = cute.arch.inline_ptx(
                    "ld.global.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
                    write_only_types=[sums.element_type] * 4,
                    read_only_args=[address + quad * _THREADS * _BYTES],
                )
                for v in cutlass.range_constexpr(4):
                    sums[4 * quad + v] = sums[4 * quad + v] + left[v]

    def address(self, slots: Any, sums: Any, slot: Any, part: Any) -> Any:
        """Return where a thread's first four sums lie in a slot: those of all threads side by side."""
        tid, _, _ = cute.arch.thread_idx()
        quads = cute.size(sums) // 4
        return slots.iterator.toint() + ((slot * self.parts + part) * (quads * _THREADS) + tid % _THREADS) * _BYTES

    def flag(self, flags: Any, slot: Any, part: Any) -> Any:
        """Return the address of a flag."""
        return flags.iterator.toint() + (slot * self.parts + part) * 4

    def flag_at(self, address: Any) -> Any:
        """Read a flag; where it is set, what was written before is there."""
        return cute.arch.inline_ptx(
            "ld.acquire.gpu.global.b32 {$w0}, [{$r0}];", write_only_types=[Int32], read_only_args=[address]
        )
