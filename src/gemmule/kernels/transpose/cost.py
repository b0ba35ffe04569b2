"""Predicted times of transposes in tiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gemmule.core.config import Config
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.problem import TransposeProblem

from .refusals import rows_are_aligned
from .skinny.config import SkinnyConfig, structures_side
from .tile_config import LONG_ROW, SECTOR, WARP, WORD, ByteTileConfig, SectorTileConfig, packed_rows

# Limits of an SM of an H200: bytes of shared memory, threads and CTAs.
_RESIDENT_BYTES, _RESIDENT_THREADS, _RESIDENT_CTAS = 220 << 10, 2048, 32
# Byte tiles on an H200: bytes a second of an SM, with many CTAs and with one alone, and seconds from the first read to
# the last write of a CTA.
_BYTES_A_SECOND, _BYTES_A_SECOND_ALONE, _LATENCY = 31e9, 50e9, 1.8e-6
# Threads that were fastest, where the tile's rows are shorter than 256 bytes and where they are not, by the bytes of an
# element.
_FASTEST_THREADS = {1: (256, 256), 2: (256, 256), 4: (128, 512), 8: (128, 256), 16: (64, 256)}
# Factor of tiles, and microseconds of a launch.
_SLOWER, _LAUNCH = 1.05, 1.5
# Seconds of an H100's SM for each CTA of byte tiles at least.
_CTA = 0.15e-6
# The same of an H200's for tiles in groups, whose places are divided.
_CTA_OF_GROUPS = 0.3e-6
# Elements of tiles along the source's rows, as a share of the matrix's, from which on others are faster, and a factor.
_EDGE, _WASTED = 1.2, 1.04
# Spans on an H200: bytes a second of an SM, with many CTAs and with one alone; seconds from the first read to the last
# write of a CTA.
_SPAN_BYTES_A_SECOND, _SPAN_BYTES_A_SECOND_ALONE, _SPAN_LATENCY = 29e9, 28e9, 2.4e-6
# Seconds of an SM for the instructions of a warp, and of each unit of its threads; units of a thread beyond which its
# loads wait for others, and what each costs: where elements are woven, and where they are gathered.
_SPAN_WORK = {True: (0.028e-6, 0.003e-6, 10, 0.062), False: (0.016e-6, 0.0015e-6, 0, 0.0)}
# Addition for woven spans at both ends of the rows of a batch, as a share of spans inside.
_ENDS = 0.9
# Few threads of a CTA, and their factor.
_FEW_THREADS, _OF_FEW = 128, 1.02
# Factor of words whose structures, moved at once, fill whole sectors, but for small matrices of 1-byte elements: breaks
# ties.
_OF_WHOLE = 0.999
# Sector tiles on an H200: bytes a second of an SM, seconds of a CTA for its first words and for each word of a thread,
# and the share of repeated reads that reaches memory.
_SECTOR_BYTES_A_SECOND, _FIRST_WORDS, _REPEATED = 34e9, 0.6e-6, 0.2
_A_WORD = {1: 60e-9, 2: 30e-9, 4: 10e-9, 8: 10e-9}
# Spans and bytes of a row of the tiles that were fastest for large matrices, where the sum alone does not say so.
_FASTEST_TILES = {1: (2, 128), 8: (2, 128)}
# Bytes of a source's rows of which groups of tiles were faster, and of both matrices from which on; bytes of a target's
# row that is too short.
_SHORT_ROWS, _GROUPED, _LEAST_WRITTEN = (1 << 10, 8 << 10), 16 << 20, 128
# Bytes of the shortest such rows of 1-byte elements.
_SHORTEST_BYTES = 200
# Bytes that tiles along a target's row move before the next ones of the source's rows: of more the L2 cache has no
# sector left that both need, and the share of repeated reads is this.
_SWEPT, _REPEATED_SWEPT = 18 << 20, 2.0
_SECTOR_RESIDENT_THREADS = {1: 1024, 2: 1536, 4: 2048, 8: 2048}


class _TileUse(NamedTuple):
    """Further quantities of a tile's config."""

    config: int  #: Its number.
    at_once: int  #: CTAs of a GPU.
    preferred: float  #: Factor that orders configs of equal time.
    started: float  #: Seconds of an SM for each CTA at least.


class _Tile(NamedTuple):
    """Quantities of a tile for every transpose of elements of a size."""

    #: rows, cols: Elements of the tile's rows in the source and in the target.
    rows: int
    cols: int
    straddled: int  #: Sectors that a row of the tile touches beyond those that it fills.
    work: float  #: Instructions of a CTA's threads, as sectors.
    alone: float  #: Seconds of a CTA.
    uses: tuple[_TileUse, ...] = ()  #: Configs with this tile.


def tile_costs(problem: TransposeProblem, configs: Sequence[ByteTileConfig], gpu: GpuRates) -> list[float]:
    """Return about the microseconds that byte tiles of each config take.

    The larger of two: the sectors between the L2 cache and the SMs, or the instructions of all threads, those outside
    of the matrix too; and the waves of CTAs, each of which waits for its reads.
    """
    return [_launched(seconds) for seconds in total_tile_costs((problem,), configs, gpu)]


def _launched(seconds: float) -> float:
    """Return about the microseconds of a launch, from the sum of its CTAs' seconds."""
    return _SLOWER * 1e6 * seconds + _LAUNCH


def least_seconds(nbytes: int, gpu: GpuRates) -> float:
    """Return the seconds that byte tiles take at least, which read and write so many bytes."""
    return 2 * nbytes / (gpu.multiprocessors * _BYTES_A_SECOND)


def total_tile_costs(
    problems: Sequence[TransposeProblem], configs: Sequence[ByteTileConfig], gpu: GpuRates
) -> list[float]:
    """Return about the seconds that transposes take, one after another."""
    every = [
        _seconds(
            configs,
            (one.rows, one.cols),
            math.prod(one.batch),
            one.itemsize,
            rows_are_aligned(one),
            gpu.multiprocessors,
        )
        for one in problems
    ]
    return every[0] if len(every) == 1 else list(map(sum, zip(*every, strict=True)))


# Cached, as the weights of a model meet many activations.
@cache_for_configs
def _seconds(
    configs: Sequence[ByteTileConfig],
    extents: tuple[int, int],
    batch: int,
    item: int,
    aligned: bool,
    multiprocessors: int,
) -> list[float]:
    """Return about the seconds that a transpose takes by each config."""
    (rows, cols), found = extents, [0.0] * len(configs)
    moved_at_once = multiprocessors * _BYTES_A_SECOND / SECTOR
    # For so few configs, plain numbers are faster than NumPy, and ifs faster than `max`.
    for (unit_rows, unit_cols), tiles in _tiles(configs, item, aligned, multiprocessors):
        filled = -(-rows // unit_rows) * cols + -(-cols // unit_cols) * rows
        for tile_rows, tile_cols, straddled, work, alone, uses in tiles:
            tiles_rows, tiles_cols = -(-rows // tile_rows), -(-cols // tile_cols)
            moved = (filled + straddled * (tiles_rows * cols + tiles_cols * rows)) * batch
            ctas = tiles_rows * tiles_cols * batch
            together, instructions = moved / moved_at_once, work * ctas / moved_at_once
            if instructions > together:
                together = instructions
            of_each = ctas / multiprocessors
            # Lanes that read beyond the edge of many small matrices.
            wasted = _WASTED if batch > 1 and rows > tile_rows and tiles_rows * tile_rows > _EDGE * rows else 1.0
            for number, at_once, preferred, started in uses:
                seconds = -(-ctas // at_once) * alone
                if together > seconds:
                    seconds = together
                if started * of_each > seconds:
                    seconds = started * of_each
                found[number] = preferred * wasted * seconds
    return found


@cache_for_configs
def _tiles(
    configs: Sequence[ByteTileConfig], item: int, aligned: bool, multiprocessors: int
) -> list[tuple[tuple[int, int], list[_Tile]]]:
    """Return the tiles of configs, where rows are aligned or not, by elements of a sector or a tile's shorter row."""
    uses: dict[_Tile, list[_TileUse]] = {}
    for number, config in enumerate(configs):
        tile = _tile(config, item, aligned and config.is_wide)
        uses.setdefault(tile, []).append(_use(number, config, item, multiprocessors))
    units: dict[tuple[int, int], list[_Tile]] = {}
    for tile, of_tile in uses.items():
        unit = min(tile.rows, SECTOR // item), min(tile.cols, SECTOR // item)
        units.setdefault(unit, []).append(tile._replace(uses=tuple(of_tile)))
    return list(units.items())


def _tile(config: ByteTileConfig, item: int, wide: bool) -> _Tile:
    (rows, cols), size = config.tile(item), config.tile_bytes(item)
    return _Tile(
        rows,
        cols,
        straddled=0 if wide else 1,
        work=(0.3 if wide else 0.5 + 0.2 * packed_rows(item)) * 2 * size / SECTOR,
        alone=_LATENCY + 2 * size / _BYTES_A_SECOND_ALONE,
    )


def _use(number: int, config: ByteTileConfig, item: int, multiprocessors: int) -> _TileUse:
    threads, size = config.threads, config.tile_bytes(item)
    resident = min(_RESIDENT_BYTES // size, _RESIDENT_THREADS // threads, _RESIDENT_CTAS)
    fastest = _FASTEST_THREADS[item][min(config.read_bytes, config.write_bytes) >= LONG_ROW]
    # The grid of two dimensions, and the threads that were fastest.
    preferred = (1.0 if config.group == 0 else 1.02) * (1.0 if threads == fastest else 1.01)
    return _TileUse(number, max(resident, 1) * multiprocessors, preferred, _CTA_OF_GROUPS if config.group else _CTA)


def sector_cost(problem: TransposeProblem, config: SectorTileConfig, gpu: GpuRates) -> float:
    """Return about the microseconds that sector tiles of a config take: their bytes, or the CTAs' latencies."""
    item = problem.itemsize
    ctas = math.prod((*config.tiles(problem), *problem.batch))
    row = config.columns(item) * max(item, WORD)
    # Rows of the source straddle a sector more than they fill, and a sector of the target's is read by two tiles.
    repeated = (1 + SECTOR / row) * (1 + SECTOR / config.write_bytes) - 1
    is_swept = (
        config.group == 0 and config.tiles(problem)[0] > 1 and min(2 * problem.cols * row, problem.bytes_min) > _SWEPT
    )
    sides = 2 + (_REPEATED_SWEPT if is_swept else _REPEATED) * repeated
    moved = ctas * config.tile(item)[0] * config.write_bytes * sides
    words = packed_rows(item) * config.held(item) * config.spans / (config.threads // WARP)
    alone = _FIRST_WORDS + _A_WORD[item] * words
    resident = min(
        _RESIDENT_BYTES // config.tile_bytes(item), _SECTOR_RESIDENT_THREADS[item] // config.threads, _RESIDENT_CTAS
    )
    waves = -(-ctas // (gpu.multiprocessors * max(resident, 1)))
    # All of a source's short rows are read by CTAs of a few groups.
    shortest = _SHORTEST_BYTES if item == 1 else _SHORT_ROWS[0]
    in_groups = shortest <= problem.rows * item <= _SHORT_ROWS[1] and problem.bytes_min > _GROUPED
    preferred = 1.0 if (config.group != 0) == in_groups else 1.02
    if config.write_bytes < _LEAST_WRITTEN and (item > 1 or problem.bytes_min > _GROUPED):
        preferred *= 1.1
    if item in _FASTEST_TILES and (config.spans, config.write_bytes) != _FASTEST_TILES[item]:
        preferred *= 1.02
    seconds = max(moved / (gpu.multiprocessors * _SECTOR_BYTES_A_SECOND), waves * alone) + alone / 2
    return _launched(preferred * seconds)


def skinny_cost(problem: TransposeProblem, config: SkinnyConfig, gpu: GpuRates) -> float:
    """Return about the microseconds that spans of a config take: bytes or instructions, or the CTAs' latencies."""
    item, short = problem.itemsize, min(problem.rows, problem.cols)
    ctas = math.prod(config.grid(problem))
    # A span is read with the sectors around it, which adjacent CTAs read too.
    moved = short * (2 * config.span(item) * item + (1 + _REPEATED) * 2 * SECTOR)
    units = config.units(short, item)
    woven = structures_side(problem) == "target" and config.weaves(short, item)
    of_warp, of_unit, many, waiting = _SPAN_WORK[woven]
    instructions = config.threads // WARP * (of_warp + units * of_unit)
    resident = min(
        _RESIDENT_BYTES // config.span_shared_bytes(problem), _RESIDENT_THREADS // config.threads, _RESIDENT_CTAS
    )
    alone = _SPAN_LATENCY + moved / _SPAN_BYTES_A_SECOND_ALONE
    of_sm = max(instructions, moved / _SPAN_BYTES_A_SECOND, alone / max(resident, 1))
    preferred = (1 + waiting * max(units - many, 0)) * (_OF_FEW if config.threads == _FEW_THREADS else 1.0)
    if woven and problem.batch:
        preferred *= 1 + _ENDS * min(2 / max(config.tiles(problem)), 1.0)
    fills = not woven and config.step(short, item) * config.unit(item) % SECTOR == 0
    if fills and (item > 1 or problem.bytes_min > _GROUPED):
        preferred *= _OF_WHOLE
    # The first CTAs only read, and the last ones only write.
    return 1e6 * preferred * (ctas / gpu.multiprocessors * of_sm + alone)


def measured_cost(fastest: Mapping[int, Config], problem: TransposeProblem, config: Config, gpu: GpuRates) -> float:
    """Return 0 for the config that was measured to be the fastest for a size of elements, and 1 for others."""
    del gpu
    return 0.0 if config == fastest[problem.itemsize] else 1.0
