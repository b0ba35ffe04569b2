"""Configs of hopper_gemm that a call chooses among; no compiled kernel depends on the lists."""

from __future__ import annotations

from gemmule.core.dtype import FLOAT32, DType

from .config import HopperGemmConfig

#: Configs for FP8, most of them cooperative, where one warpgroup promotes accumulators while the other multiplies; the
#: cost model offers them to no other type.
FOR_FLOAT8 = (
    HopperGemmConfig(tile_m=128, tile_n=192, stages=4, cluster_m=1),
    HopperGemmConfig(tile_m=128, tile_n=192, stages=4, cluster_m=2),
    HopperGemmConfig(tile_m=128, tile_n=128, stages=6, cluster_m=1),
    HopperGemmConfig(tile_m=128, tile_n=192, stages=4, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=160, stages=4, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=128, stages=6, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=144, stages=7, pingpong=1, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=64, stages=7, cluster_m=1, cluster_k=4),
    HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=1),
    # Layers of models with 64 to 512 rows.
    HopperGemmConfig(tile_m=128, tile_n=64, stages=7, cluster_m=1, cluster_k=2),
    HopperGemmConfig(tile_m=128, tile_n=64, stages=7, cluster_m=1, cluster_k=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=64, stages=8, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=160, stages=4, cluster_m=2),
    HopperGemmConfig(tile_m=128, tile_n=128, stages=6, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=256, stages=4, cluster_m=1, swap_ab=1),
    # An odd multiple of 16 columns, written in two epilogue tiles.
    HopperGemmConfig(tile_m=128, tile_n=176, stages=4, cluster_m=1),
    # A raster of 16 rows of tiles: a wave of wide tiles is nearly a square then.
    HopperGemmConfig(tile_m=128, tile_n=256, stages=4, cluster_m=1, group=16),
    # With a scale for each column.
    HopperGemmConfig(tile_m=128, tile_n=144, stages=4, cluster_m=1),
    # With shared memory left for block scales.
    HopperGemmConfig(tile_m=128, tile_n=128, stages=5, cluster_m=1, group=16),
    HopperGemmConfig(tile_m=128, tile_n=160, stages=3, cluster_m=1),
    # With a scale for each column, of which tall tiles load fewer per FLOP.
    HopperGemmConfig(tile_m=256, tile_n=112, stages=4, cluster_m=1),
    HopperGemmConfig(tile_m=256, tile_n=112, stages=4, cluster_m=2, group=4),
    # Skinny GEMMs: a tile has 128 columns of D. Many CTAs read memory faster with fewer loads in flight, few with more.
    HopperGemmConfig(tile_m=128, tile_n=64, stages=7, cluster_m=1, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=32, stages=9, cluster_m=1, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=16, stages=11, cluster_m=1, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=8, stages=12, cluster_m=1, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=16, stages=6, cluster_m=1, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=8, stages=6, cluster_m=1, swap_ab=1),
    # Few tiles by a long K: loads shared in clusters of four and eight, one warpgroup promoting while one multiplies.
    HopperGemmConfig(tile_m=128, tile_n=128, stages=6, cluster_m=4),
    HopperGemmConfig(tile_m=128, tile_n=128, stages=6, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=112, stages=7, cluster_m=2, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=96, stages=6, cluster_m=4),
    HopperGemmConfig(tile_m=128, tile_n=96, stages=6, cluster_m=4, cluster_n=2),
    HopperGemmConfig(tile_m=128, tile_n=96, stages=6, cluster_m=4, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=96, stages=6, cluster_m=2, cluster_n=2),
    HopperGemmConfig(tile_m=128, tile_n=96, stages=6, cluster_m=2, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=80, stages=7, cluster_m=1, cluster_n=4),
    HopperGemmConfig(tile_m=128, tile_n=80, stages=7, cluster_m=1, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=80, stages=7, cluster_m=2, cluster_n=4),
    HopperGemmConfig(tile_m=128, tile_n=80, stages=7, cluster_m=2, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=64, stages=8, cluster_m=1, cluster_n=4),
    HopperGemmConfig(tile_m=128, tile_n=64, stages=8, cluster_m=1, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=48, stages=9, cluster_m=1, cluster_n=4),
    HopperGemmConfig(tile_m=128, tile_n=48, stages=9, cluster_m=1, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=40, stages=9, cluster_m=1, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=32, stages=10, cluster_m=1, cluster_n=4),
    HopperGemmConfig(tile_m=128, tile_n=32, stages=10, cluster_m=1, cluster_n=4, swap_ab=1),
)
#: Configs for 16-bit elements, timed with these only: for GEMMs of which other configs leave much of a wave idle, or
#: where cuBLASLt was faster. The cost model offers them to no other type.
FOR_16_BIT = (
    HopperGemmConfig(tile_m=128, tile_n=192, stages=4, pingpong=1, cluster_m=1, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=176, stages=5, pingpong=1, cluster_m=1),
    HopperGemmConfig(tile_m=128, tile_n=160, stages=5, pingpong=1, cluster_m=1),
    HopperGemmConfig(tile_m=128, tile_n=160, stages=5, pingpong=1, cluster_m=2, cluster_n=4),
    HopperGemmConfig(tile_m=128, tile_n=112, stages=7, pingpong=1, cluster_m=2, cluster_n=4),
    HopperGemmConfig(tile_m=128, tile_n=112, stages=7, pingpong=1, cluster_m=2, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=96, stages=6, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=96, stages=6, pingpong=1, cluster_m=4, cluster_n=2),
    HopperGemmConfig(tile_m=128, tile_n=80, stages=7, cluster_m=1),
    HopperGemmConfig(tile_m=128, tile_n=72, stages=8, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=160, stages=5, pingpong=1, cluster_m=4),
    HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=1, cluster_k=3, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=64, stages=11, pingpong=1, cluster_m=1, cluster_k=2),
    HopperGemmConfig(tile_m=64, tile_n=40, stages=15, pingpong=1, cluster_m=1, cluster_n=4),
    # Widths and clusters for what draws lost: one side of the result of few tiles, or a little more than a wave.
    HopperGemmConfig(tile_m=192, tile_n=80, stages=5, pingpong=1, cluster_m=1, cluster_n=4),
    HopperGemmConfig(tile_m=192, tile_n=80, stages=5, pingpong=1, cluster_m=1, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=224, stages=4, cluster_m=4),
    HopperGemmConfig(tile_m=128, tile_n=176, stages=5, pingpong=1, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=160, stages=5, pingpong=1, cluster_m=4),
    HopperGemmConfig(tile_m=128, tile_n=160, stages=5, pingpong=1, cluster_m=4, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=144, stages=6, pingpong=1, cluster_m=2, cluster_n=2),
    HopperGemmConfig(tile_m=128, tile_n=144, stages=5, pingpong=1, cluster_m=2, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=128, stages=6, pingpong=1, cluster_m=1, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=96, stages=6, pingpong=1, cluster_m=4),
    HopperGemmConfig(tile_m=128, tile_n=80, stages=7, cluster_m=2, cluster_n=2, split_k=1),
    HopperGemmConfig(tile_m=128, tile_n=80, stages=7, cluster_m=2, cluster_n=2, swap_ab=1, split_k=1),
    HopperGemmConfig(tile_m=128, tile_n=72, stages=8, pingpong=1, cluster_m=1, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=160, stages=5, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=144, stages=7, pingpong=1, cluster_m=1, cluster_n=2),
    HopperGemmConfig(tile_m=64, tile_n=128, stages=8, pingpong=1, cluster_m=1, cluster_n=4),
    HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=4, cluster_n=2, swap_ab=1, split_k=1),
    # Mirror images of registered ones.
    HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=2, cluster_n=4, swap_ab=1),
)
#: Configs for 16-bit elements and any number of rows, which are columns of the transposed product: of most, two CTAs
#: share a tile of the weights, and have half of the rows each. Tiles of 120 columns were fast too, but spill registers
#: where one operand is MN-major.
FOR_ANY_ROWS = (
    HopperGemmConfig(tile_m=192, tile_n=104, stages=5, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=192, tile_n=88, stages=6, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=168, stages=5, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=112, stages=7, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=112, stages=7, cluster_m=1, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=88, stages=8, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=80, stages=8, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=56, stages=8, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=104, stages=10, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=80, stages=10, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=80, stages=10, pingpong=1, cluster_m=1, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=72, stages=11, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=56, stages=14, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=40, stages=15, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=24, stages=11, cluster_m=1, cluster_k=3, swap_ab=1),
)
#: Further ones, in most of which two or four CTAs have tiles of the weights each and share the loads of the rows,
#: whatever number of these a tile has.
FOR_SHARED_ROWS = (
    HopperGemmConfig(tile_m=256, tile_n=152, stages=4, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=256, tile_n=120, stages=4, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=256, tile_n=112, stages=4, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=256, tile_n=104, stages=4, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=192, tile_n=120, stages=4, pingpong=1, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=192, tile_n=112, stages=5, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=192, tile_n=80, stages=5, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=232, stages=4, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=216, stages=4, cluster_m=1, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=200, stages=4, cluster_m=4, swap_ab=1, split_k=1),
    HopperGemmConfig(tile_m=128, tile_n=184, stages=5, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=168, stages=5, pingpong=1, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=168, stages=5, pingpong=1, cluster_m=2),
    HopperGemmConfig(tile_m=128, tile_n=112, stages=7, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=104, stages=7, cluster_m=4, swap_ab=1, split_k=1),
    HopperGemmConfig(tile_m=128, tile_n=80, stages=8, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=72, stages=8, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=32, stages=9, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=32, stages=9, pingpong=1, cluster_m=1, cluster_n=4),
    HopperGemmConfig(tile_m=128, tile_n=8, stages=12, pingpong=1, cluster_m=1, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=112, stages=9, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=104, stages=10, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=88, stages=11, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=80, stages=10, pingpong=1, cluster_m=4, swap_ab=1, split_k=1),
    HopperGemmConfig(tile_m=64, tile_n=72, stages=11, pingpong=1, cluster_m=4, swap_ab=1, split_k=1),
    HopperGemmConfig(tile_m=64, tile_n=48, stages=14, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=40, stages=15, pingpong=1, cluster_m=2, cluster_n=2),
    HopperGemmConfig(tile_m=64, tile_n=24, stages=16, pingpong=1, cluster_m=4, swap_ab=1),
)
#: Configs for K-major elements of 16 bits whose warpgroups lie side by side, and others, of layers for which cuBLASLt
#: was faster with such tiles.
FOR_SIDE_BY_SIDE = (
    HopperGemmConfig(tile_m=192, tile_n=208, stages=4, cluster_m=2, swap_ab=1, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=208, stages=4, cluster_m=1, cluster_n=2, swap_ab=1, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=208, stages=4, cluster_m=1, swap_ab=1, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=192, stages=4, cluster_m=2, swap_ab=1, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=192, stages=4, cluster_m=1, cluster_n=2, swap_ab=1, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=176, stages=4, cluster_m=2, swap_ab=1, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=176, stages=4, cluster_m=1, cluster_n=2, swap_ab=1, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=176, stages=4, cluster_m=4, swap_ab=1, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=160, stages=4, cluster_m=2, swap_ab=1, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=160, stages=4, cluster_m=4, swap_ab=1, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=144, stages=4, cluster_m=2, swap_ab=1, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=144, stages=4, cluster_m=1, cluster_n=2, swap_ab=1, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=72, stages=5, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=208, stages=5, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=200, stages=4, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=168, stages=6, pingpong=1, cluster_m=4, cluster_n=2, swap_ab=1),
)
#: Configs that are offered to layers of models only, as the cost model has them: other products were not timed in them.
FOR_LAYERS = (
    HopperGemmConfig(tile_m=256, tile_n=136, stages=4, cluster_m=1, swap_ab=1),
    HopperGemmConfig(tile_m=256, tile_n=96, stages=4, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=192, tile_n=48, stages=6, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=184, stages=5, pingpong=1, cluster_m=1, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=136, stages=6, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=104, stages=7, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=256, tile_n=160, stages=3, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=192, tile_n=144, stages=5, cluster_m=1, cluster_n=2, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=104, stages=5, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=192, tile_n=72, stages=5, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=192, tile_n=24, stages=7, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=216, stages=4, cluster_m=2, swap_ab=1, split_k=1),
    HopperGemmConfig(tile_m=128, tile_n=152, stages=6, pingpong=1, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=120, stages=6, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=120, stages=6, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=104, stages=7, pingpong=1, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=88, stages=8, cluster_m=1, cluster_n=2, swap_ab=1, split_k=1),
    HopperGemmConfig(tile_m=128, tile_n=80, stages=8, pingpong=1, cluster_m=1, cluster_n=4),
    HopperGemmConfig(tile_m=128, tile_n=80, stages=8, pingpong=1, cluster_m=4, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=72, stages=8, pingpong=1, cluster_m=4, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=168, stages=6, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=136, stages=8, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=88, stages=11, pingpong=1, cluster_m=2, cluster_n=4, split_k=1),
    HopperGemmConfig(tile_m=64, tile_n=88, stages=11, pingpong=1, cluster_m=4, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=80, stages=10, pingpong=1, cluster_m=1, cluster_n=4),
    HopperGemmConfig(tile_m=64, tile_n=72, stages=11, pingpong=1, cluster_m=4, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=16, stages=16, pingpong=1, cluster_m=4, swap_ab=1),
)
#: Configs that are offered to an H200's products of 16 bits that are no layers: of other chips none were timed.
FOR_H200 = (
    HopperGemmConfig(tile_m=192, tile_n=208, stages=4, cluster_m=1, cluster_n=2, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=208, stages=4, cluster_m=2, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=192, stages=4, cluster_m=1, cluster_n=2, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=192, stages=4, cluster_m=2, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=176, stages=4, cluster_m=1, cluster_n=2, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=176, stages=4, cluster_m=2, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=160, stages=4, cluster_m=1, cluster_n=2, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=160, stages=4, cluster_m=2, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=160, stages=4, cluster_m=1, cluster_n=2, swap_ab=1, side_by_side=1),
    HopperGemmConfig(tile_m=192, tile_n=104, stages=5, pingpong=1, cluster_m=1, cluster_n=2),
    HopperGemmConfig(tile_m=192, tile_n=96, stages=4, pingpong=1, cluster_m=1, cluster_n=2),
    HopperGemmConfig(tile_m=128, tile_n=208, stages=5, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=200, stages=4, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=168, stages=5, pingpong=1, cluster_m=2, cluster_n=4),
    HopperGemmConfig(tile_m=64, tile_n=136, stages=8, pingpong=1, cluster_m=2, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=64, stages=12, pingpong=1, cluster_m=2, cluster_n=4, swap_ab=1, split_k=1),
)
#: Configs for few tiles and a long K, of 16-bit elements and TF32, with multicast: split-K over rows of the grid, and
#: over CTAs of a cluster.
FOR_LONG_K = (
    HopperGemmConfig(tile_m=256, tile_n=80, stages=5, cluster_m=1, cluster_n=4, swap_ab=1, split_k=1),
    HopperGemmConfig(tile_m=192, tile_n=64, stages=5, pingpong=1, cluster_m=1, cluster_n=4, swap_ab=1, split_k=1),
    HopperGemmConfig(tile_m=128, tile_n=192, stages=4, cluster_m=2, split_k=1),
    HopperGemmConfig(tile_m=128, tile_n=192, stages=4, cluster_m=2, swap_ab=1, split_k=1),
    HopperGemmConfig(tile_m=128, tile_n=160, stages=4, cluster_m=2, split_k=1),
    HopperGemmConfig(tile_m=128, tile_n=160, stages=4, cluster_m=4, swap_ab=1, split_k=1),
    HopperGemmConfig(tile_m=128, tile_n=128, stages=6, cluster_m=4, split_k=1),
    HopperGemmConfig(tile_m=128, tile_n=128, stages=6, cluster_m=4, swap_ab=1, split_k=1),
    HopperGemmConfig(tile_m=128, tile_n=96, stages=6, cluster_m=4, cluster_n=2, split_k=1),
    HopperGemmConfig(tile_m=128, tile_n=96, stages=6, cluster_m=1, cluster_n=4, split_k=1),
    HopperGemmConfig(tile_m=128, tile_n=96, stages=6, cluster_m=4, cluster_n=2, swap_ab=1, split_k=1),
    HopperGemmConfig(tile_m=128, tile_n=80, stages=7, cluster_m=1, cluster_n=4, swap_ab=1, split_k=1),
    HopperGemmConfig(tile_m=128, tile_n=64, stages=8, cluster_m=1, cluster_n=4, split_k=1),
    HopperGemmConfig(tile_m=64, tile_n=128, stages=8, pingpong=1, cluster_m=4, split_k=1),
    HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=4, split_k=1),
    HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=4, swap_ab=1, split_k=1),
    HopperGemmConfig(tile_m=64, tile_n=80, stages=10, pingpong=1, cluster_m=2, cluster_n=4, swap_ab=1, split_k=1),
    HopperGemmConfig(tile_m=128, tile_n=96, stages=5, cluster_m=1, cluster_n=2, cluster_k=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=2, cluster_k=4),
    HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=2, cluster_k=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=80, stages=9, pingpong=1, cluster_m=2, cluster_n=2, cluster_k=2),
    HopperGemmConfig(tile_m=64, tile_n=64, stages=11, pingpong=1, cluster_m=1, cluster_n=2, cluster_k=4),
    HopperGemmConfig(tile_m=64, tile_n=64, stages=11, pingpong=1, cluster_m=1, cluster_n=4, cluster_k=2),
    HopperGemmConfig(tile_m=64, tile_n=64, stages=11, pingpong=1, cluster_m=1, cluster_n=2, cluster_k=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=64, stages=11, pingpong=1, cluster_m=1, cluster_n=4, cluster_k=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=48, stages=13, pingpong=1, cluster_m=1, cluster_n=4, cluster_k=2),
    HopperGemmConfig(tile_m=64, tile_n=48, stages=13, pingpong=1, cluster_m=1, cluster_n=4, cluster_k=2, swap_ab=1),
)
#: Configs that a call chooses among; the first is the default. 345 were timed on an H100 and H200s: the best of these
#: comes closest to the best of all (benchmarks/experiments/fit_cost_model.py --choose).
CONFIGS = (
    HopperGemmConfig(tile_m=128, tile_n=192, stages=4, pingpong=1, cluster_m=1),
    HopperGemmConfig(tile_m=256, tile_n=192, stages=3, cluster_m=2),
    HopperGemmConfig(tile_m=256, tile_n=160, stages=3, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=256, stages=4, cluster_m=1),
    HopperGemmConfig(tile_m=128, tile_n=256, stages=4, cluster_m=4),
    HopperGemmConfig(tile_m=128, tile_n=256, stages=4, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=224, stages=4, cluster_m=2),
    HopperGemmConfig(tile_m=128, tile_n=224, stages=4, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=192, tile_n=128, stages=4, pingpong=1, cluster_m=1, cluster_n=2),
    HopperGemmConfig(tile_m=192, tile_n=128, stages=4, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=192, stages=4, pingpong=1, cluster_m=4),
    HopperGemmConfig(tile_m=128, tile_n=192, stages=4, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=160, stages=5, pingpong=1, cluster_m=2),
    HopperGemmConfig(tile_m=128, tile_n=160, stages=5, pingpong=1, cluster_m=2, cluster_n=2),
    HopperGemmConfig(tile_m=128, tile_n=160, stages=5, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=160, stages=5, pingpong=1, cluster_m=2, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=160, stages=5, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=144, stages=5, pingpong=1, cluster_m=1, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=128, stages=6, pingpong=1, cluster_m=1),
    HopperGemmConfig(tile_m=128, tile_n=128, stages=6, pingpong=1, cluster_m=1, cluster_n=2),
    HopperGemmConfig(tile_m=128, tile_n=128, stages=6, pingpong=1, cluster_m=1, cluster_n=4),
    HopperGemmConfig(tile_m=128, tile_n=128, stages=6, pingpong=1, cluster_m=2, cluster_n=2),
    HopperGemmConfig(tile_m=128, tile_n=128, stages=6, pingpong=1, cluster_m=4),
    HopperGemmConfig(tile_m=128, tile_n=128, stages=6, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=128, stages=6, pingpong=1, cluster_m=4, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=96, stages=6, pingpong=1, cluster_m=1),
    HopperGemmConfig(tile_m=128, tile_n=96, stages=6, pingpong=1, cluster_m=2),
    HopperGemmConfig(tile_m=128, tile_n=96, stages=6, pingpong=1, cluster_m=2, cluster_n=4),
    HopperGemmConfig(tile_m=128, tile_n=96, stages=6, pingpong=1, cluster_m=1, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=192, stages=5, pingpong=1, cluster_m=4),
    HopperGemmConfig(tile_m=64, tile_n=192, stages=5, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=80, stages=8, pingpong=1, cluster_m=2, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=64, stages=8, pingpong=1, cluster_m=1, cluster_n=4),
    HopperGemmConfig(tile_m=128, tile_n=64, stages=8, pingpong=1, cluster_m=1, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=128, stages=8, pingpong=1, cluster_m=1),
    HopperGemmConfig(tile_m=64, tile_n=128, stages=8, pingpong=1, cluster_m=1, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=128, stages=8, pingpong=1, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=128, stages=8, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=2, cluster_n=4),
    HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=4),
    HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=4, cluster_n=2),
    HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=4, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=80, stages=10, pingpong=1, cluster_m=1),
    HopperGemmConfig(tile_m=64, tile_n=64, stages=12, pingpong=1, cluster_m=1),
    HopperGemmConfig(tile_m=64, tile_n=64, stages=12, pingpong=1, cluster_m=1, cluster_n=4),
    HopperGemmConfig(tile_m=64, tile_n=64, stages=12, pingpong=1, cluster_m=2, cluster_n=4),
    HopperGemmConfig(tile_m=64, tile_n=64, stages=12, pingpong=1, cluster_m=1, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=64, stages=12, pingpong=1, cluster_m=1, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=64, stages=12, pingpong=1, cluster_m=2, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=48, stages=14, pingpong=1, cluster_m=1),
    HopperGemmConfig(tile_m=64, tile_n=48, stages=14, pingpong=1, cluster_m=1, cluster_n=4),
    HopperGemmConfig(tile_m=64, tile_n=48, stages=14, pingpong=1, cluster_m=2, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=32, stages=16, pingpong=1, cluster_m=1),
    HopperGemmConfig(tile_m=64, tile_n=32, stages=16, pingpong=1, cluster_m=1, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=32, stages=16, pingpong=1, cluster_m=1, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=16, stages=16, pingpong=1, cluster_m=1, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=16, stages=16, pingpong=1, cluster_m=1, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=8, stages=16, pingpong=1, cluster_m=1, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=64, stages=6, pingpong=1, cluster_m=1, cluster_k=4),
    HopperGemmConfig(tile_m=64, tile_n=128, stages=6, pingpong=1, cluster_m=1, cluster_k=8),
    HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=1, cluster_k=4),
    HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=1, cluster_k=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=64, stages=11, pingpong=1, cluster_m=1, cluster_k=8),
    HopperGemmConfig(tile_m=64, tile_n=48, stages=13, pingpong=1, cluster_m=1, cluster_k=3),
    HopperGemmConfig(tile_m=64, tile_n=32, stages=16, pingpong=1, cluster_m=1, cluster_k=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=32, stages=16, pingpong=1, cluster_m=1, cluster_k=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=16, stages=16, pingpong=1, cluster_m=1, cluster_k=2, swap_ab=1),
    # Layers of models with 64 to 512 rows, and shapes like those of draws where cuBLASLt was faster.
    HopperGemmConfig(tile_m=192, tile_n=128, stages=4, pingpong=1, cluster_m=1, cluster_n=4),
    HopperGemmConfig(tile_m=192, tile_n=112, stages=5, pingpong=1, cluster_m=1),
    HopperGemmConfig(tile_m=192, tile_n=96, stages=4, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=208, stages=4, cluster_m=2),
    HopperGemmConfig(tile_m=128, tile_n=144, stages=6, pingpong=1, cluster_m=1),
    HopperGemmConfig(tile_m=128, tile_n=128, stages=6, pingpong=1, cluster_m=2, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=112, stages=7, pingpong=1, cluster_m=1),
    HopperGemmConfig(tile_m=128, tile_n=96, stages=6, pingpong=1, cluster_m=1, cluster_n=2),
    HopperGemmConfig(tile_m=128, tile_n=96, stages=6, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=128, tile_n=80, stages=8, pingpong=1, cluster_m=2, cluster_n=4),
    HopperGemmConfig(tile_m=128, tile_n=64, stages=8, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=128, stages=8, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=128, stages=8, pingpong=1, cluster_m=4, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=2),
    HopperGemmConfig(tile_m=64, tile_n=80, stages=10, pingpong=1, cluster_m=2),
    HopperGemmConfig(tile_m=64, tile_n=80, stages=10, pingpong=1, cluster_m=2, cluster_n=4),
    HopperGemmConfig(tile_m=64, tile_n=80, stages=10, pingpong=1, cluster_m=2, cluster_n=4, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=64, stages=12, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=48, stages=14, pingpong=1, cluster_m=1, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=48, stages=14, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=32, stages=16, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=64, stages=11, pingpong=1, cluster_m=1, cluster_k=8, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=48, stages=13, pingpong=1, cluster_m=1, cluster_k=3, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=32, stages=16, pingpong=1, cluster_m=1, cluster_k=4),
    *FOR_16_BIT,
    *FOR_ANY_ROWS,
    *FOR_SHARED_ROWS,
    *FOR_SIDE_BY_SIDE,
    *FOR_LAYERS,
    *FOR_H200,
    *FOR_LONG_K,
    *FOR_FLOAT8,
)


#: Every config is looked up in these at the first call of a process.
SHARED_ROWS = frozenset((*FOR_SHARED_ROWS, *FOR_SIDE_BY_SIDE))
LAYERS = frozenset(FOR_LAYERS)
_H200 = frozenset(FOR_H200)
_FLOAT8, _LONG_K = frozenset(FOR_FLOAT8), frozenset(FOR_LONG_K)
_16_BIT = frozenset((*FOR_16_BIT, *FOR_ANY_ROWS, *SHARED_ROWS, *LAYERS, *FOR_H200))


def offered_to(dtype: DType, config: HopperGemmConfig) -> bool:
    """Return whether the cost model offers a config, for the SMs of an H100, to elements of a type."""
    if config in _FLOAT8:
        return dtype.is_float8
    if config in _LONG_K:
        return dtype.itemsize == 2 or dtype == FLOAT32
    return dtype.itemsize == 2 or config not in _16_BIT


def is_offered(config: HopperGemmConfig, k_major: tuple[bool, bool], *, layer: bool, further: bool) -> bool:
    """Return whether a config is offered to a product, by the kernel's A and B.

    `layer` and `further`: whether the product is a layer of a model, and one that further configs are offered to.
    """
    if not is_further(config, k_major):
        return config not in SHARED_ROWS or all(k_major)
    if config in LAYERS:
        return layer or (further and all(k_major))
    return further and (bool(config.side_by_side) or not k_major[0])


def is_further(config: HopperGemmConfig, k_major: tuple[bool, bool]) -> bool:
    """Return whether a config is none that all chips' products with such A and B are offered."""
    if config.side_by_side and config in SHARED_ROWS:
        return not all(k_major)
    return config in LAYERS or config in _H200
