"""Bytes of a launch through each level of the memory, by formula and counted."""

from __future__ import annotations

import dataclasses

from gemmule.core.config import Config
from gemmule.core.dtype import FLOAT16
from gemmule.core.problem import GemmProblem, Problem
from gemmule.core.row_major import row_result
from gemmule.kernels.hopper.gemm_w8a16.config import TILE_K, W8A16Config
from gemmule.kernels.hopper.tile_config import K_BYTES, MMA_M

from .behind_l2 import Behind
from .totals import BULK_LOAD, BULK_STORE, MATRIX, Totals


@dataclasses.dataclass(frozen=True)
class LevelTraffic:
    """The bytes that pass through a level."""

    name: str  #: ``device memory``, ``L2``, ``L1`` or ``shared memory``.
    formula_bytes: int | None  #: By arithmetic alone.
    formula: str  #: Formula, as text.
    bytes: int  #: Counted.
    counted: str  #: Method of counting.


def levels(
    problem: Problem, config: Config, totals: Totals, tile: tuple[int | None, ...], tiles: int, memory: Behind
) -> tuple[LevelTraffic, ...]:
    """Return the levels, the farthest first.

    Parameters
    ----------
    config : Config
        The kernel's.
    tile : tuple of int or None
        Rows and columns of the result that a CTA computes.
    tiles : int
        CTAs that there would be if each computed one tile.
    memory : Behind
        Traffic between the L2 cache and device memory.
    """
    copied = BULK_LOAD in totals.engine_bytes
    how = "once a cluster, and stores" if copied else "misses of L1, and stores"
    found = [
        LevelTraffic("device memory", problem.bytes_min, "each operand once", memory.bytes, memory.how),
        LevelTraffic("L2", *_by_tiles(problem, tile), totals.l2_bytes, how),
    ]
    if totals.l1_sectors or not copied:
        found.append(LevelTraffic("L1", None, "", 32 * totals.l1_sectors, "sectors of all requests"))
    if copied and isinstance(problem, GemmProblem):
        found += _without_threads(problem, config, totals, tiles)
    if totals.shared_bytes:
        found.append(LevelTraffic("shared memory", None, "", totals.shared_bytes, "what threads ask for"))
    return tuple(found)


#: Names of shared-memory levels with asynchronous copies.
COPIED_IN, MULTIPLIED, COPIED_OUT = "shared: loaded", "shared: products", "shared: stored"


def _without_threads(problem: GemmProblem, config: Config, totals: Totals, tiles: int) -> list[LevelTraffic]:
    """Return the bytes that TMA and wgmma move through shared memory."""
    fields, engine = config.as_dict(), totals.engine_bytes
    warpgroups_n = 1 + fields.get("side_by_side", 0)
    columns = fields["tile_n"] // warpgroups_n if "tile_n" in fields else None
    loaded = read = None
    if problem.c is None:
        loaded, read = _by_k_tiles(problem, config, tiles // fields.get("cluster_k", 1))
    found = [
        LevelTraffic(COPIED_IN, loaded, "all k-tiles", engine[BULK_LOAD], "in each CTA that receives them"),
        LevelTraffic(MULTIPLIED, read, f"by {MMA_M} x {columns}", engine.get(MATRIX, 0), "operands of wgmma"),
    ]
    if BULK_STORE in engine:
        found.append(LevelTraffic(COPIED_OUT, None, "", engine[BULK_STORE], "boxes of the result"))
    return found


def _by_k_tiles(problem: GemmProblem, config: Config, tiles: int) -> tuple[int | None, int | None]:
    """Return the bytes of the k-tiles of all tiles as TMA loads them, and as wgmma reads them for each 64 rows."""
    if isinstance(config, W8A16Config):
        # A tile's weights are the rows of wgmma and come from registers; rows of A are its columns, of 16 bits.
        oriented, _, _ = row_result(problem)
        elements = tiles * -(-problem.k // TILE_K) * TILE_K
        row, weight = oriented.a.dtype.itemsize, oriented.b.dtype.itemsize
        loaded = elements * (config.tile_n * row + config.tile_w * weight)
        return loaded, elements * config.tile_w // MMA_M * config.tile_n * FLOAT16.itemsize
    fields = config.as_dict()
    rows, columns = fields.get("tile_m"), fields.get("tile_n")
    if not (rows and columns):
        return None, None
    every = tiles * -(-problem.k * problem.a.dtype.itemsize // K_BYTES) * K_BYTES
    warpgroups_n = 1 + fields.get("side_by_side", 0)
    return every * (rows + columns), every * rows // MMA_M * (warpgroups_n * MMA_M + columns)


def _by_tiles(problem: Problem, tile: tuple[int | None, ...]) -> tuple[int | None, str]:
    """Return the bytes that CTAs read, each its rows of A and columns of B once, and write."""
    if not isinstance(problem, GemmProblem):
        return problem.bytes_min, "each element in and out"
    tile_m, tile_n = tile[:2]
    if tile_m is None or tile_n is None:
        return None, ""
    columns, rows = -(-problem.n // tile_n), -(-problem.m // tile_m)
    read_a = columns * problem.m * problem.k * problem.a.dtype.itemsize
    read_b = rows * problem.n * problem.k * problem.b.dtype.itemsize
    return read_a + read_b + problem.m * problem.n * problem.d.dtype.itemsize, f"tiles of {tile_m} x {tile_n}"
