"""Configs of hopper_gemm that are offered to layers of models, as the cost model has them."""

from __future__ import annotations

from .config import HopperGemmConfig

#: Rows, columns, stages, pingpong, cluster_m, cluster_n, swap_ab, split_k and side_by_side. cuBLASLt was faster with
#: such tiles; other products with a K-major B are offered those that do not split K, too.
_TILES = (
    (256, 136, 4, 0, 1, 1, 1, 0, 0), (256, 96, 4, 0, 2, 1, 1, 0, 0), (192, 48, 6, 1, 1, 2, 1, 0, 0),
    (128, 184, 5, 1, 1, 1, 1, 0, 0), (128, 136, 6, 1, 1, 2, 1, 0, 0), (128, 104, 7, 1, 1, 2, 1, 0, 0),
    (256, 160, 3, 0, 2, 1, 1, 0, 0), (192, 144, 5, 0, 1, 2, 0, 0, 1), (192, 104, 5, 1, 4, 1, 1, 0, 0),
    (192, 72, 5, 1, 1, 2, 1, 0, 0), (128, 216, 4, 0, 2, 1, 1, 1, 0), (128, 152, 6, 1, 2, 1, 1, 0, 0),
    (128, 120, 6, 1, 4, 1, 1, 0, 0), (128, 120, 6, 1, 1, 2, 1, 0, 0), (128, 152, 6, 0, 1, 2, 1, 1, 0),
    (128, 136, 6, 0, 1, 2, 1, 1, 0), (128, 112, 7, 0, 1, 2, 1, 1, 0), (128, 104, 7, 0, 1, 2, 1, 1, 0),
    (128, 88, 8, 0, 1, 2, 1, 1, 0), (128, 72, 7, 0, 1, 2, 1, 1, 0), (128, 80, 8, 1, 1, 4, 0, 0, 0),
    (128, 80, 8, 1, 4, 2, 1, 0, 0), (128, 72, 8, 1, 4, 2, 1, 0, 0), (64, 168, 6, 1, 4, 1, 1, 0, 0),
    (64, 136, 8, 1, 4, 1, 1, 0, 0), (64, 88, 11, 1, 2, 4, 0, 1, 0), (64, 88, 11, 1, 4, 2, 1, 0, 0),
    (64, 80, 10, 1, 1, 4, 0, 0, 0), (64, 72, 11, 1, 4, 2, 1, 0, 0), (64, 16, 16, 1, 4, 1, 1, 0, 0),
)  # fmt: skip
FOR_LAYERS = tuple(
    HopperGemmConfig(m, n, stages, pingpong, along_m, along_n, 1, swap_ab, split_k=split_k, side_by_side=side_by_side)
    for m, n, stages, pingpong, along_m, along_n, swap_ab, split_k, side_by_side in _TILES
)
