"""Occupancy: resident blocks of a kernel on an SM, and the limiting resource.

The rules are those of NVIDIA's ``cuda_occupancy.h`` (CUDA Toolkit 13.5) and, for compute capability 1.x, of NVIDIA's
CUDA Occupancy Calculator, with the largest shared memory configuration.
"""

from __future__ import annotations

from gemmule.core.dataclass import dataclass

from .chip import Chip, Multiprocessor
from .errors import ArgumentError

WARP = 32


@dataclass(frozen=True)
class Occupancy:
    """Occupancy of an SM."""

    blocks: int  #: Resident blocks of an SM; 0 if the kernel cannot be launched.
    #: active_warps, max_warps: Resident warps, and the most of an SM.
    active_warps: int
    max_warps: int
    #: Limiting resources: ``registers``, ``shared memory``, ``threads``, ``blocks`` or ``warps``.
    limited_by: tuple[str, ...]
    reason: str | None = None  #: Why the kernel cannot be launched, if it cannot.

    @property
    def occupancy(self) -> float:
        """Active warps over most warps, 0 to 1."""
        return self.active_warps / self.max_warps


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _registers_of_warp(sm: Multiprocessor, warps: int, per_thread: int | None, per_block: int | None) -> int:
    if per_thread is not None:
        return _round_up(per_thread * WARP, sm.register_unit)
    return _round_up(-(-(per_block or 0) // warps), sm.register_unit)


def _blocks_by_registers(
    sm: Multiprocessor, warps: int, per_thread: int | None, per_block: int | None
) -> tuple[int | None, str | None]:
    """Return the blocks that registers allow (None: any number), and the reason if there are none."""
    if not (per_thread or per_block):
        return None, None
    if per_thread is not None and per_thread > sm.registers_per_thread:
        return 0, f"{per_thread} registers a thread are more than {sm.registers_per_thread}"
    if sm.registers_by_block:
        requested = per_block if per_block is not None else _round_up(warps, sm.warp_unit) * WARP * (per_thread or 0)
        needed = _round_up(requested, sm.register_unit)
        allowed = sm.registers // needed
    else:
        of_warp = _registers_of_warp(sm, warps, per_thread, per_block)
        needed = of_warp * _round_up(warps, sm.warp_unit)
        allowed = sm.registers // sm.partitions // of_warp * sm.partitions // warps
    if needed > sm.registers_per_block:
        return 0, f"{needed} registers of a block, as allocated, are more than {sm.registers_per_block}"
    return allowed, None


def occupancy(
    chip: Chip,
    threads: int,
    registers_per_thread: int | None = None,
    registers_per_block: int | None = None,
    shared_bytes: int = 0,
) -> Occupancy:
    """Return the occupancy of a kernel on a chip.

    Parameters
    ----------
    threads : int
        Threads of a block.
    registers_per_thread : int, optional
        32-bit registers of a thread, as the compiler reports them.
    registers_per_block : int, optional
        32-bit registers of a block, instead of those of a thread. Without both, registers do not limit.
    shared_bytes : int
        Shared memory of a block in bytes, static and dynamic, without the driver's reserve.

    Returns
    -------
    Occupancy
        With 0 blocks and a reason if the kernel cannot be launched.

    Raises
    ------
    ArgumentError
        If a number is negative, there are no threads, or both numbers of registers are given.
    """
    if threads < 1:
        raise ArgumentError(f"threads={threads}: a block has at least one thread")
    for name, value in (
        ("registers_per_thread", registers_per_thread),
        ("registers_per_block", registers_per_block),
        ("shared_bytes", shared_bytes),
    ):
        if value is not None and value < 0:
            raise ArgumentError(f"{name}={value} is negative")
    if registers_per_thread is not None and registers_per_block is not None:
        raise ArgumentError("registers_per_thread and registers_per_block are both given; give one of them")

    sm = chip.sm
    warps = -(-threads // WARP)
    by_registers, reason = _blocks_by_registers(sm, warps, registers_per_thread, registers_per_block)
    resource = "registers"
    if threads > sm.threads_per_block:
        resource, reason = "threads", f"{threads} threads of a block are more than {sm.threads_per_block}"
    elif shared_bytes > sm.shared_bytes_per_block:
        resource = "shared memory"
        reason = f"{shared_bytes} bytes of shared memory of a block are more than {sm.shared_bytes_per_block}"
    if reason is not None:
        return Occupancy(0, 0, sm.warps, (resource,), reason)

    limits = {"warps": sm.warps // warps, "blocks": sm.blocks}
    if by_registers is not None:
        limits["registers"] = by_registers
    allocated = _round_up(shared_bytes + sm.shared_reserved, sm.shared_unit)
    if allocated:
        limits["shared memory"] = sm.shared_bytes // allocated
    blocks = min(limits.values())
    reached = tuple(name for name, limit in limits.items() if limit == blocks)
    return Occupancy(blocks, blocks * warps, sm.warps, reached)
