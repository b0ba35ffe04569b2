"""Configs of hopper_gemm that an H200's products of 16 bits are offered for their widths; no layers."""

from __future__ import annotations

from .config import HopperGemmConfig

#: Rows, columns, stages, pingpong, cluster_m, cluster_n, swap_ab and split_k. cuBLASLt was faster with such tiles.
_TILES = (
    (256, 144, 4, 0, 1, 2, 0, 0), (256, 128, 4, 0, 1, 4, 0, 0), (256, 112, 4, 0, 2, 1, 0, 0),
    (128, 128, 6, 0, 2, 4, 0, 1), (128, 64, 8, 0, 1, 2, 0, 1), (192, 88, 6, 1, 1, 4, 1, 0),
    (128, 176, 5, 1, 4, 2, 0, 0), (128, 176, 5, 1, 2, 4, 1, 0), (128, 176, 5, 1, 4, 2, 1, 0),
    (128, 160, 5, 1, 1, 2, 0, 0), (128, 160, 5, 1, 4, 2, 0, 0), (128, 160, 5, 1, 2, 4, 1, 0),
    (128, 160, 5, 1, 2, 1, 1, 0), (128, 136, 6, 1, 2, 4, 1, 0), (128, 128, 6, 1, 2, 1, 0, 0),
    (128, 120, 6, 1, 2, 4, 1, 0), (128, 96, 6, 1, 1, 4, 0, 0), (128, 96, 6, 1, 2, 4, 1, 0),
    (128, 72, 8, 1, 1, 4, 0, 0), (128, 64, 8, 1, 4, 2, 1, 0), (64, 144, 7, 1, 4, 2, 1, 0),
    (64, 128, 8, 1, 4, 2, 0, 0), (64, 104, 9, 1, 2, 4, 0, 0), (64, 104, 9, 1, 4, 2, 0, 0),
    (64, 104, 10, 1, 1, 2, 0, 1), (64, 104, 10, 1, 4, 1, 0, 0), (64, 88, 11, 1, 4, 1, 0, 0),
    (64, 80, 10, 1, 4, 2, 1, 0), (64, 80, 10, 1, 4, 2, 1, 1), (64, 72, 12, 1, 4, 1, 0, 0),
    (64, 72, 11, 1, 4, 1, 1, 0), (64, 72, 11, 1, 2, 1, 1, 0), (64, 40, 15, 1, 4, 2, 0, 0),
)  # fmt: skip
FOR_WIDTHS = (
    HopperGemmConfig(tile_m=192, tile_n=192, stages=4, cluster_m=1, cluster_n=4, swap_ab=1, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=96, stages=5, cluster_m=2, cluster_n=4, swap_ab=1, consumers=3),
    *(
        HopperGemmConfig(m, n, stages, pingpong, along_m, along_n, 1, swap_ab, split_k=split_k)
        for m, n, stages, pingpong, along_m, along_n, swap_ab, split_k in _TILES
    ),
)
