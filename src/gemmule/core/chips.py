"""Facts of the chips that gemmule computes with, each with its source.

A figure without a source is absent (None). Rates are the vendor's, dense; a fused multiply-add is two operations.
1 GB of nominal memory is 2**30 bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .chip import Chip, PeakRates
from .errors import ArgumentError
from .multiprocessors import SM_13, SM_61, SM_70, SM_80, SM_89, SM_90, SM_100
from .name_suggestions import did_you_mean, similar_names

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB
_GB = 1e9
_TERA = 1e12

V100_SXM2 = Chip(
    name="V100 SXM2 32 GB",
    aliases=("V100", "V100 SXM2", "Tesla V100-SXM2-32GB"),
    capability=(7, 0),
    sms=80,
    sm=SM_70,
    boost_hz=1530e6,
    tensor_hz=1530e6,
    peaks=PeakRates(fp64=7.8 * _TERA, fp32=15.7 * _TERA, fp16_tensor=125 * _TERA),
    memory_bandwidth=900 * _GB,
    memory_bytes=32 * _GIB,
    l2_bytes=6144 * _KIB,
    host_link="PCIe 3.0 x16",
    host_bandwidth=16 * _GB,
    sources=(
        "NVIDIA Tesla V100 GPU Architecture whitepaper WP-08608-001 v1.1, table 1: SMs, clock, peaks, L2",
        "NVIDIA V100 Tensor Core GPU datasheet, January 2020: bandwidth, memory, link",
    ),
)

V100_PCIE = dataclasses.replace(
    V100_SXM2,
    name="V100 PCIe 32 GB",
    aliases=("V100 PCIe", "Tesla V100-PCIE-32GB"),
    boost_hz=1380e6,
    tensor_hz=1380e6,
    peaks=PeakRates(fp64=7.0 * _TERA, fp32=14.0 * _TERA, fp16_tensor=112 * _TERA),
    sources=(
        "NVIDIA V100 Tensor Core GPU datasheet, January 2020: peaks, bandwidth, memory, link; texts that measure this "
        "card against 15.7 TFLOP/s use the SXM2 figure",
        "NVIDIA Tesla V100 PCIe product brief PB-08744-001: clock",
        "NVIDIA Tesla V100 GPU Architecture whitepaper WP-08608-001 v1.1: SMs, L2",
    ),
)

A100_SXM = Chip(
    name="A100 SXM 80 GB",
    aliases=("A100", "A100 SXM", "NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
    capability=(8, 0),
    sms=108,
    sm=SM_80,
    boost_hz=1410e6,
    tensor_hz=1410e6,
    peaks=PeakRates(
        fp64=9.7 * _TERA,
        fp64_tensor=19.5 * _TERA,
        fp32=19.5 * _TERA,
        int32=19.5 * _TERA,
        tf32_tensor=156 * _TERA,
        fp16_tensor=312 * _TERA,
        bf16_tensor=312 * _TERA,
        int8_tensor=624 * _TERA,
    ),
    memory_bandwidth=2039 * _GB,
    memory_bytes=80 * _GIB,
    l2_bytes=40 * _MIB,
    host_link="PCIe 4.0 x16",
    host_bandwidth=32 * _GB,
    sources=(
        "NVIDIA A100 80GB Tensor Core GPU datasheet, June 2021: peaks, bandwidth, memory, link",
        "NVIDIA A100 Tensor Core GPU Architecture whitepaper v1.0, comparison of P100, V100 and A100: SMs, clock, L2",
        "The same, A100 L2 cache: two partitions",
    ),
    l2_partitions=2,
)

H100_SXM = Chip(
    name="H100 SXM 80 GB",
    aliases=("H100", "H100 SXM", "NVIDIA H100 80GB HBM3"),
    capability=(9, 0),
    sms=132,
    sm=SM_90,
    boost_hz=1980e6,
    tensor_hz=1830e6,
    peaks=PeakRates(
        fp64=33.5 * _TERA,
        fp64_tensor=66.9 * _TERA,
        fp32=66.9 * _TERA,
        int32=33.5 * _TERA,
        tf32_tensor=494.7 * _TERA,
        fp16_tensor=989.4 * _TERA,
        bf16_tensor=989.4 * _TERA,
        fp8_tensor=1978.9 * _TERA,
        int8_tensor=1978.9 * _TERA,
    ),
    memory_bandwidth=3350 * _GB,
    memory_bytes=80 * _GIB,
    l2_bytes=50 * _MIB,
    host_link="PCIe 5.0 x16",
    host_bandwidth=64 * _GB,
    sources=(
        "NVIDIA H100 Tensor Core GPU Architecture whitepaper v1.04, comparison of A100 and H100: SMs, clocks, peaks, "
        "L2",
        "NVIDIA H100 Tensor Core GPU datasheet: bandwidth, memory, link",
        "Two partitions of L2: measured, see docs/explain.md",
    ),
    l2_partitions=2,
)

H200_SXM = dataclasses.replace(
    H100_SXM,
    name="H200 SXM 141 GB",
    aliases=("H200", "H200 SXM", "NVIDIA H200"),
    peaks=PeakRates(
        fp64=34 * _TERA,
        fp64_tensor=67 * _TERA,
        fp32=67 * _TERA,
        int32=33.5 * _TERA,
        tf32_tensor=989 / 2 * _TERA,
        fp16_tensor=1979 / 2 * _TERA,
        bf16_tensor=1979 / 2 * _TERA,
        fp8_tensor=3958 / 2 * _TERA,
        int8_tensor=3958 / 2 * _TERA,
    ),
    memory_bandwidth=4800 * _GB,
    memory_bytes=141 * _GIB,
    l2_bytes=None,
    sources=(
        "NVIDIA H200 Tensor Core GPU datasheet: peaks (tensor figures halved, as they are stated with sparsity), "
        "bandwidth, memory, link",
        "SMs, clocks and int32 peak: those of the H100 SXM, the same GH100 GPU",
    ),
)

B200 = Chip(
    name="B200",
    aliases=("HGX B200", "NVIDIA B200"),
    capability=(10, 0),
    sms=148,
    sm=SM_100,
    boost_hz=None,
    tensor_hz=None,
    peaks=PeakRates(
        fp64=37 * _TERA,
        fp64_tensor=37 * _TERA,
        fp32=75 * _TERA,
        tf32_tensor=2200 / 2 * _TERA,
        fp16_tensor=4500 / 2 * _TERA,
        bf16_tensor=4500 / 2 * _TERA,
        fp8_tensor=9000 / 2 * _TERA,
        int8_tensor=9000 / 2 * _TERA,
    ),
    memory_bandwidth=7700 * _GB,
    memory_bytes=180 * _GIB,
    l2_bytes=int(126.5 * _MIB),
    host_link="PCIe 5.0 x16",
    host_bandwidth=64 * _GB,
    sources=(
        "NVIDIA Blackwell datasheet, GB200 NVL72 and HGX B200, specifications of an individual HGX B200 GPU: peaks "
        "(tensor figures below fp64 halved, as they are stated with sparsity), bandwidth, memory, link",
        "the driver's report of an NVIDIA B200, printed in github.com/pytorch/ao pull request 4002: SMs, L2",
    ),
)

RTX_4090 = Chip(
    name="RTX 4090",
    aliases=("GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
    capability=(8, 9),
    sms=128,
    sm=SM_89,
    boost_hz=2520e6,
    tensor_hz=2520e6,
    peaks=PeakRates(
        fp64=82.6 / 64 * _TERA,
        fp32=82.6 * _TERA,
        int32=41.3 * _TERA,
        tf32_tensor=82.6 * _TERA,
        fp16_tensor=165.2 * _TERA,
        bf16_tensor=165.2 * _TERA,
        fp8_tensor=330.3 * _TERA,
        int8_tensor=660.6 * _TERA,
    ),
    memory_bandwidth=1008 * _GB,
    memory_bytes=24 * _GIB,
    l2_bytes=72 * _MIB,
    host_link="PCIe 4.0 x16",
    host_bandwidth=32 * _GB,
    sources=(
        "NVIDIA Ada GPU Architecture whitepaper v2.1, comparison of RTX 4090 with its predecessors: SMs, clock, peaks "
        "with fp32 accumulation, fp64 as 1/64 of fp32, bandwidth, memory, L2, link",
    ),
)

GTX_1050_TI = Chip(
    name="GTX 1050 Ti",
    aliases=("GeForce GTX 1050 Ti", "NVIDIA GeForce GTX 1050 Ti"),
    capability=(6, 1),
    sms=6,
    sm=SM_61,
    boost_hz=1392e6,
    tensor_hz=None,
    peaks=PeakRates(fp64=6 * 4 * 2 * 1392e6, fp32=6 * 128 * 2 * 1392e6),
    memory_bandwidth=112 * _GB,
    memory_bytes=4 * _GIB,
    l2_bytes=1 * _MIB,
    host_link="PCIe 3.0 x16",
    host_bandwidth=16 * _GB,
    sources=(
        "NVIDIA GeForce GTX 1050 Ti product page: 768 cores, clock, bandwidth, memory, link",
        "NVIDIA CUDA C++ Programming Guide, arithmetic throughput: 128 fp32 and 4 fp64 units an SM; peaks are SMs x "
        "units x 2 x clock",
        "TechPowerUp, review of the MSI GTX 1050 Ti Gaming X, architecture: SMs, L2",
    ),
)

GTX_260 = Chip(
    name="GTX 260",
    aliases=("GTX 260 Core 216", "GeForce GTX 260"),
    capability=(1, 3),
    sms=27,
    sm=SM_13,
    boost_hz=1242e6,
    tensor_hz=None,
    peaks=PeakRates(fp64=67.068e9, fp32=27 * 8 * 2 * 1242e6),
    memory_bandwidth=111.9 * _GB,
    memory_bytes=896 * _MIB,
    l2_bytes=None,
    host_link="PCIe 2.0 x16",
    host_bandwidth=8 * _GB,
    sources=(
        "Liang, Ren, Guo, Liu: Design and Implementation of Matrix Multiplication on GPU, 2010, section 5: fp64 peak, "
        "which is that of the version with 27 SMs (one fp64 unit each)",
        "TechPowerUp GPU database, GeForce GTX 260: shader clock, bandwidth, memory, link",
        "fp32 peak: SMs x 8 multiply-adds x 2 x clock; the vendor's 805 GFLOP/s counts an extra multiplication",
    ),
)

#: Every chip in the table, newest first.
CHIPS = (B200, H200_SXM, H100_SXM, RTX_4090, A100_SXM, V100_SXM2, V100_PCIE, GTX_1050_TI, GTX_260)

_BY_NAME = {alias.casefold(): chip for chip in CHIPS for alias in (chip.name, *chip.aliases)}


def _letters(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


_BY_LETTERS = {_letters(name): chip for name, chip in _BY_NAME.items()}


def chip_named(name: str, suggested: Sequence[Chip] = CHIPS) -> Chip:
    """Return the chip of a short name or the driver's, whatever its case, spaces and hyphens.

    The error for an unknown name suggests some chips.

    Raises
    ------
    ArgumentError
        If the table has no such chip.
    """
    found = _BY_LETTERS.get(_letters(name))
    if found is not None:
        return found
    wanted = " ".join(name.split()).casefold()
    known = [alias for alias, chip in _BY_NAME.items() if chip in suggested]
    near = dict.fromkeys(_BY_NAME[match].name for match in similar_names(wanted, known))
    listed = f"choose one of {', '.join(chip.name for chip in suggested)}"
    remedy = f"{did_you_mean([*near])} Else {listed}" if near else listed
    raise ArgumentError(f"chip {name!r} is not in the table; {remedy}")
