"""Configs of `float64_gemm` to time."""

from __future__ import annotations

from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.float64.gemm.spec import SPEC as FLOAT64_GEMM

_TWO_WARPS, _FOUR_WARPS = {"stages": 3, "mma_k": 8}, {"stages": 3, "mma_k": 8, "warps_m": 4, "warps_n": 1}
#: Candidates of `float64_gemm`, as what differs from the default.
_CANDIDATES: tuple[dict[str, int], ...] = (
    # Others that were timed, of deeper k-tiles, more warps and larger clusters, were seldom the fastest by 1.5 %.
    *({"mma_k": 8, **fields} for fields in ({}, {"cluster_k": 3}, {"stream_k": 1}, {"cluster_k": 2, "stream_k": 1})),
    *({"warps_n": 4, "cluster_k": 2, "mma_k": k, "stream_k": 1} for k in (8, 16)),
    {"warps_n": 4, "mma_k": 8, "stream_k": 1},
    *({"tile_k": 32, "stages": 3, "mma_k": 8, "stream_k": shared} for shared in (0, 1)),
    {"stages": 3, "mma_k": 8, "stream_k": 1},
    *({side: 128, "stages": 3, "mma_k": 8} for side in ("tile_m", "tile_n")),
    {"tile_m": 128, "warps_m": 4, "mma_k": 8},
    # Tiles of 32 columns or rows, in warps of 32 x 32 and of half of that, and more CTAs an SM.
    *({"tile_n": 32, "mma_k": 8, "cluster_k": ctas, "stream_k": shared} for ctas in (1, 2) for shared in (0, 1)),
    *({side: 32, "stages": 3, "mma_k": 8} for side in ("tile_m", "tile_n")),
    *({side: 32, "mma_k": 8, "cluster_k": 2, "stream_k": 1} for side in ("tile_m", "tile_n")),
    *(
        {side: 32, warps: 1, "mma_k": 8, "cluster_k": ctas}
        for side, warps in (("tile_m", "warps_m"), ("tile_n", "warps_n"))
        for ctas in (1, 2)
    ),
    *(
        {"tile_m": 32, "tile_n": 128, **_TWO_WARPS, "warps_m": 1, "warps_n": 4, **fields}
        for fields in ({}, {"cluster_k": 2}, {"stream_k": 1})
    ),
    *({"tile_m": 128, "tile_n": 32, **_FOUR_WARPS, **fields} for fields in ({}, {"cluster_k": 2}, {"stream_k": 1})),
    {"tile_m": 32, "tile_n": 32, "tile_k": 32, "cluster_k": 2, "stream_k": 1},
    *({"tile_m": 32, "tile_n": 32, "mma_k": k} for k in (8, 16)),
    {"tile_m": 32, "tile_n": 32, "tile_k": 32, "stages": 3},
    # Sides between.
    *({side: 48, warps: 1, **_TWO_WARPS} for side, warps in (("tile_m", "warps_m"), ("tile_n", "warps_n"))),
    {"tile_m": 80, **_TWO_WARPS, "warps_m": 1, "warps_n": 4},
    {"tile_m": 96, "tile_n": 32, "mma_k": 8},
)


def float64_candidates() -> tuple[Float64Config, ...]:
    """Return the registered configs, and those of `_CANDIDATES`."""
    return tuple(dict.fromkeys([*FLOAT64_GEMM.configs, *(Float64Config(**one) for one in _CANDIDATES)]))
