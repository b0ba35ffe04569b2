"""Tiles counted in bytes, so that one config suits every element size: configs, refusals, launch and cost."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from typing import ClassVar

from gemmule.core.arch import Arch
from gemmule.core.dtype import opaque_dtype
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import Launch, Param, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import MAX_EXTENT, MAX_GRID, VECTOR_BYTES
from gemmule.core.spec import Config, Signature

ITEMSIZES = (1, 2, 4, 8, 16)
#: Lanes of a warp along the source's rows in a wide access: 128 bytes, or as much as the tile has.
LANES = 8
#: Bytes of the rows of a large matrix's tiles, at least.
LONG_ROW = 256
# Bytes of the shortest rows that are moved by wide accesses.
_WIDE = 64
#: Batch dimensions that one launch covers.
BATCH_DIMS = 3
_SECTOR = 32
# What `tile_cost` counts with, of an H200: bytes a second of a multiprocessor, among all and with one CTA alone, the
# time from the first read to the last write of a CTA, and what a multiprocessor holds at once.
_BYTES_A_SECOND, _BYTES_A_SECOND_ALONE, _LATENCY = 31e9, 50e9, 1.8e-6
_RESIDENT_BYTES, _RESIDENT_THREADS, _RESIDENT_CTAS = 220 << 10, 2048, 32
# Threads that it is fastest with, where the tile's rows are shorter than 256 bytes and where they are not, by the bytes
# of an element.
_FASTEST = {1: (256, 256), 2: (256, 256), 4: (128, 512), 8: (128, 256), 16: (64, 256)}
# Bytes of both matrices up to which launches were measured to be faster where they overlap.
_OVERLAPPING = 8 << 20
# Shared memory that a CTA of any architecture can have.
_MAX_SHARED = 99 * 1024


class TileConfig(Config):
    """Base of configs with `threads` and `group`: what launches of tiles need of them."""

    threads: int
    group: int

    from_zero: ClassVar[frozenset[str]] = frozenset({"group"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threads & (self.threads - 1) or not 32 <= self.threads <= 1024:
            raise ArgumentError(f"config {self}: threads must be a power of 2 from 32 to 1024")

    @abstractmethod
    def tile(self, itemsize: int) -> tuple[int, int]:
        """Return the tile's elements along the source's rows and along the target's."""

    @abstractmethod
    def tile_bytes(self, itemsize: int) -> int:
        """Return the bytes of the tile in shared memory."""

    def tiles(self, problem: TransposeProblem) -> tuple[int, int]:
        """Return the numbers of tiles along the source's rows and along the target's."""
        tile_i, tile_j = self.tile(problem.itemsize)
        return -(-problem.rows // tile_i), -(-problem.cols // tile_j)


@dataclasses.dataclass(frozen=True)
class ByteTileConfig(TileConfig):
    """Tile that a CTA moves, in bytes.

    Attributes
    ----------
    read_bytes, write_bytes : int
        Bytes of a row of the tile in the source and in the target: powers of 2 from 16. Below 64, rows are moved as
        narrow ones.
    threads : int
        Threads of a CTA.
    group : int
        Tiles that CTAs take along the target's rows before they go on along the source's; 0 takes whole rows of tiles
        of a single matrix, by a grid of two dimensions, and divides nothing.
    """

    read_bytes: int = 256
    write_bytes: int = 256
    threads: int = 256
    group: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        sides = (self.read_bytes, self.write_bytes)
        if any(side < VECTOR_BYTES or side & (side - 1) for side in sides):
            raise ArgumentError(f"config {self}: read_bytes and write_bytes must be powers of 2 from {VECTOR_BYTES}")

    @property
    def outputs(self) -> int:
        return self.read_bytes * self.write_bytes

    @property
    def is_wide(self) -> bool:
        """Whether wide accesses fit into the tile."""
        return min(self.read_bytes, self.write_bytes) >= _WIDE

    def tile(self, itemsize: int) -> tuple[int, int]:
        return self.read_bytes // itemsize, self.write_bytes // itemsize

    def tile_bytes(self, itemsize: int) -> int:
        return self.read_bytes * self.write_bytes // itemsize


def packed_rows(itemsize: int) -> int:
    """Return how many elements make a word of 32 bits, 1 for larger ones: so many rows a thread reads together."""
    return max(4 // itemsize, 1)


def why_not_tiles(problem: TransposeProblem, config: ByteTileConfig, shared_tiles: int = 1) -> str | None:
    """Say why tiles cannot be moved, or None where they can.

    Parameters
    ----------
    problem, config
        What is to be moved, in which tiles.
    shared_tiles : int
        Tiles that a CTA has in shared memory.
    """
    item = problem.itemsize
    if item not in ITEMSIZES:
        return f"elements of {item} bytes are not supported; the kernel moves 1, 2, 4, 8 or 16 bytes"
    if reason := why_not_touching(problem):
        return reason
    if problem.in_place and config.read_bytes != config.write_bytes:
        return "tiles that change places must be square"
    if item == VECTOR_BYTES and not rows_are_wide(problem):
        return "elements of 16 bytes must lie at multiples of 16 bytes"
    size = config.tile_bytes(item)
    if size // VECTOR_BYTES < config.threads * packed_rows(item) or config.threads * VECTOR_BYTES < config.write_bytes:
        return f"a tile of {size} bytes leaves some of {config.threads} threads without work"
    return why_not_launched(problem, config, shared_tiles)


def why_not_launched(problem: TransposeProblem, config: TileConfig, shared_tiles: int = 1) -> str | None:
    """Say why a launch cannot cover a problem with that many tiles in a CTA's shared memory, or None where it can."""
    if max(problem.rows, problem.cols, *problem.batch, 0) > MAX_EXTENT:
        return f"an extent of {(problem.rows, problem.cols, *problem.batch)} is more than {MAX_EXTENT}"
    size = shared_tiles * config.tile_bytes(problem.itemsize)
    if size > _MAX_SHARED:
        return f"the tiles take {size} bytes of shared memory, more than {_MAX_SHARED}"
    if config.group == 0 and (math.prod(problem.batch) > 1 or config.tiles(problem)[0] > MAX_GRID[1]):
        return f"group=0 takes one matrix of at most {MAX_GRID[1]} tiles along the source's rows"
    ctas = math.prod((*config.tiles(problem), *problem.batch))
    if ctas > MAX_GRID[0]:
        return f"the problem needs {ctas} CTAs, more than the {MAX_GRID[0]} of a launch"
    return None


def why_not_touching(problem: TransposeProblem) -> str | None:
    """Say how far neighbours are apart, or None where they touch along the source's columns and the target's rows."""
    apart, target = problem.source.row_stride, problem.target.col_stride
    if (apart, target) == (1, 1):
        return None
    return (
        f"neighbours are {apart} elements apart in the source and {target} in the target; this kernel takes matrices "
        "whose neighbours touch"
    )


def rows_are_wide(problem: TransposeProblem) -> bool:
    """Whether every row of both matrices begins and ends at a multiple of 16 bytes."""
    return rows_are_multiples(problem, VECTOR_BYTES)


def rows_are_multiples(problem: TransposeProblem, size: int) -> bool:
    """Whether every row of both matrices begins and ends at a multiple of `size` bytes."""
    source = problem.source
    return _rows_are_multiples(
        problem, source, source.col_stride, problem.cols, problem.rows, size
    ) and target_rows_are_multiples(problem, size)


def target_rows_are_multiples(problem: TransposeProblem, size: int) -> bool:
    """Whether every row of the target begins and ends at a multiple of `size` bytes."""
    target = problem.target
    return _rows_are_multiples(problem, target, target.row_stride, problem.rows, problem.cols, size)


def _rows_are_multiples(
    problem: TransposeProblem, matrix: StridedMatrix, lead: int, rows: int, length: int, size: int
) -> bool:
    item = problem.itemsize
    strides = [lead] if rows > 1 else []
    strides += [s for s, extent in zip(matrix.batch_strides, problem.batch, strict=True) if extent > 1]
    steps = [matrix.alignment, length * item, *(s * item for s in strides)]
    return all(step % size == 0 for step in steps)


def tile_signature(problem: TransposeProblem, config: ByteTileConfig) -> Signature:
    """Specialise for the element size, and for rows of whole 16 bytes (``wide``) or of anything else (``narrow``)."""
    return _signature(problem.itemsize, config.is_wide and rows_are_wide(problem))


def _signature(itemsize: int, wide: bool) -> Signature:
    return (("element", opaque_dtype(itemsize).name), ("rows", "wide" if wide else "narrow"))


def tile_signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every specialisation."""
    del arch
    return tuple(_signature(size, wide) for size in ITEMSIZES for wide in (True, False))


def tile_params(problem: TransposeProblem) -> tuple[Param, ...]:
    """Return the parameters: source and target as (rows, cols, three batch extents); unit strides are compiled in."""
    missing = BATCH_DIMS - len(problem.batch)
    shape = (problem.rows, problem.cols, *problem.batch, *(1,) * missing)
    source, target = problem.source, problem.target
    return (
        TensorParam("a", shape, (source.col_stride, *source.batch_strides, *(0,) * missing)),
        TensorParam("d", shape, (target.row_stride, *target.batch_strides, *(0,) * missing)),
    )


def tile_launch(problem: TransposeProblem, config: TileConfig) -> Launch:
    """Return the launch recipe: one CTA for each tile."""
    along_source, along_target = config.tiles(problem)
    grid = (along_target, along_source, 1)
    if config.group:
        grid = (math.prod((along_target, along_source, *problem.batch)), 1, 1)
    return Launch(
        grid=grid,
        block=(config.threads, 1, 1),
        shared_bytes=config.tile_bytes(problem.itemsize),
        params=tile_params(problem),
        overlaps=launches_overlap(problem),
    )


def launches_overlap(problem: TransposeProblem) -> bool:
    """Whether a launch may begin while the one in front of it ends."""
    return problem.bytes_min <= _OVERLAPPING


def tile_cost(problem: TransposeProblem, config: ByteTileConfig, multiprocessors: int) -> float:
    """Return roughly the seconds that tiles of a config take.

    What passes between the L2 cache and the multiprocessors, in whole sectors; what the threads do, those outside of
    the matrix too; and how long it takes until the last CTA, which waits for its reads, is through.
    """
    item = problem.itemsize
    tile_i, tile_j = config.tile(item)
    batch = math.prod(problem.batch)
    wide = config.is_wide and rows_are_wide(problem)

    def sectors(length: int, tile: int) -> int:
        """Sectors of a row of the matrix, cut into rows of tiles."""
        whole, rest = divmod(length, tile)
        # A row that begins anywhere straddles one sector more than it fills.
        straddled = 0 if wide else 1
        cut = -(-rest * item // _SECTOR) + straddled if rest else 0
        return whole * (-(-tile * item // _SECTOR) + straddled) + cut

    moved = (
        _SECTOR * batch * (problem.cols * sectors(problem.rows, tile_i) + problem.rows * sectors(problem.cols, tile_j))
    )
    ctas = math.prod(config.tiles(problem)) * batch
    size = config.tile_bytes(item)
    work = (0.3 if wide else 0.5 + 0.2 * packed_rows(item)) * 2 * size * ctas
    resident = min(_RESIDENT_BYTES // size, _RESIDENT_THREADS // config.threads, _RESIDENT_CTAS)
    waves = -(-ctas // (multiprocessors * max(resident, 1)))
    # Of equals the grid of two dimensions, and the threads that were fastest.
    preferred = 1.0 if config.group == 0 else 1.02
    if config.threads != _FASTEST[item][min(config.read_bytes, config.write_bytes) >= LONG_ROW]:
        preferred *= 1.01
    return preferred * max(
        max(moved, work) / (multiprocessors * _BYTES_A_SECOND), waves * (_LATENCY + 2 * size / _BYTES_A_SECOND_ALONE)
    )
