"""Limits of a multiprocessor of each compute capability, with their sources."""

from __future__ import annotations

import dataclasses

from .chip import Multiprocessor

_KIB = 1024

_OCCUPANCY_HEADER = (
    "NVIDIA CUDA Toolkit 13.5, cuda_occupancy.h: allocation units of registers and shared memory, sub-partitions, "
    "blocks of an SM",
    "NVIDIA CUDA Core Compute Libraries 3.3, cuda/__device/arch_traits.h: threads, registers, shared memory of an SM "
    "and of a block, shared memory reserved for the driver",
    "NVIDIA CUDA C++ Programming Guide, compute capabilities: 32 banks of shared memory, each 32 bits a clock",
)

#: Compute capability 1.3: registers are given out to whole blocks.
SM_13 = Multiprocessor(
    threads=1024,
    warps=32,
    blocks=8,
    threads_per_block=512,
    registers=16384,
    registers_per_block=16384,
    registers_per_thread=128,
    register_unit=512,
    registers_by_block=True,
    warp_unit=2,
    partitions=1,
    shared_bytes=16 * _KIB,
    shared_bytes_per_block=16 * _KIB,
    shared_unit=512,
    shared_reserved=0,
    shared_bytes_per_clock=32,
    sources=(
        "NVIDIA CUDA C Programming Guide 3.1, appendix G: limits, and 16 banks of shared memory, each 32 bits in two "
        "clocks",
        "NVIDIA CUDA Occupancy Calculator 2.x, GPU data of compute capability 1.3: allocation units",
    ),
)

SM_61 = Multiprocessor(
    threads=2048,
    warps=64,
    blocks=32,
    threads_per_block=1024,
    registers=65536,
    registers_per_block=65536,
    registers_per_thread=255,
    register_unit=256,
    registers_by_block=False,
    warp_unit=4,
    partitions=4,
    shared_bytes=96 * _KIB,
    shared_bytes_per_block=48 * _KIB,
    shared_unit=256,
    shared_reserved=0,
    shared_bytes_per_clock=128,
    sources=_OCCUPANCY_HEADER,
)

SM_70 = dataclasses.replace(SM_61, shared_bytes_per_block=96 * _KIB)

SM_80 = dataclasses.replace(
    SM_61, shared_bytes=164 * _KIB, shared_bytes_per_block=163 * _KIB, shared_unit=128, shared_reserved=_KIB
)

SM_89 = dataclasses.replace(
    SM_80, threads=1536, warps=48, blocks=24, shared_bytes=100 * _KIB, shared_bytes_per_block=99 * _KIB
)

SM_90 = dataclasses.replace(SM_80, shared_bytes=228 * _KIB, shared_bytes_per_block=227 * _KIB)

SM_100 = SM_90
