"""The grid of simt_batched covers results of any strides."""

from __future__ import annotations

import dataclasses
import math

import pytest

from gemmule.core.dtype import FLOAT64
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem
from gemmule.kernels.simt.batched.spec import SPEC


@pytest.mark.parametrize(("row", "col"), [(358, 2), (2, 154), (179, 1), (1, 77)])
def test_strided_results_have_all_of_their_tiles(row, col):
    m, n, k = 77, 179, 133
    d = dataclasses.replace(contiguous(FLOAT64, m, n), row_stride=row, col_stride=col, alignment=8)
    problem = GemmProblem(m, n, k, (), contiguous(FLOAT64, m, k), contiguous(FLOAT64, k, n), None, d)
    # Results are computed by rows, those without contiguous rows as their transposes.
    rows, cols = (m, n) if col == 1 else (n, m)
    for config in SPEC.configs:
        tiles = math.ceil(rows / config.tile_m) * math.ceil(cols / config.tile_n)
        assert SPEC.launch(problem, config).grid == (tiles * config.cluster_k, 1, 1)
