"""What is known of a chip: the limits of its multiprocessors, its peaks, its memory and its link to the host."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Multiprocessor:
    """What one streaming multiprocessor (SM) holds, and in which portions it is given out.

    Attributes
    ----------
    threads, warps, blocks : int
        Most threads, warps and blocks that an SM holds at a time.
    threads_per_block : int
        Most threads of a block.
    registers, registers_per_block : int
        32-bit registers of an SM, and the most that a block may have.
    registers_per_thread : int
        Most registers of a thread.
    register_unit : int
        Registers are given out in multiples of this.
    registers_by_block : bool
        Whether the multiple is taken for a block (compute capability 1.x) or for each warp (all later ones).
    warp_unit : int
        A block's warps are rounded up to a multiple of this when its registers are counted: for the allocation on
        compute capability 1.x, for the check of the limit of a block on later ones.
    partitions : int
        Parts of an SM that own an equal share of the registers each.
    shared_bytes, shared_bytes_per_block : int
        Bytes of shared memory of an SM, and the most that a block may ask for (where necessary by opting in).
    shared_unit : int
        Shared memory is given out in multiples of this, in bytes.
    shared_reserved : int
        Bytes of shared memory that the driver takes for itself in each block.
    shared_bytes_per_clock : int
        Bytes that shared memory delivers to an SM in one clock.
    sources : tuple of str
        Where the figures are from.
    """

    threads: int
    warps: int
    blocks: int
    threads_per_block: int
    registers: int
    registers_per_block: int
    registers_per_thread: int
    register_unit: int
    registers_by_block: bool
    warp_unit: int
    partitions: int
    shared_bytes: int
    shared_bytes_per_block: int
    shared_unit: int
    shared_reserved: int
    shared_bytes_per_clock: int
    sources: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class PeakRates:
    """Peak rates of a chip's units in operations a second; None where the chip has no such unit.

    Attributes
    ----------
    fp64, fp32 : float, optional
        Scalar units, FLOP/s.
    fp64_tensor, tf32_tensor, fp16_tensor, bf16_tensor, fp8_tensor : float, optional
        Tensor cores, FLOP/s, with sums in fp64 for fp64 and in fp32 for all others.
    int8_tensor : float, optional
        Tensor cores, integer operations a second, with sums in int32.
    """

    fp64: float | None = None
    fp64_tensor: float | None = None
    fp32: float | None = None
    tf32_tensor: float | None = None
    fp16_tensor: float | None = None
    bf16_tensor: float | None = None
    fp8_tensor: float | None = None
    int8_tensor: float | None = None


@dataclasses.dataclass(frozen=True)
class Chip:
    """A GPU product.

    Attributes
    ----------
    name : str
        Short name.
    aliases : tuple of str
        Other names, the driver's among them.
    capability : tuple of int
        Compute capability, (major, minor).
    sms : int
        Number of SMs.
    sm : Multiprocessor
        Limits of one SM.
    boost_hz : float, optional
        Boost clock in Hz that the scalar peaks are stated at.
    tensor_hz : float, optional
        Clock in Hz that the peaks of the tensor cores are stated at, except fp64, which follows `boost_hz`.
    peaks : PeakRates
        Peak rates of the units.
    memory_bandwidth : float
        Bytes a second between the chip and its memory.
    memory_bytes : int
        Nominal size of the memory in bytes; drivers report a little less.
    l2_bytes : int, optional
        Size of the L2 cache in bytes.
    host_link : str
        Link to the host.
    host_bandwidth : float
        Bytes a second over that link in one direction, the vendor's round figure.
    sources : tuple of str
        Where the figures are from.
    l2_partitions : int
        Parts of the L2 cache. A multiprocessor asks the part that it is beside, which keeps a copy of what it gets from
        another.
    """

    name: str
    aliases: tuple[str, ...]
    capability: tuple[int, int]
    sms: int
    sm: Multiprocessor
    boost_hz: float | None
    tensor_hz: float | None
    peaks: PeakRates
    memory_bandwidth: float
    memory_bytes: int
    l2_bytes: int | None
    host_link: str
    host_bandwidth: float
    sources: tuple[str, ...]
    l2_partitions: int = 1
