"""Configs of `hopper_gemm` to time: registered ones, and tiles with as many stages as shared memory holds."""

from __future__ import annotations

import contextlib
import itertools

from gemmule.core.errors import ArgumentError
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.config_lists import CONFIGS, FOR_FLOAT8

#: Registered and candidate tiles, `c` cooperative and `p` ping-pong, with clusters along M, N and K.
_TILES = {
    "c128x256": "11 21 41 22",
    "c256x128": "12 14 22",
    "c256x144": "12 21",
    "c256x160": "12 14 22",
    "c256x176": "12 21",
    "c256x192": "11 21 12 14 22",
    "c128x240": "11 21 12 22",
    "c128x224": "21 41 22",
    "c128x208": "11 21 12 22",
    "c128x192": "21 41",
    "c128x160": "21",
    "p128x192": "11 21 12 41 22 42",
    "p128x176": "11 21 12",
    "p128x160": "11 21 12 22 14 41",
    "p128x144": "11 21 12 14",
    "p128x128": "11 21 12 41 14 22 24 42",
    "p128x112": "11 21 12 14 24",
    "p128x96": "11 21 12 14 22 24 41",
    "p128x80": "11 12 21 14 24",
    "p128x64": "11 21 12 14 22 24 42 k4",
    "p192x128": "11 12 14 22",
    "p192x96": "11 12 14",
    "p192x64": "12 14",
    "p64x256": "11 41 22 42",
    "p64x224": "41 21 22",
    "p64x192": "11 21 41 22 42",
    "p64x160": "11 21 41 22 42",
    "p64x144": "21 12 22",
    "p64x128": "11 21 12 41 22 14 24 42 k4 k8",
    "p64x112": "11 21 12 14 24 22",
    "p64x96": "11 21 41 12 14 22 24 42 k3 k4",
    "p64x80": "11 21 12 14 22 24",
    "p64x64": "11 12 14 22 24 42 41 k4 k8",
    "p64x48": "11 21 12 14 24 k2 k3",
    "p64x32": "11 21 41 12 14 22 24 42 k2 k4",
    "p64x16": "11 21 12 14 k2",
    "p64x8": "11",
    "c128x128": "11 21 12 14 22 k2 k4",
    "c128x96": "k2 k4",
    "c128x64": "11 21 12 14 22 24 41 k2 k4 k8",
    # Widths that 16 does not divide: with cluster_m=1 alone, as each CTA of more would load 8 columns at least.
    **{f"p64x{n}": "11 12 14" for n in (24, 40, 56, 72, 88, 104, 120, 136, 152, 168)},
    **{f"p128x{n}": "11 12 14" for n in (56, 72, 88, 104, 120, 136, 152, 168, 184)},
    **{f"c256x{n}": "11 12" for n in (104, 112, 120, 136, 152, 168)},
    **{f"c128x{n}": "11 12" for n in (72, 88, 104, 120, 136, 152, 168, 216, 232)},
    **{f"p192x{n}": "11 12 14" for n in (72, 80, 104, 112, 120)},
}
_MOST_STAGES = 16


def hopper_candidates() -> tuple[HopperGemmConfig, ...]:
    """Return the registered configs, and each candidate with as many stages as shared memory holds."""
    found = [one for one in CONFIGS if one not in FOR_FLOAT8]
    for (name, clusters), swap_ab in itertools.product(_TILES.items(), (0, 1)):
        tile_m, tile_n = map(int, name[1:].split("x"))
        for cluster in clusters.split():
            m, n, k = (1, 1, int(cluster[1:])) if cluster[0] == "k" else (int(cluster[0]), int(cluster[1]), 1)
            fields = {"pingpong": int(name[0] == "p"), "cluster_m": m, "cluster_n": n, "cluster_k": k}
            for stages in range(_MOST_STAGES, 2, -1):
                with contextlib.suppress(ArgumentError):
                    found.append(HopperGemmConfig(tile_m, tile_n, stages, swap_ab=swap_ab, **fields))
                    break
    return tuple(dict.fromkeys([*found, *FOR_FLOAT8]))
