"""A few small problems that stand for a large one, and the memory that they need.

CTAs of one kind do the same work, and a k-tile costs what every other does. So each count is linear in the number
of whole tiles along M and along N, and in the number of k-tiles, as long as what is left over at the edges stays the
same: a count at two sizes gives it for all. The arithmetic is in whole numbers.

Extents shrink by multiples of a period only, the least common multiple of the CTA's tile (along K, of its pipeline)
and of a line of 128 bytes; the distances between rows keep their place within a line. So every request of a small
problem touches as many sectors and lines as its twin in the large one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gemmule.core.config import Config
from gemmule.core.dtype import DType, Kind
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, Problem, TransposeProblem
from gemmule.core.spec import KernelSpec
from gemmule.kernels.hopper.tile_config import K_BYTES

_LINE = 128
# Extents of a tile are looked for up to here.
_LARGEST_TILE = 1 << 14
# Loops over K are unrolled by divisors of this.
_UNROLLED = 32


@dataclasses.dataclass(frozen=True)
class Sample:
    """A small problem, and how often its counts are added."""

    problem: Problem  #: The problem.
    weight: int  #: Factor of everything that a launch does.
    #: Factor of what one warp does, which does not depend on M and N; 0 for all but the first M and N.
    depth_weight: int
    ctas: int | None = None  #: CTAs that it is run by, where not those of its launch recipe.


def extents(problem: Problem) -> tuple[int, ...]:
    """Return M, N and K of a product; of a transpose its batch, M and N, for M rows of N elements in memory."""
    if isinstance(problem, GemmProblem):
        return (problem.m, problem.n, problem.k)
    return (*problem.batch, problem.cols, problem.rows)


def samples(spec: KernelSpec, config: Config, problem: Problem) -> tuple[Sample, ...]:
    """Return the problems to be counted: one, where nothing is saved by less."""
    line = _LINE // min(matrix.dtype.itemsize for matrix in problem.operands().values())
    if isinstance(problem, TransposeProblem) and problem.in_place:
        return _squares(spec, config, problem, line)
    axes = []
    has_k, matrices = isinstance(problem, GemmProblem), len(problem.batch)
    for axis, (extent, tile) in enumerate(zip(extents(problem), _tiles(spec, config, problem), strict=True)):
        if has_k and axis == 2:
            depth, least = pipeline_depth(config, problem)
            axes.append(_points(extent, math.lcm(depth, line, _UNROLLED), least, proportional=False))
        elif tile is None:
            axes.append([(extent, 1)])
        else:
            period = _alike_matrices(problem, line) if axis < matrices else line
            axes.append(_points(extent, math.lcm(tile.side, period), 0, proportional=tile.first == tile.side))
    found = []
    for points in itertools.product(*axes):
        weight = math.prod(factor for _, factor in points)
        tiled = slice(2) if has_k else slice(None)
        first = all(point == axis[0] for point, axis in zip(points[tiled], axes[tiled], strict=True))
        depth_weight = (points[2][1] if has_k else 1) if first else 0
        found.append(Sample(resized(problem, tuple(extent for extent, _ in points)), weight, depth_weight))
    return tuple(found)


def _alike_matrices(problem: Problem, line: int) -> int:
    """Return the period, in matrices of a batch, of the operands' places in lines of memory."""
    steps = (step for matrix in problem.operands().values() for step in matrix.batch_strides)
    return math.lcm(*(line // math.gcd(line, step) for step in steps))


def unfolded(spec: KernelSpec, config: Config, problem: Problem) -> int | None:
    """Return the CTAs that a launch would have if each computed one tile; None if the grid does not determine it."""
    m, n, *k = extents(problem)
    side_m, side_n = tile_of(spec, config, problem)[:2]
    if side_m is None or side_n is None:
        return None
    one = math.prod(spec.launch(resized(problem, (1, 1, *k)), config).grid)
    return one * -(-m // side_m) * -(-n // side_n)


def starts(spec: KernelSpec, config: Config, problem: Problem, spared: int, cluster: int) -> tuple[Sample, ...]:
    """Return samples that take off what CTAs do once, where they stay and `spared` clusters are spared.

    Samples have a CTA for every tile. Two tiles by two clusters cost one start more than by one cluster.
    """
    m, n, k = extents(problem)
    side_m, side_n = tile_of(spec, config, problem)[:2]
    assert side_m is not None
    assert side_n is not None
    depth, least = pipeline_depth(config, problem)
    deep = min(k, k % depth + -(-least // depth) * depth)
    two = (min(2 * side_m, m), side_n, deep) if m > side_m else (side_m, min(2 * side_n, n), deep)
    pair = resized(problem, (min(two[0], m), min(two[1], n), deep))
    return (Sample(pair, -spared, 0, 2 * cluster), Sample(pair, spared, 0, cluster))


def _squares(spec: KernelSpec, config: Config, problem: TransposeProblem, line: int) -> tuple[Sample, ...]:
    """Return squares that stand for a large one whose tiles are taken in pairs.

    Counts are of the second degree in the number of tiles, and an odd number may leave a CTA without a pair: three
    squares, two tiles apart, give all.
    """
    side, extent = tile_of(spec, config, problem)[0], problem.rows
    period = math.lcm(2 * side, line) if side is not None else extent
    whole, rest = divmod(extent, period)
    if whole <= 3:
        return (Sample(problem, 1, 1),)
    steps = whole - 1
    pairs = steps * (steps - 1) // 2
    weights = (1 - steps + pairs, steps - 2 * pairs, pairs)
    return tuple(
        Sample(resized(problem, (edge, edge)), weight, 1 if number == 0 else 0)
        for number, weight in enumerate(weights)
        for edge in (rest + (number + 1) * period,)
    )


def _points(extent: int, period: int, least: int, *, proportional: bool) -> list[tuple[int, int]]:
    """Return extents and factors whose sum stands for `extent`.

    Where `proportional`, whole periods without a rest cost nothing else: one of them is enough.
    """
    whole, rest = divmod(extent, period)
    if proportional and rest == 0 and whole:
        return [(period, whole)]
    first = max(1, -(-(least - rest) // period))
    if whole <= first + 1:
        return [(extent, 1)]
    low = rest + first * period
    return [(low, 1 - (whole - first)), (low + period, whole - first)]


def pipeline_depth(config: Config, problem: Problem) -> tuple[int, int]:
    """Return the period along K, and the least K at which every part of the pipeline runs.

    CTAs of a cluster along K share the k-tiles, so that a period adds as many to each.
    """
    fields = config.as_dict()
    # Rounds of several k-tiles alternate between two halves of the stages.
    stages = fields.get("stages", 2 * fields.get("k_tiles", 1))
    depth = k_tile_depth(config, problem) * fields.get("cluster_k", 1)
    return depth * stages, depth * (stages + 1)


def k_tile_depth(config: Config, problem: Problem) -> int:
    """Return how far the k-tiles extend along K that a CTA takes one after the other."""
    fields, itemsize = config.as_dict(), problem.operands()["a"].dtype.itemsize
    # A load into a stage is as deep as the rows of its swizzle.
    bytes_of_k = K_BYTES if "stages" in fields or "k_tiles" in fields else itemsize
    return fields.get("tile_k") or fields.get("side") or fields.get("k_bytes", bytes_of_k) // itemsize


@dataclasses.dataclass(frozen=True)
class _Tile:
    """Extent of a grid's tiles along an axis."""

    first: int  #: The first tile: shorter where tiles begin at aligned addresses, and the matrix anywhere.
    side: int  #: Every other tile.


def tile_of(spec: KernelSpec, config: Config, problem: Problem) -> tuple[int | None, ...]:
    """Return how far the tile of a CTA, or of a cluster, extends along each axis but K, read off the launch recipe.

    None if the grid does not determine it.
    """
    return tuple(tile.side if tile is not None else None for tile in _tiles(spec, config, problem))


def _tiles(spec: KernelSpec, config: Config, problem: Problem) -> tuple[_Tile | None, ...]:
    whole, has_k = extents(problem), isinstance(problem, GemmProblem)
    square = isinstance(problem, TransposeProblem) and problem.in_place

    def ctas_along(axis: int) -> Callable[[int], int]:
        def ctas(extent: int) -> int:
            sides = tuple(extent if square or axis == other else 1 for other in range(len(whole)))
            return math.prod(spec.launch(resized(problem, sides), config).grid)

        return ctas

    return tuple(None if has_k and axis == 2 else _tile(ctas_along(axis)) for axis in range(len(whole)))


def _tile(ctas: Callable[[int], int]) -> _Tile | None:
    """Return the tile by the extents at which the grid grows for the first and for the second time."""
    first = _last_alike(ctas, 1)
    if first is None:
        return None
    # The grid of persistent CTAs may grow no further.
    second = _last_alike(ctas, first + 1) or 2 * first
    return _Tile(first, second - first)


def _last_alike(ctas: Callable[[int], int], extent: int) -> int | None:
    """Return the largest extent for which there are as many CTAs as for `extent`; None where none is found."""
    count, step = ctas(extent), 1
    while ctas(extent + step) == count:
        step *= 2
        if step > _LARGEST_TILE:
            return None
    low, high = extent + step // 2, extent + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if ctas(middle) == count else (low, middle)
    return low


def resized(problem: Problem, sides: tuple[int, ...]) -> Problem:
    """Return the problem with other extents, no larger, and rows as close as their place in a line allows."""
    if isinstance(problem, TransposeProblem):
        *batch, cols, rows = sides
        return dataclasses.replace(
            problem,
            rows=rows,
            cols=cols,
            batch=tuple(batch),
            source=_cut(problem.source, rows, cols),
            target=_cut(problem.target, rows, cols),
        )
    m, n, k = sides
    return dataclasses.replace(
        problem,
        m=m,
        n=n,
        k=k,
        a=_cut(problem.a, m, k),
        b=_cut(problem.b, k, n),
        c=_cut(problem.c, m, n) if problem.c is not None else None,
        d=_cut(problem.d, m, n),
    )


def _cut(matrix: StridedMatrix, rows: int, cols: int) -> StridedMatrix:
    in_rows = matrix.col_stride == 1
    lead = _closer(matrix.row_stride if in_rows else matrix.col_stride, cols if in_rows else rows, matrix.dtype)
    lines = rows if in_rows else cols
    batch = tuple(_closer(step, lines * lead, matrix.dtype) for step in matrix.batch_strides)
    strides: dict[str, Any] = {"row_stride" if in_rows else "col_stride": lead, "batch_strides": batch}
    return dataclasses.replace(matrix, rows=rows, cols=cols, **strides)


def _closer(lead: int, extent: int, dtype: DType) -> int:
    line = _LINE // dtype.itemsize
    least = extent + line
    return lead if lead <= least else least + (lead - least) % line


def buffers(problem: Problem, seed: int) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """Return random memory for the operands, each as long as its extents and strides span."""
    rng = np.random.default_rng(seed)
    if isinstance(problem, TransposeProblem) and problem.in_place:
        memory = _random(rng, spanned(problem.source), problem.source.dtype)
        return {"a": memory, "d": memory}
    found = {}
    for name, matrix in problem.operands().items():
        further = sum((count - 1) * step for count, step in zip(problem.batch, matrix.batch_strides, strict=True))
        found[name] = _random(rng, spanned(matrix) + further, matrix.dtype)
    return found


def spanned(matrix: StridedMatrix) -> int:
    """Return the elements from the first of a matrix to its last."""
    return (matrix.rows - 1) * matrix.row_stride + (matrix.cols - 1) * matrix.col_stride + 1


def _random(rng: np.random.Generator, size: int, dtype: DType) -> np.ndarray[Any, np.dtype[Any]]:
    if dtype.kind is Kind.INTEGER:
        return rng.integers(0, 256, size * dtype.itemsize, np.uint8).view(dtype.numpy())
    return rng.standard_normal(size, np.float32).astype(dtype.numpy())
