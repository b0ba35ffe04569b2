"""Configs of `simt_gemm` to time."""

from __future__ import annotations

import contextlib

from gemmule.core.errors import ArgumentError
from gemmule.kernels.simt.config import SimtConfig
from gemmule.kernels.simt.gemm.spec import SPEC as SIMT_GEMM

#: Tiles of `simt_gemm`: rows, columns, k-tile, warps along M, N and K, stages, and the CTAs of clusters.
_TILES = (
    (128, 128, 8, 4, 2, 1, 4, (1,)),
    (128, 128, 16, 4, 2, 1, 3, (1, 2)),
    (256, 128, 8, 4, 2, 1, 4, (1,)),
    (64, 128, 16, 2, 2, 1, 4, (3, 6)),
    (64, 32, 16, 2, 1, 1, 4, (2, 4)),
    (32, 32, 32, 1, 1, 4, 4, (1, 4, 6, 8, 16)),
    (32, 32, 64, 1, 1, 4, 3, (1, 4, 6, 8, 16)),
    (32, 32, 64, 1, 1, 8, 3, (8, 16)),
    (64, 32, 32, 2, 1, 2, 4, (1, 2, 4, 6, 8, 16)),
    (64, 32, 32, 2, 1, 4, 4, (4, 8, 16)),
    (64, 64, 16, 2, 1, 2, 4, (1, 2, 3, 4, 6, 8, 16)),
    (64, 64, 32, 2, 1, 2, 3, (1, 2, 3, 4, 6, 8, 16)),
    (64, 64, 32, 2, 2, 2, 3, (1, 2, 3, 4)),
    (128, 64, 32, 4, 1, 2, 3, (1, 2, 3, 4, 6, 8)),
    (64, 128, 32, 2, 2, 2, 3, (1, 2, 3, 4, 6, 8)),
)


def simt_candidates() -> tuple[SimtConfig, ...]:
    """Return the registered configs, and all of `_TILES` that exist."""
    found = list(SIMT_GEMM.configs)
    for *tile, warps_k, stages, clusters in _TILES:
        for cluster_k in clusters:
            with contextlib.suppress(ArgumentError):
                found.append(SimtConfig(*tile, stages, cluster_k=cluster_k, warps_k=warps_k))
    return tuple(dict.fromkeys(found))
