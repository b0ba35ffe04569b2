"""Configs of mma_sync_gemm that a call chooses among; no compiled kernel depends on the lists."""

from __future__ import annotations

from .config import PARTS_OF_K, TILE, MmaSyncConfig

#: Configs for TF32 alone, most of them where K is long and tiles are few: the ones that together come closest to the
#: best of all that were timed (benchmarks/experiments/fit_mma_sync_cost.py --choose).
FOR_TF32 = (
    *(MmaSyncConfig(tile_m=64, tile_n=64, stages=4, cluster_k=parts) for parts in (3, 5, 16)),
    MmaSyncConfig(tile_m=64, stages=4, cluster_k=4),
    *(MmaSyncConfig(tile_m=32, warps_m=1, warps_n=4, stages=4, cluster_k=parts) for parts in (1, 8)),
    *(MmaSyncConfig(tile_n=TILE, warps_m=4, stages=4, cluster_k=parts) for parts in (1, 2, 4, 8, 16)),
    *(MmaSyncConfig(warps_n=4, stages=4, cluster_k=parts) for parts in (2, 4, 8, 16)),
    MmaSyncConfig(tile_m=256, warps_m=4, stages=4, cluster_k=4),
    MmaSyncConfig(tile_m=64, tile_n=32, warps_n=1, stages=4, cluster_k=8),
)
#: Configs for TF32 whose lines begin at any word, of one operand at least. Most are for 65 to 96 rows or columns, or
#: for few tiles and a long K.
FOR_UNALIGNED_TF32 = (
    *(MmaSyncConfig(tile_m=64, warps_n=4, stages=4, cluster_k=parts) for parts in (4, 8, 16)),
    MmaSyncConfig(warps_n=4, stages=4, cluster_k=5),
    *(MmaSyncConfig(tile_m=96, tile_n=256, warps_m=1, warps_n=8, stages=4, cluster_k=parts) for parts in (4, 8, 16)),
    MmaSyncConfig(tile_m=256, tile_n=96, warps_m=8, warps_n=1, stages=4, cluster_k=16),
    MmaSyncConfig(tile_m=256, tile_n=64, warps_m=8, stages=4, cluster_k=4),
    *(MmaSyncConfig(tile_m=64, tile_n=64, stages=4, cluster_k=parts, split_k=1) for parts in (2, 4)),
    *(MmaSyncConfig(warps_n=4, stages=4, cluster_k=parts, split_k=1) for parts in (2, 4)),
    MmaSyncConfig(tile_n=64, warps_m=4, stages=4, cluster_k=2, split_k=1),
    MmaSyncConfig(tile_m=256, warps_m=4, stages=4, cluster_k=2, split_k=1),
    *(
        MmaSyncConfig(tile_m=96, tile_n=256, warps_m=1, warps_n=8, stages=4, cluster_k=parts, split_k=1)
        for parts in (2, 4)
    ),
    MmaSyncConfig(tile_n=32, warps_m=4, warps_n=1, stages=4, cluster_k=8),
    MmaSyncConfig(tile_m=32, warps_m=1, warps_n=4, stages=4, cluster_k=16),
)
#: Configs that a call chooses among; the first is the default.
CONFIGS: tuple[MmaSyncConfig, ...] = (
    MmaSyncConfig(),
    MmaSyncConfig(tile_n=256, warps_n=4, stages=4),
    MmaSyncConfig(tile_m=256, warps_m=4, stages=4),
    MmaSyncConfig(tile_n=256, k_bytes=64, warps_n=4, stages=5),
    MmaSyncConfig(warps_n=4),
    MmaSyncConfig(mma_k_bytes=16),
    MmaSyncConfig(tile_m=64, stages=4),
    *(MmaSyncConfig(tile_m=64, tile_n=64, stages=4, cluster_k=parts) for parts in PARTS_OF_K),
    *FOR_TF32,
    *FOR_UNALIGNED_TF32,
)
