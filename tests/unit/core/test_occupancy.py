"""Occupancy: the figures of published analyses, and cases worked out by hand."""

import pytest

from gemmule.core.chips import A100_SXM, CHIPS, GTX_260, GTX_1050_TI, H100_SXM, RTX_4090, V100_PCIE
from gemmule.core.errors import ArgumentError
from gemmule.core.occupancy import occupancy


def test_register_tile_kernel_on_v100():
    """256 threads with 136 registers: 17 x 256 registers a warp, 3 warps a partition, 12 an SM, 1 block."""
    result = occupancy(V100_PCIE, 256, registers_per_thread=136)
    assert result.occupancy == 0.125
    assert (result.blocks, result.active_warps, result.max_warps) == (1, 8, 64)
    assert result.limited_by == ("registers",)


def test_dgemm_with_b_in_registers_on_gtx_260():
    """64 threads, 3328 registers and 2248 bytes a block: min(16, 4, 6, 8) = 4 blocks."""
    result = occupancy(GTX_260, 64, registers_per_block=3328, shared_bytes=2248)
    assert (result.blocks, result.active_warps, result.limited_by) == (4, 8, ("registers",))


def test_registers_of_a_block_are_rounded_as_a_whole_on_gtx_260():
    """3 warps count as 4: 4 x 32 x 40 = 5120 registers, 3 blocks; 3 warps alone would allow 4."""
    assert occupancy(GTX_260, 96, registers_per_thread=40).blocks == 3
    # 3276 registers are allocated as 3584.
    assert occupancy(GTX_260, 64, registers_per_block=3276).blocks == 4


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks", "limited_by"),
    [
        # 128 x 32 = 4096 a warp; 16384 / 4096 = 4 warps a partition, 16 an SM, 4 blocks of 4 warps.
        (128, 128, 0, 4, ("registers",)),
        # 168 x 32 = 5376 a warp; 3 warps a partition, 12 an SM: one block of 12 warps.
        (384, 168, 200 * 1024, 1, ("registers", "shared memory")),
        # 65 x 32 = 2080, rounded up to 2304: 7 warps a partition, 28 an SM, 3 blocks of 8.
        (256, 65, 0, 3, ("registers",)),
        (256, 64, 0, 4, ("registers",)),
        # 96 x 32 = 3072 a warp: 5 warps a partition, 20 an SM, 6 blocks of 3; undivided, 21 warps would make 7.
        (96, 96, 0, 6, ("registers",)),
        (1024, 32, 0, 2, ("warps", "registers")),
        # 57344 + 1024 reserved = 58368 bytes a block; 233472 / 58368 = 4.
        (128, 32, 56 * 1024, 4, ("shared memory",)),
        (128, 32, 56 * 1024 + 1, 3, ("shared memory",)),
        (128, 32, 227 * 1024, 1, ("shared memory",)),
        (32, 16, 0, 32, ("blocks",)),
        (64, 16, 0, 32, ("warps", "blocks")),
    ],
)
def test_h100_by_hand(threads, registers, shared, blocks, limited_by):
    result = occupancy(H100_SXM, threads, registers_per_thread=registers, shared_bytes=shared)
    assert (result.blocks, result.limited_by) == (blocks, limited_by)
    assert result.reason is None


def test_reserved_shared_memory_from_ampere_on():
    assert occupancy(V100_PCIE, 128, shared_bytes=48 * 1024).blocks == 2
    assert occupancy(A100_SXM, 128, shared_bytes=41 * 1024).blocks == 3
    assert occupancy(A100_SXM, 128, shared_bytes=40 * 1024).blocks == 4
    assert occupancy(RTX_4090, 128, shared_bytes=49 * 1024).blocks == 2


def test_registers_of_a_block_on_a_chip_that_counts_by_warp():
    assert occupancy(H100_SXM, 256, registers_per_block=256 * 64) == occupancy(H100_SXM, 256, registers_per_thread=64)


@pytest.mark.parametrize(
    ("chip", "threads", "registers", "shared", "limited_by", "reason"),
    [
        (H100_SXM, 1025, 32, 0, "threads", "1025 threads of a block are more than 1024"),
        (GTX_260, 513, 8, 0, "threads", "513 threads of a block are more than 512"),
        (H100_SXM, 128, 256, 0, "registers", "256 registers a thread are more than 255"),
        (H100_SXM, 1024, 65, 0, "registers", "73728 registers of a block, as allocated, are more than 65536"),
        (H100_SXM, 128, 32, 227 * 1024 + 1, "shared memory", "more than 232448"),
        (GTX_1050_TI, 128, 32, 48 * 1024 + 1, "shared memory", "more than 49152"),
        # 9 warps of 224 registers are checked as 12: 12 x 7168 = 86016.
        (H100_SXM, 288, 224, 0, "registers", "86016 registers of a block"),
    ],
)
def test_impossible_launch(chip, threads, registers, shared, limited_by, reason):
    result = occupancy(chip, threads, registers_per_thread=registers, shared_bytes=shared)
    assert (result.blocks, result.active_warps, result.occupancy) == (0, 0, 0.0)
    assert result.limited_by == (limited_by,)
    assert reason in result.reason


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threads": 0}, "threads=0"),
        ({"threads": -1}, "threads=-1"),
        ({"threads": 32, "registers_per_thread": -1}, "registers_per_thread=-1 is negative"),
        ({"threads": 32, "registers_per_block": -1}, "registers_per_block=-1 is negative"),
        ({"threads": 32, "shared_bytes": -1}, "shared_bytes=-1 is negative"),
        ({"threads": 32, "registers_per_thread": 1, "registers_per_block": 32}, "give one of them"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        occupancy(H100_SXM, **arguments)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_never_more_than_the_chip_holds(chip):
    for threads in range(1, chip.sm.threads_per_block + 1, 31):
        for registers in (0, 1, 17, 40, 96, 128):
            result = occupancy(chip, threads, registers_per_thread=registers, shared_bytes=1000)
            assert 0 <= result.occupancy <= 1
            assert result.limited_by
            assert result.blocks * threads * registers <= chip.sm.registers
            assert result.blocks * 1000 <= chip.sm.shared_bytes
            assert (result.blocks == 0) == (result.reason is not None)
