"""Spec of the products of int8 residues."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import INT8, Precision
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem
from gemmule.core.signature import adds_key, every_signature
from gemmule.core.spec import Signature
from gemmule.kernels.emulation.guard import CHOICES
from gemmule.kernels.emulation.guard_words import guard_params, guarded_key, with_guarded
from gemmule.kernels.emulation.launch_spec import emulation_spec
from gemmule.kernels.emulation.ozaki_config import GROUP, PLANES, SLICE, ProductsConfig
from gemmule.kernels.emulation.product_forms import planes_key
from gemmule.kernels.emulation.residues import MOST_K
from gemmule.kernels.hopper import tile_config
from gemmule.kernels.hopper.refusals import refuse_hopper
from gemmule.kernels.hopper.tma_tiles import operand_params, row_param

#: Guarded products by their most moduli, which identify the type: those that ordinary numbers need, and
#: of them for each modulus.
_GUARDED_BATCHES = {
    planes * choices[-1]: (planes * choices[0], planes) for choices in CHOICES.values() for planes in (1, PLANES)
}


def _guarded_batch(problem: GemmProblem) -> tuple[int, int]:
    """Return how many products of residues ordinary numbers need, and how many there are for each modulus."""
    guarded = problem.precision is Precision.OZAKI
    return _GUARDED_BATCHES[problem.batch[0]] if guarded else (problem.batch[0], 1)


def _refuses(problem: GemmProblem, arch: Arch) -> str | None:
    if problem.a.dtype != INT8 or problem.b.dtype != INT8 or problem.d.dtype.name != "uint8":
        return (
            f"A is {problem.a.dtype} and B {problem.b.dtype}; this kernel takes the residues that ozaki_residues makes"
        )
    if problem.k % SLICE or problem.n % GROUP or not problem.batch:
        return f"N={problem.n} and K={problem.k} are not whole groups of {GROUP} and k-tiles of {SLICE}"
    if problem.precision is Precision.OZAKI and problem.batch[0] not in _GUARDED_BATCHES:
        known = ", ".join(map(str, _GUARDED_BATCHES))
        return f"the batch has {problem.batch[0]} products; of guarded ones this kernel takes {known}"
    if problem.k > MOST_K:
        return f"K={problem.k}: more than {MOST_K} products may overflow the accumulators"
    return refuse_hopper(problem, arch, tma="ab")


def _signature(problem: GemmProblem, config: ProductsConfig) -> Signature:
    del config
    planes = planes_key(_guarded_batch(problem)[1])
    return (("element", INT8.name), *adds_key(problem.c is not None), *guarded_key(problem.precision), *planes)


def _signatures(arch: Arch) -> tuple[Signature, ...]:
    real = every_signature(element=[INT8], adds=("no", "yes"))
    guarded = every_signature(element=[INT8], adds=("no", "yes"), guarded=["yes"])(arch)
    return (*with_guarded(real)(arch), *((*one, *planes_key(PLANES)) for one in guarded))


def _tiles(problem: GemmProblem, config: ProductsConfig) -> int:
    """Return how many tiles of whole clusters there are."""
    rows, cols = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    return -(-problem.m // rows) * -(-problem.n // cols) * math.prod(problem.batch)


def product_grid(problem: GemmProblem, config: ProductsConfig) -> tuple[int, int, int]:
    """Return as many CTAs as share the tiles."""
    return (min(_tiles(problem, config), config.max_active_clusters) * config.cluster_size, 1, 1)


def _launch(problem: GemmProblem, config: ProductsConfig) -> Launch:
    """Return the launch recipe: as many CTAs as share the tiles, tensor maps of A and B, and D in place."""
    return Launch(
        grid=product_grid(problem, config),
        block=(tile_config.THREADS, 1, 1),
        cluster=(config.cluster_size, 1, 1),
        shared_bytes=config.shared_bytes,
        params=(
            *operand_params("a", problem.a, problem.batch, config.tile_m, config.cluster_n),
            # B is (K, N) in the API, and (N, K) in CuTe.
            *operand_params("b", problem.b.transposed(), problem.batch, config.tile_n, config.cluster_m),
            row_param("d", problem.d, problem.batch),
            *guard_params(problem.precision),
        ),
        overlaps=True,
    )


#: Microseconds on an H200: a launch; and a k-tile of 128 x 256, and what a tile takes besides, by tile and
#: pingpong.
_LAUNCH, _OTHERS = 2.4, (0.8, 2.0)
_TIMES = {(128, 256, 0): (0.63, 3.2), (256, 192, 0): (0.6, 4.0), (256, 128, 0): (0.65, 3.6)}


def product_costs(problem: GemmProblem, configs: Sequence[ProductsConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds: tiles that an SM computes one after another."""
    if problem.batch and problem.precision is Precision.OZAKI:
        # Ordinary numbers need the fewest moduli.
        problem = dataclasses.replace(problem, batch=_guarded_batch(problem)[:1])
    found = []
    for config in configs:
        waves = -(
            -_tiles(problem, config)
            // min(config.max_active_clusters, max(gpu.multiprocessors // config.cluster_size, 1))
        )
        each, loaded = _TIMES.get((config.tile_m, config.tile_n, config.pingpong), _OTHERS)
        tile = gpu.multiply * problem.k / SLICE * each + gpu.load * loaded
        found.append(gpu.launch * _LAUNCH + waves * config.tile_elements / 2**15 * tile)
    return found


SPEC = emulation_spec(
    name="ozaki_products",
    summary="products of int8 residues, written modulo their own number: wgmma, TMA",
    package=__package__,
    configs=(
        ProductsConfig(),
        ProductsConfig(cluster_m=1),
        ProductsConfig(tile_m=128, tile_n=192, stages=5, pingpong=1),
        ProductsConfig(tile_m=128, tile_n=128, stages=6, pingpong=1),
        ProductsConfig(tile_m=256, tile_n=192, stages=3, cluster_m=1),
        ProductsConfig(tile_m=256, tile_n=128, stages=4, cluster_m=1, cluster_n=2),
    ),
    signatures=_signatures,
    signature=_signature,
    launch=_launch,
    refuses=_refuses,
    costs=product_costs,
)
