"""Tiles of a block lower triangle are counted as they lie."""

from __future__ import annotations

import pytest

from gemmule.kernels.hopper.syrk.spec import SPEC


@pytest.mark.parametrize("m", [0, 1, 63, 64, 65, 1000, 1152, 1153, 4096, 5001])
def test_tiles_are_those_whose_first_column_is_no_later_than_their_last_row(m):
    for config in SPEC.configs:
        rows, cols = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
        starts = range(0, m, cols)
        lower = sum(sum(col < min(row + rows, m) for col in starts) for row in range(0, m, rows))
        assert config.tiles(m, 3) == 3 * lower, config
