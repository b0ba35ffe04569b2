"""Configs of `mma_sync_gemm` to time, and of the kernels that transpose TF32 operands first."""

from __future__ import annotations

import dataclasses

from gemmule.core.spec import Choice
from gemmule.kernels.hopper.gemm.config_lists import FOR_FLOAT8
from gemmule.kernels.hopper.gemm.spec import SPEC as HOPPER_GEMM
from gemmule.kernels.hopper.gemm_k_major.spec import SPEC as K_MAJOR
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as REPACKED
from gemmule.kernels.mma_sync.config import MmaSyncConfig
from gemmule.kernels.mma_sync.spec import SPEC as MMA_SYNC

from .hopper import hopper_candidates

#: Candidates of `mma_sync_gemm`: rows, columns, warps along M and N, and stages; and CTAs of a cluster.
_TILES = {
    (64, 64, 2, 2, 4): (1, 2, 3, 4, 5, 6, 7, 8, 12, 16),
    (128, 64, 2, 2, 4): (1, 2, 4, 8),
    (128, 64, 4, 2, 4): (1, 2, 3, 4, 6, 8, 12, 16),
    (64, 128, 2, 2, 4): (2, 4, 8, 16),
    (64, 128, 2, 4, 4): (1, 2, 3, 4, 5, 6, 8, 16),
    (128, 128, 2, 4, 4): (1, 2, 3, 4, 5, 6, 8, 10, 12, 16),
    (128, 256, 2, 4, 4): (1, 2, 4, 5, 8, 11),
    (256, 128, 4, 2, 4): (2, 4, 5, 6, 8, 11, 16),
    (256, 64, 4, 1, 3): (1, 2, 4),
    (64, 256, 1, 4, 3): (1, 2, 4),
    # Warp tiles of 64 x 64, two CTAs an SM.
    (128, 128, 2, 2, 3): (2, 3, 4, 8),
    (64, 128, 1, 2, 4): (1, 2, 3, 4, 8),
    (64, 64, 2, 2, 6): (1, 2, 4, 8),
    # For small results.
    (32, 64, 1, 2, 4): (1, 2, 3, 4, 8),
    (64, 32, 2, 1, 4): (1, 2, 4, 6, 8, 16),
    (32, 32, 1, 1, 4): (1, 2, 4),
    (32, 128, 1, 4, 4): (1, 2, 4, 8),
}


def mma_sync_choices() -> tuple[Choice, ...]:
    """Return the configs of `mma_sync_gemm` that TF32 may need, and the kernel that transposes operands first."""
    found = list(MMA_SYNC.configs)
    for (tile_m, tile_n, warps_m, warps_n, stages), clusters in _TILES.items():
        tile = MmaSyncConfig(tile_m=tile_m, tile_n=tile_n, warps_m=warps_m, warps_n=warps_n, stages=stages)
        found += [dataclasses.replace(tile, cluster_k=ctas) for ctas in clusters]
    transposed = [Choice(spec, one) for spec in (K_MAJOR, REPACKED) for one in spec.configs]
    transposed += [Choice(HOPPER_GEMM, one) for one in hopper_candidates() if one not in FOR_FLOAT8]
    return (*(Choice(MMA_SYNC, one) for one in dict.fromkeys(found)), *transposed)
