"""The layout of Hopper's epilogue tiles refuses stages that a TMA store may still read when they are used again."""

from __future__ import annotations

import pytest

from gemmule.core.errors import ArgumentError

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

import cutlass

from gemmule.kernels.hopper.epilogues.epi_tile_layout import EpiTileLayout


@pytest.mark.parametrize(("mma_tiles_m", "epi_tiles_n", "epi_stages"), [(1, 3, 2), (2, 2, 3), (1, 1, 2)])
def test_stages_divide_the_epilogue_tiles_of_a_tile(mma_tiles_m, epi_tiles_n, epi_stages):
    with pytest.raises(
        ArgumentError, match=f"{epi_stages} epilogue stages must divide the {mma_tiles_m * epi_tiles_n}"
    ):
        EpiTileLayout(cutlass.Float16, (64, 64), mma_tiles_m, epi_tiles_n, 1, epi_stages)
    assert EpiTileLayout(cutlass.Float16, (64, 64), mma_tiles_m, epi_tiles_n * epi_stages, 1, epi_stages)


def test_batches_of_epilogue_tiles_differ_by_one_and_end_in_the_last_buffer():
    layout = EpiTileLayout(cutlass.Float16, (64, 8), 2, 13, 1, epi_stages=14, num_batches=4)
    assert [len(batch) for batch in layout.batches] == [6, 7, 6, 7]
    assert [n for batch in layout.batches for n in batch] == list(range(26))
    assert (layout.batch_stages, layout.num_buffers) == (7, 2)
    for stages, batches in ((14, 5), (6, 4)):
        with pytest.raises(ArgumentError, match=f"{stages} epilogue stages must divide"):
            EpiTileLayout(cutlass.Float16, (64, 8), 2, 13, 1, epi_stages=stages, num_batches=batches)


def test_batches_that_shared_memory_holds_have_barriers_of_their_own():
    layout = EpiTileLayout(cutlass.Float16, (64, 64), 2, 5, 1, epi_stages=10, num_batches=4)
    assert [len(batch) for batch in layout.batches] == [2, 3, 2, 3]
    assert layout.holds_all
    assert layout.written_barriers == 4
    # Two buffers: each batch waits for the stores of the last but one.
    assert EpiTileLayout(cutlass.Float16, (64, 64), 2, 5, 1, epi_stages=2).written_barriers == 1
    ring = {"reads_c": True, "loads_c_ahead": True}
    for batches, barriers in ((4, 4), (5, 0)):
        layout = EpiTileLayout(cutlass.Float16, (64, 64), 2, 5, 1, epi_stages=6, num_batches=batches, **ring)
        assert layout.written_barriers == barriers
