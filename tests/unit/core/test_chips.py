"""The table of chips: names, and figures that must agree with each other."""

import dataclasses
import math

import pytest

from gemmule.core.chips import A100_SXM, CHIPS, GTX_260, GTX_1050_TI, H100_SXM, V100_PCIE, V100_SXM2, chip_named
from gemmule.core.errors import ArgumentError


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("NVIDIA H100 80GB HBM3", H100_SXM),
        ("nvidia h100 80gb hbm3", H100_SXM),
        ("  H100  ", H100_SXM),
        ("Tesla V100-PCIE-32GB", V100_PCIE),
        ("v100", V100_SXM2),
        ("NVIDIA A100-SXM4-80GB", A100_SXM),
        ("GeForce GTX 260", GTX_260),
        ("h100-sxm", H100_SXM),
        ("gtx1050ti", GTX_1050_TI),
    ],
)
def test_name_and_alias(name, chip):
    assert chip_named(name) is chip


def test_every_alias_names_one_chip():
    names = [alias.casefold() for chip in CHIPS for alias in (chip.name, *chip.aliases)]
    assert len(names) == len(set(names))
    assert all(chip_named(alias) is chip for chip in CHIPS for alias in (chip.name, *chip.aliases))


def test_unknown_name_lists_the_near_ones():
    with pytest.raises(ArgumentError, match=r"'GTX 1050' is not in the table; did you mean GTX 1050 Ti.* Else choose"):
        chip_named("GTX 1050")


def test_quite_unknown_name_lists_all():
    with pytest.raises(ArgumentError, match=r"choose one of B200.*GTX 260"):
        chip_named("?")


# Operations of one SM in one clock, from the vendor's architecture papers.
PER_CLOCK = {
    "V100 SXM2 32 GB": {"fp64": 64, "fp32": 128, "fp16_tensor": 1024},
    "V100 PCIe 32 GB": {"fp64": 64, "fp32": 128, "fp16_tensor": 1024},
    "A100 SXM 80 GB": {"fp64": 64, "fp64_tensor": 128, "fp32": 128, "tf32_tensor": 1024, "fp16_tensor": 2048},
    "H100 SXM 80 GB": {"fp64": 128, "fp64_tensor": 256, "fp32": 256, "tf32_tensor": 2048, "fp8_tensor": 8192},
    "H200 SXM 141 GB": {"fp64": 128, "fp64_tensor": 256, "fp32": 256, "tf32_tensor": 2048, "fp8_tensor": 8192},
    "RTX 4090": {"fp64": 4, "fp32": 256, "tf32_tensor": 256, "fp16_tensor": 512, "int8_tensor": 2048},
    "GTX 1050 Ti": {"fp64": 8, "fp32": 256},
    "GTX 260": {"fp64": 2, "fp32": 16},
}


@pytest.mark.parametrize("chip", [chip for chip in CHIPS if chip.boost_hz], ids=lambda chip: chip.name)
def test_peaks_follow_from_sms_and_clock(chip):
    for unit, operations in PER_CLOCK[chip.name].items():
        clock = chip.tensor_hz if unit.endswith("_tensor") and unit != "fp64_tensor" else chip.boost_hz
        assert getattr(chip.peaks, unit) == pytest.approx(chip.sms * operations * clock, rel=0.02), unit
    if chip.peaks.int32 is not None:
        assert chip.peaks.int32 == pytest.approx(chip.sms * 64 * 2 * chip.boost_hz, rel=0.01)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_facts_are_plausible_and_sourced(chip):
    sm = chip.sm
    assert chip.sources
    assert sm.sources
    assert sm.warps * 32 == sm.threads
    assert sm.registers % (sm.partitions * sm.register_unit) == 0
    assert sm.shared_bytes_per_block + sm.shared_reserved <= sm.shared_bytes
    assert sm.shared_reserved == (1024 if chip.capability >= (8, 0) else 0)
    assert sm.partitions == (4 if chip.capability >= (6, 1) else 1)
    for value in (chip.memory_bandwidth, chip.host_bandwidth, chip.memory_bytes, *dataclasses.astuple(chip.peaks)):
        assert value is None or (value > 0 and math.isfinite(value))
    assert chip.host_bandwidth < chip.memory_bandwidth
    peaks = chip.peaks
    assert peaks.fp64 <= peaks.fp32
    assert (peaks.fp8_tensor is None) == (chip.capability < (8, 9))
    assert (peaks.bf16_tensor is None) == (peaks.tf32_tensor is None) == (chip.capability < (8, 0))
