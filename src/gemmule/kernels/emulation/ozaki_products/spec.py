"""The products behind ozaki_gemm: int8 residues for 15 moduli, what it takes, how it is launched."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from gemmule.core.arch import Arch
from gemmule.core.dtype import INT8
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import Launch, TensorParam
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import why_not_extents
from gemmule.core.spec import Config, KernelSpec, Signature
from gemmule.kernels.emulation.residues import MOST_K
from gemmule.kernels.hopper.tma_tiles import SLICE_BYTES, slice_params

#: K of a slice, to whose multiples lines are filled up; columns within which a row's bytes have their own order.
SLICE, GROUP = SLICE_BYTES, 64
#: Warpgroups that multiply, threads of one and of all, rows of a wgmma.
CONSUMERS, WARPGROUP, MMA_M = 2, 128, 64
THREADS = (1 + CONSUMERS) * WARPGROUP
_BARRIERS = 1024
_MOST_SHARED = 227 << 10
#: Rows of 64 and columns of a tile that a warpgroup has registers for: 192 sums a thread.
_MOST_SUMS = 384
#: Clusters of so many CTAs that an H100 or H200 runs at the same time.
_CLUSTERS = {1: 132, 2: 66, 4: 30}


@dataclasses.dataclass(frozen=True)
class ProductsConfig(Config):
    """Tile of C, stages, the cluster, and how the two warpgroups that multiply share the work.

    Attributes
    ----------
    tile_m, tile_n : int
        Elements: tile_m a multiple of 64, tile_n of 64 and at most 256.
    stages : int
        Slices in shared memory.
    pingpong : int
        1 where each warpgroup has tiles of its own and they take turns, 0 where they share a tile.
    cluster_m, cluster_n : int
        CTAs of a cluster along M and N, which read a slice once for all of them.
    group : int
        Clusters' tiles that are taken downwards before they go to the right.
    ctas : int
        CTAs that share all tiles: the multiprocessors of the chip.
    """

    tile_m: int = 128
    tile_n: int = 256
    stages: int = 4
    pingpong: int = 0
    cluster_m: int = 2
    cluster_n: int = 1
    group: int = 8
    ctas: int = 132

    switches: ClassVar[frozenset[str]] = frozenset({"pingpong"})

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = self.sharing * MMA_M
        if self.tile_m % rows or self.tile_n % GROUP or self.tile_n > 256:
            raise ArgumentError(f"config {self}: tile_m must be a multiple of {rows}, tile_n of {GROUP} up to 256")
        if self.blocks * self.tile_n > _MOST_SUMS:
            raise ArgumentError(f"config {self}: the sums of a tile do not fit into a warpgroup's registers")
        if self.cluster_m not in (1, 2) or self.cluster_n not in (1, 2) or self.stages < 2:
            raise ArgumentError(f"config {self}: clusters have 1 or 2 CTAs along M and N; stages are 2 or more")
        if self.shared_bytes > _MOST_SHARED:
            raise ArgumentError(f"config {self}: {self.shared_bytes} bytes of shared memory, of at most {_MOST_SHARED}")

    @property
    def outputs(self) -> int:
        return self.tile_m * self.tile_n

    @property
    def sharing(self) -> int:
        """Warpgroups that share a tile."""
        return 1 if self.pingpong else CONSUMERS

    @property
    def blocks(self) -> int:
        """Blocks of 64 rows that a warpgroup computes of a tile."""
        return self.tile_m // (self.sharing * MMA_M)

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def clusters(self) -> int:
        """Clusters that run at the same time."""
        return min(max(self.ctas // self.cluster, 1), _CLUSTERS[self.cluster])

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA: barriers, and stages."""
        return _BARRIERS + (self.tile_m + self.tile_n) * SLICE * self.stages


def why_not(problem: GemmProblem, arch: Arch, config: ProductsConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del config
    return refuses(problem, arch)


def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where all do."""
    if arch.capability != (9, 0):
        return f"wgmma is an instruction of sm_90a; this GPU is {arch}"
    if problem.a.dtype != INT8 or problem.b.dtype != INT8 or problem.d.dtype.name != "uint8":
        return (
            f"A is {problem.a.dtype} and B {problem.b.dtype}; this kernel takes the residues that ozaki_residues makes"
        )
    if problem.k % SLICE or problem.n % GROUP or not problem.batch:
        return f"N={problem.n} and K={problem.k} are not whole groups of {GROUP} and slices of {SLICE}"
    if problem.k > MOST_K:
        return f"K={problem.k}: sums of more than {MOST_K} products may overflow"
    return why_not_extents(problem)


def signature(problem: GemmProblem, config: ProductsConfig) -> Signature:
    """Specialise for whether there is something to add to."""
    del config
    return _signature(problem.c is not None)


def _signature(adds: bool) -> Signature:
    return (("element", INT8.name), ("adds", "yes" if adds else "no"))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return both."""
    del arch
    return _signature(False), _signature(True)


def _tiles(problem: GemmProblem, config: ProductsConfig) -> int:
    """Return how many tiles of whole clusters there are."""
    rows, cols = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    return -(-problem.m // rows) * -(-problem.n // cols) * problem.batch[0]


def launch(problem: GemmProblem, config: ProductsConfig) -> Launch:
    """Return the launch recipe: as many CTAs as share the tiles, maps of A and B, and D as it lies."""
    batch = problem.batch
    clusters = min(_tiles(problem, config), config.clusters)
    d = problem.d
    # The one place where B turns from (K, N), as the API has it, to (N, K), as CuTe has it.
    params = (
        *slice_params("a", problem.a, batch, config.tile_m, config.cluster_n),
        *slice_params("b", problem.b.transposed(), batch, config.tile_n, config.cluster_m),
        TensorParam("d", (d.rows, d.cols, *batch), (d.row_stride, *d.batch_strides)),
    )
    return Launch(
        grid=(clusters * config.cluster, 1, 1),
        block=(THREADS, 1, 1),
        cluster=(config.cluster, 1, 1),
        shared_bytes=config.shared_bytes,
        params=params,
        overlaps=True,
    )


#: Microseconds on an H200: a launch; and a slice of 128 x 256, and what a tile takes besides, by tiles and how they are
#: shared.
_LAUNCH = 2.4
_TIMES = {(128, 256, 0): (0.63, 3.2), (256, 192, 0): (0.6, 4.0), (256, 128, 0): (0.65, 3.6)}
_OTHERS = (0.8, 2.0)


def costs(problem: GemmProblem, configs: Sequence[ProductsConfig], multiprocessors: int) -> list[float]:
    """Return roughly the times in microseconds: tiles that a multiprocessor computes one after another."""
    found = []
    for config in configs:
        waves = -(-_tiles(problem, config) // min(config.clusters, max(multiprocessors // config.cluster, 1)))
        each, beside = _TIMES.get((config.tile_m, config.tile_n, config.pingpong), _OTHERS)
        found.append(_LAUNCH + waves * config.outputs / 2**15 * (problem.k / SLICE * each + beside))
    return found


def cost(problem: GemmProblem, config: ProductsConfig, multiprocessors: int) -> float:
    """Return roughly the time in microseconds."""
    return costs(problem, (config,), multiprocessors)[0]


SPEC = KernelSpec(
    name="ozaki_products",
    operation="gemm",
    summary="products of int8 residues, written modulo their own number: wgmma, TMA",
    package=__package__,
    archs=(Arch(9, 0, True),),
    configs=(
        ProductsConfig(),
        ProductsConfig(cluster_m=1),
        ProductsConfig(tile_m=128, tile_n=192, stages=5, pingpong=1),
        ProductsConfig(tile_m=128, tile_n=128, stages=6, pingpong=1),
        ProductsConfig(tile_m=256, tile_n=192, stages=3, cluster_m=1),
        ProductsConfig(tile_m=256, tile_n=128, stages=4, cluster_m=1, cluster_n=2),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    cost=cost,
    refuses=refuses,
    costs=costs,
    cost_in_us=True,
)
