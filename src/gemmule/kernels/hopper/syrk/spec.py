"""The symmetric product of a matrix and its own transpose: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, DType, accumulator
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import ExtentsParam, Launch, Param, TensorParam
from gemmule.core.problem import GemmProblem, split_batch
from gemmule.core.remembered import remembered
from gemmule.core.row_major import row_result
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.hopper.cost.operation import operation_of
from gemmule.kernels.hopper.cost.times import times_us
from gemmule.kernels.hopper.gemm import spec as production
from gemmule.kernels.hopper.gemm.spec import ProductionConfig
from gemmule.kernels.hopper.gemm_unaligned import spec as ragged
from gemmule.kernels.hopper.gemm_unaligned.spec import RaggedResultConfig
from gemmule.kernels.hopper.tma_tiles import BOX_COLS, BOX_ROWS, SLICE_BYTES, why_not_copied, why_not_written
from gemmule.kernels.ladder.hopper_rungs import CONSUMERS

DTYPES = (BFLOAT16, FLOAT16, FLOAT32)
#: Shared memory of a CTA, and pairs of boxes that a warpgroup has of it where there is enough.
_MOST_SHARED, _PAIRS = 227 << 10, (2, 1)
#: Tiles that 32-bit numbers count, and those of a wave beyond.
_MOST_TILES = 1 << 30
#: Multiprocessors for which the other kernel's time is predicted.
_MULTIPROCESSORS = 132
#: Of the time of other kernels what this one must be expected to need: predictions are off by so much.
_EXPECTED = 0.92
#: How much longer tiles take in several waves for each 64 columns beyond 128: between what was measured on an H200.
_WIDER = 0.08
#: How often a tile is written, and what that is where threads write it: so much longer than the copy engine.
_WRITES, _THREADS_WRITE = 2.0, 5.4
#: Bytes of a line of a box and the gap behind it, where threads write it.
_LINE_BYTES = 144


@dataclasses.dataclass(frozen=True)
class SymmetricConfig(ProductionConfig):
    """Tile of the result, stages, the cluster, and how the two warpgroups that multiply share the work.

    Attributes
    ----------
    tile_m, tile_n, stages, pingpong, cluster_m, cluster_n, cluster_k, group, ctas : int
        As of `ProductionConfig`; a group has whole multiples of the rows of tiles that are a number of columns high.
    swapped, stream_k : int
        0: the transpose is the same product, and sums are not left to other clusters.
    """

    tile_m: int = 128
    tile_n: int = 128
    stages: int = 6
    pingpong: int = 1
    cluster_m: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.swapped or self.stream_k:
            raise ArgumentError(f"config {self}: swapped and stream_k must be 0")

    def buffers(self, itemsize: int, factors: int = 1) -> int:
        """Return how many boxes a warpgroup has in shared memory, one of each pair for the mirror image."""
        count = self.blocks * self.tile_n // (self.cluster_k * self.box_n(itemsize, factors))
        box = BOX_ROWS * self.box_n(itemsize, factors) * itemsize
        room = _MOST_SHARED - self.bytes_beside_boxes
        return 2 * next((some for some in _PAIRS if count % some == 0 and CONSUMERS * 2 * some * box <= room), 1)

    @property
    def holds_lines(self) -> bool:
        """Whether there is shared memory for the lines that threads write: of a box and of its mirror image."""
        return _MOST_SHARED - self.bytes_beside_boxes >= CONSUMERS * 2 * BOX_ROWS * _LINE_BYTES

    def _boxes_bytes(self, factors: int) -> int:
        boxes = super()._boxes_bytes(factors)
        return max(boxes, 2 * BOX_ROWS * _LINE_BYTES) if self.holds_lines else boxes

    def tiles(self, m: int, batch: int) -> int:
        """Return how many tiles of whole clusters reach to the diagonal or below it."""
        rows, cols = self.tile_m * self.cluster_m, self.tile_n * self.cluster_n
        return batch * sum((min(row + rows, m) - 1) // cols + 1 for row in range(0, m, rows))


def why_not(problem: GemmProblem, arch: Arch, config: SymmetricConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    if reason := refuses(problem, arch):
        return reason
    if config.tiles(problem.m, (problem.batch or (1,))[0]) > _MOST_TILES:
        return f"config {config}: the result has more than {_MOST_TILES} tiles, which 32-bit numbers count"
    if not _by_threads(problem):
        return production.why_not(problem, arch, config)
    if config.box_n(problem.d.dtype.itemsize) < BOX_COLS or config.cluster > 1:
        return f"config {config}: threads write boxes of {BOX_COLS} columns, without clusters"
    if not config.holds_lines:
        return f"config {config}: there is no shared memory for the lines that threads write"
    return None


@remembered
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    if not problem.own_transpose:
        return "B is not A transposed, in the same memory: the result need not be symmetric"
    if problem.c is not None:
        return "C is added, so that the result need not be symmetric"
    if problem.a.dtype not in DTYPES or problem.d.dtype not in (problem.a.dtype, FLOAT32):
        types = ", ".join(map(str, DTYPES))
        return (
            f"A is {problem.a.dtype} and the output {problem.d.dtype}; this kernel takes {types}, for it or {FLOAT32}"
        )
    if _by_threads(problem):
        return ragged.refuses(problem, arch)
    return production.refuses(problem, arch)


@remembered
def _by_threads(problem: GemmProblem) -> bool:
    """Whether the result lies where the copy engine cannot write it."""
    oriented, _, _ = row_result(split_batch(problem, SPEC.batch_dims)[0])
    return bool(why_not_copied("d", oriented.d, oriented.batch) or why_not_written(oriented.d))


def signature(problem: GemmProblem, config: SymmetricConfig) -> Signature:
    """Specialise for the types, and the direction in which A is contiguous."""
    del config
    oriented, _, _ = row_result(problem)
    along = "k" if oriented.a.lies_in_rows else "m"
    return _signature(problem.a.dtype, problem.d.dtype, along, "threads" if _by_threads(problem) else "boxes")


def _signature(element: DType, out: DType, along: str, written: str) -> Signature:
    return (
        ("a", element.name),
        ("b", element.name),
        ("c", out.name),
        ("d", out.name),
        ("acc", accumulator(element, element).name),
        ("a_along", along),
        ("b_along", {"k": "k", "m": "n"}[along]),
        ("adds", "no"),
        ("written", written),
    )


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every combination."""
    del arch
    kinds = [(out, along, "boxes") for out in (None, FLOAT32) for along in "km"] + [(None, "k", "threads")]
    halves = tuple(_signature(element, out or element, *rest) for element in DTYPES[:2] for out, *rest in kinds)
    return (*halves, _signature(FLOAT32, FLOAT32, "k", "boxes"))


def launch(problem: GemmProblem, config: SymmetricConfig) -> Launch:
    """Return the launch recipe: that of the production kernel, its D in columns too, where that has C."""
    plain = production.launch(problem, config)
    oriented, _, _ = row_result(problem)
    batch, d = (problem.batch or (1,))[0], oriented.d
    clusters = min(config.tiles(problem.m, batch), config.clusters)
    if _by_threads(problem):
        written: tuple[Param, ...] = (
            TensorParam("d", (d.rows, d.cols, batch), (d.row_stride, *(d.batch_strides or (0,)))),
        )
    else:
        item = d.dtype.itemsize
        box = (SLICE_BYTES // item, config.box_n(item))
        mirrored = production.map_of("d", d, batch, box, SLICE_BYTES)
        written = (mirrored, ExtentsParam("d", (d.cols, d.rows, batch)), *plain.params[6:8])
    params = (*plain.params[:4], *written, *plain.params[8:])
    return dataclasses.replace(plain, grid=(clusters * config.cluster, 1, 1), params=params)


def costs(problem: GemmProblem, configs: Sequence[SymmetricConfig], multiprocessors: int) -> list[float]:
    """Return roughly the times in microseconds: those of the production kernel, with fewer tiles, written twice."""
    one = operation_of(problem)
    tiles = [config.tiles(problem.m, one.batch) for config in configs]
    writes = _THREADS_WRITE if _by_threads(problem) else _WRITES
    times = times_us(one._replace(tiles=tiles, writes=writes), configs, multiprocessors)
    return [time * _wider(config, count) for time, config, count in zip(times, configs, tiles, strict=True)]


def _wider(config: SymmetricConfig, tiles: int) -> float:
    """Return how much longer tiles of several waves take than is predicted for the production kernel's."""
    return 1 + _WIDER * max(config.tile_n - 128, 0) / 64 if tiles > config.clusters else 1.0


def cost(problem: GemmProblem, config: SymmetricConfig, multiprocessors: int) -> float:
    """Return roughly the time in microseconds."""
    return costs(problem, [config], multiprocessors)[0]


def outdone(problem: GemmProblem, cost: float) -> str | None:
    """Return the name of the kernel that computes all tiles where it is expected to be faster, else None."""
    if _by_threads(problem):
        times = ragged.costs(problem, cast("tuple[RaggedResultConfig, ...]", ragged.SPEC.configs), _MULTIPROCESSORS)
        return ragged.SPEC.name if min(times) * _EXPECTED <= cost else None
    every = cast("tuple[ProductionConfig, ...]", production.SPEC.configs)
    return production.SPEC.name if min(production.costs(problem, every, _MULTIPROCESSORS)) * _EXPECTED <= cost else None


SPEC = KernelSpec(
    name="hopper_syrk",
    operation="gemm",
    summary="a matrix times its own transpose, float16, bfloat16, TF32 along K: half of the tiles, each written twice",
    package=__package__,
    archs=(Arch(9, 0, True),),
    configs=(
        SymmetricConfig(),
        SymmetricConfig(tile_n=160, stages=5),
        SymmetricConfig(tile_n=144),
        SymmetricConfig(tile_n=192, stages=4),
        SymmetricConfig(tile_n=96),
        SymmetricConfig(tile_m=64, tile_n=192),
        SymmetricConfig(tile_m=64, tile_n=160),
        SymmetricConfig(tile_m=64, tile_n=128, stages=8),
        SymmetricConfig(tile_m=64, tile_n=96, stages=9),
        SymmetricConfig(tile_m=64, tile_n=64, stages=12),
        SymmetricConfig(tile_m=64, tile_n=64, stages=8, cluster_k=2),
        SymmetricConfig(tile_m=64, tile_n=64, stages=8, cluster_k=4),
        # With room for the lines that threads write.
        SymmetricConfig(stages=5),
        SymmetricConfig(tile_m=64, tile_n=128, stages=6),
        SymmetricConfig(tile_m=64, tile_n=64, stages=8),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    cost=cost,
    refuses=refuses,
    costs=costs,
    cost_in_us=True,
    outdone=outdone,
    mirrors=True,
)
