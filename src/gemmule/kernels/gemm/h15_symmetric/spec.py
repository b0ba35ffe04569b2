"""The symmetric product of a matrix and its own transpose: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

from gemmule.core.arch import Arch
from gemmule.core.copied_tiles import BOX_ROWS, SLICE_BYTES
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, DType, accumulator
from gemmule.core.errors import ArgumentError
from gemmule.core.hopper_cost import times_us
from gemmule.core.hopper_rungs import CONSUMERS
from gemmule.core.launch import ExtentsParam, Launch
from gemmule.core.problem import GemmProblem
from gemmule.core.remembered import remembered
from gemmule.core.row_major import row_result
from gemmule.core.spec import Buildable, KernelSpec, Signature
from gemmule.kernels.gemm.h09_production import spec as production
from gemmule.kernels.gemm.h09_production.spec import ProductionConfig

DTYPES = (BFLOAT16, FLOAT16)
#: Shared memory of a CTA, and pairs of boxes that a warpgroup has of it where there is enough.
_MOST_SHARED, _PAIRS = 227 << 10, (2, 1)
#: Tiles that 32-bit numbers count, and those of a wave beyond.
_MOST_TILES = 1 << 30
#: Multiprocessors for which the other kernel's time is predicted.
_MULTIPROCESSORS = 132


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
    stages: int = 5
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
    return production.why_not(problem, arch, config)


@remembered
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    if not problem.own_transpose:
        return "B is not A transposed, in the same memory: the result need not be symmetric"
    if problem.c is not None:
        return "C is added, so that the result need not be symmetric"
    if problem.a.dtype not in DTYPES or problem.d.dtype not in (problem.a.dtype, FLOAT32):
        types = " and ".join(map(str, DTYPES))
        return (
            f"A is {problem.a.dtype} and the output {problem.d.dtype}; this kernel takes {types}, for it or {FLOAT32}"
        )
    return production.refuses(problem, arch)


def signature(problem: GemmProblem, config: SymmetricConfig) -> Signature:
    """Specialise for the types, and the direction in which A is contiguous."""
    del config
    oriented, _, _ = row_result(problem)
    return _signature(problem.a.dtype, problem.d.dtype, "k" if oriented.a.lies_in_rows else "m")


def _signature(element: DType, out: DType, along: str) -> Signature:
    return (
        ("a", element.name),
        ("b", element.name),
        ("d", out.name),
        ("acc", accumulator(element, element).name),
        ("a_along", along),
        ("b_along", {"k": "k", "m": "n"}[along]),
        ("adds", "no"),
    )


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every combination."""
    del arch
    return tuple(_signature(element, out, along) for element in DTYPES for out in (element, FLOAT32) for along in "km")


def launch(problem: GemmProblem, config: SymmetricConfig) -> Launch:
    """Return the launch recipe: that of the production kernel, its D in columns too, where that has C."""
    plain = production.launch(problem, config)
    oriented, _, _ = row_result(problem)
    batch = (problem.batch or (1,))[0]
    item = problem.d.dtype.itemsize
    box = (SLICE_BYTES // item, config.box_n(item))
    mirrored = (
        production.map_of("d", oriented.d, batch, box, SLICE_BYTES),
        ExtentsParam("d", (oriented.d.cols, oriented.d.rows, batch)),
    )
    clusters = min(config.tiles(problem.m, batch), config.clusters)
    return dataclasses.replace(
        plain, grid=(clusters * config.cluster, 1, 1), params=(*plain.params[:4], *mirrored, *plain.params[6:])
    )


def costs(problem: GemmProblem, configs: Sequence[SymmetricConfig], multiprocessors: int) -> list[float]:
    """Return roughly the times in microseconds: those of the production kernel, with fewer tiles, written twice."""
    one = production.operation(problem)
    tiles = [config.tiles(problem.m, one.batch) for config in configs]
    return times_us(one._replace(tiles=tiles, writes=2.0), configs, multiprocessors)


def cost(problem: GemmProblem, config: SymmetricConfig, multiprocessors: int) -> float:
    """Return roughly the time in microseconds."""
    return costs(problem, [config], multiprocessors)[0]


def outdone(problem: GemmProblem, cost: float) -> str | None:
    """Return the production kernel's name where it is expected to be faster, else None."""
    every = cast("tuple[ProductionConfig, ...]", production.SPEC.configs)
    return production.SPEC.name if min(production.costs(problem, every, _MULTIPROCESSORS)) <= cost else None


def build(config: SymmetricConfig, signature: Signature) -> Buildable:
    """Return the kernel and its stand-in arguments."""
    from .kernel import buildable

    return buildable(config, dict(signature))


SPEC = KernelSpec(
    name="h15_symmetric",
    operation="gemm",
    summary="float16 and bfloat16, a matrix times its own transpose: half of the tiles, each written twice",
    package="gemmule.kernels.gemm.h15_symmetric",
    built_on=("gemmule.kernels.gemm.h09_production",),
    archs=(Arch(9, 0, True),),
    configs=(
        SymmetricConfig(),
        SymmetricConfig(tile_n=192, stages=4),
        SymmetricConfig(tile_n=160, stages=4),
        SymmetricConfig(tile_n=144, stages=5),
        SymmetricConfig(tile_n=256, stages=4, pingpong=0),
        SymmetricConfig(cluster_m=2),
        SymmetricConfig(tile_n=192, stages=4, cluster_m=2),
        SymmetricConfig(tile_n=256, stages=4, pingpong=0, cluster_m=2),
        SymmetricConfig(tile_m=64, tile_n=128, stages=6),
        SymmetricConfig(tile_m=64, tile_n=96, stages=8),
        SymmetricConfig(tile_m=64, tile_n=64, stages=8),
        SymmetricConfig(tile_m=64, tile_n=64, stages=8, cluster_k=2),
        SymmetricConfig(tile_m=64, tile_n=64, stages=8, cluster_k=4),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    build=build,
    cost=cost,
    refuses=refuses,
    costs=costs,
    cost_in_us=True,
    outdone=outdone,
    mirrors=True,
)
