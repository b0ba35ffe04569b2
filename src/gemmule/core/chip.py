"""Facts of a chip: limits of its SMs, peaks, memory and host link."""

from __future__ import annotations

from gemmule.core.dataclass import dataclass


@dataclass(frozen=True)
class Multiprocessor:
    """Limits and allocation units of a streaming multiprocessor (SM)."""

    #: threads, warps, blocks: Most resident threads, warps and blocks.
    threads: int
    warps: int
    blocks: int
    threads_per_block: int  #: Most threads of a block.
    #: registers, registers_per_block: 32-bit registers of an SM, and most of a block.
    registers: int
    registers_per_block: int
    registers_per_thread: int  #: Most registers of a thread.
    register_unit: int  #: Allocation unit of registers.
    #: Whether registers are allocated by block (compute capability 1.x) or by warp (later ones).
    registers_by_block: bool
    #: Multiple to which a block's warps are rounded up: in the allocation of registers on compute capability 1.x, in
    #: the check of a block's limit on later ones.
    warp_unit: int
    partitions: int  #: Partitions of an SM, each with an equal share of the registers.
    #: shared_bytes, shared_bytes_per_block: Bytes of shared memory of an SM, and most of a block (with opt-in).
    shared_bytes: int
    shared_bytes_per_block: int
    shared_unit: int  #: Allocation unit of shared memory in bytes.
    shared_reserved: int  #: Bytes of shared memory that the driver reserves in each block.
    shared_bytes_per_clock: int  #: Bandwidth of an SM's shared memory in bytes a cycle.
    sources: tuple[str, ...]  #: Sources of the figures.


@dataclass(frozen=True)
class PeakRates:
    """Peak rates of a chip's units in operations a second; None where the chip has no such unit.

    Attributes
    ----------
    fp64, fp32 : float, optional
        Scalar units, FLOP/s.
    int32 : float, optional
        Scalar units, multiply-adds of 32-bit integers, two operations each.
    fp64_tensor, tf32_tensor, fp16_tensor, bf16_tensor, fp8_tensor : float, optional
        Tensor cores, FLOP/s, accumulating in fp64 for fp64 and in fp32 for all others.
    int8_tensor : float, optional
        Tensor cores, integer operations a second, accumulating in int32.
    """

    fp64: float | None = None
    fp64_tensor: float | None = None
    fp32: float | None = None
    int32: float | None = None
    tf32_tensor: float | None = None
    fp16_tensor: float | None = None
    bf16_tensor: float | None = None
    fp8_tensor: float | None = None
    int8_tensor: float | None = None


@dataclass(frozen=True)
class Chip:
    """A GPU product."""

    name: str  #: Short name.
    aliases: tuple[str, ...]  #: Other names, the driver's among them.
    capability: tuple[int, int]  #: Compute capability, (major, minor).
    sms: int  #: Number of SMs.
    sm: Multiprocessor  #: Limits of one SM.
    boost_hz: float | None  #: Boost clock in Hz, at which the scalar peaks and that of fp64 are stated.
    tensor_hz: float | None  #: Clock in Hz at which the other peaks of the tensor cores are stated.
    peaks: PeakRates  #: Peak rates of the units.
    memory_bandwidth: float  #: Bytes a second between the chip and its memory.
    memory_bytes: int  #: Nominal size of the memory in bytes; drivers report a little less.
    l2_bytes: int | None  #: Size of the L2 cache in bytes.
    host_link: str  #: Link to the host.
    host_bandwidth: float  #: Bytes a second over that link in one direction, the vendor's round figure.
    sources: tuple[str, ...]  #: Sources of the figures.
    #: Partitions of the L2 cache. An SM reads through the near one, which caches lines of the other.
    l2_partitions: int = 1

    @property
    def driver_name(self) -> str:
        """Name in the driver, where it is known, else the short name."""
        return next((alias for alias in self.aliases if alias.startswith("NVIDIA ")), self.name)
