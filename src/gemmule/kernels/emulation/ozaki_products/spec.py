"""The products after ozaki_residues: int8 residues, what it takes, how it is launched."""

from __future__ import annotations

from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import INT8
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem
from gemmule.core.signature import adds_key
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.emulation.residues import MOST_K
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper
from gemmule.kernels.hopper.tile_config import THREADS
from gemmule.kernels.hopper.tma_tiles import operand_params, row_param

from .config import GROUP, SLICE, ProductsConfig


def why_not(problem: GemmProblem, arch: Arch, config: ProductsConfig) -> None:
    """Return that every config takes what `refuses` does not refuse."""
    del problem, arch, config


def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where all do."""
    if problem.a.dtype != INT8 or problem.b.dtype != INT8 or problem.d.dtype.name != "uint8":
        return (
            f"A is {problem.a.dtype} and B {problem.b.dtype}; this kernel takes the residues that ozaki_residues makes"
        )
    if problem.k % SLICE or problem.n % GROUP or not problem.batch:
        return f"N={problem.n} and K={problem.k} are not whole groups of {GROUP} and k-tiles of {SLICE}"
    if problem.k > MOST_K:
        return f"K={problem.k}: more than {MOST_K} products may overflow the accumulators"
    return refuse_hopper(problem, arch, tma="ab")


def signature(problem: GemmProblem, config: ProductsConfig) -> Signature:
    """Specialise for whether there is a C."""
    del config
    return _signature(problem.c is not None)


def _signature(adds: bool) -> Signature:
    return (("element", INT8.name), *adds_key(adds))


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
    # The one place where B turns from (K, N), as the API has it, to (N, K), as CuTe has it.
    params = (
        *operand_params("a", problem.a, batch, config.tile_m, config.cluster_n),
        *operand_params("b", problem.b.transposed(), batch, config.tile_n, config.cluster_m),
        row_param("d", problem.d, batch),
    )
    return Launch(
        grid=(clusters * config.cluster, 1, 1),
        block=(THREADS, 1, 1),
        cluster=(config.cluster, 1, 1),
        shared_bytes=config.shared_bytes,
        params=params,
        overlaps=True,
    )


#: Microseconds on an H200: a launch; and a k-tile of 128 x 256, and what a tile takes besides, by tile and
#: pingpong.
_LAUNCH = 2.4
_TIMES = {(128, 256, 0): (0.63, 3.2), (256, 192, 0): (0.6, 4.0), (256, 128, 0): (0.65, 3.6)}
_OTHERS = (0.8, 2.0)


def costs(problem: GemmProblem, configs: Sequence[ProductsConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds: tiles that an SM computes one after another."""
    found = []
    for config in configs:
        waves = -(-_tiles(problem, config) // min(config.clusters, max(gpu.multiprocessors // config.cluster, 1)))
        each, beside = _TIMES.get((config.tile_m, config.tile_n, config.pingpong), _OTHERS)
        tile = gpu.multiply * problem.k / SLICE * each + gpu.load * beside
        found.append(gpu.launch * _LAUNCH + waves * config.outputs / 2**15 * tile)
    return found


SPEC = KernelSpec(
    name="ozaki_products",
    operation="gemm",
    summary="products of int8 residues, written modulo their own number: wgmma, TMA",
    package=__package__,
    archs=(HOPPER,),
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
    refuses=refuses,
    costs=costs,
    cost_in_us=True,
)
