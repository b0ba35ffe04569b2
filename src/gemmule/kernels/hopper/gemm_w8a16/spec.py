"""hopper_gemm_w8a16, few rows by 8-bit weights: its limits, launch recipe and cost."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, FLOAT32, DType
from gemmule.core.epilogue_inputs import epilogue_params, epilogue_signature, why_not_inputs
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem, OperandTypes, inner_problem
from gemmule.core.row_major import row_result, why_not_grid
from gemmule.core.signature import adds_key, type_keys
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.hopper.gemm_upcast.spec import SPEC as UPCAST
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper
from gemmule.kernels.hopper.tile_config import CLUSTERS
from gemmule.kernels.hopper.tma_tiles import operand_params, row_params, scale_params
from gemmule.kernels.parts.hopper_facts import SMS

from .config import THREADS, TILE_K, W8A16Config

#: Types of weights, of the other operand's rows, and of C and the result.
NARROW, OUTPUTS = (FLOAT8_E4M3, FLOAT8_E5M2), (BFLOAT16, FLOAT16, FLOAT32)
ROWS = (*NARROW, FLOAT16, BFLOAT16)


def why_not(problem: GemmProblem, arch: Arch, config: W8A16Config) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch
    if (k_tiles := -(-problem.k // TILE_K)) < config.cluster_k:
        return f"K={problem.k} has {k_tiles} k-tiles of {TILE_K}, too few to share among {config.cluster_k} CTAs"
    inner = inner_problem(problem, SPEC.batch_dims)
    if reason := config.why_not_rows(row_result(inner)[0].a.dtype.itemsize):
        return reason
    return why_not_grid(_grid(row_result(inner)[0], config))


@functools.cache
def _why_not_factors(a: DType, b: DType) -> str | None:
    if a in ROWS and b in NARROW:
        return None
    return (
        f"rows of the result are of {a}, and its columns of {b}; this kernel takes columns of "
        f"{' and '.join(map(str, NARROW))}, and rows of these or of {' and '.join(map(str, ROWS[2:]))}"
    )


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    del arch
    return None if types.a in NARROW or types.b in NARROW else _why_not_factors(types.a, types.b)


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    oriented, first, second = row_result(problem)
    a, b, d = oriented.a.dtype, oriented.b.dtype, problem.d.dtype
    if reason := _why_not_factors(a, b):
        return reason
    if d not in OUTPUTS:
        return f"the output is {d}; this kernel makes {', '.join(map(str, OUTPUTS))}"
    if problem.c is not None and problem.c.dtype != d:
        return f"C is {problem.c.dtype} and the output {d}; this kernel takes both of one type"
    for name, matrix in ((first, oriented.a), (second, oriented.b.transposed())):
        if not matrix.has_contiguous_rows:
            return f"{name.upper()} is not contiguous along K; this kernel reads K-major operands only"
    return why_not_inputs(problem) or refuse_hopper(problem, arch, tma="ab")


def signature(problem: GemmProblem, config: W8A16Config) -> Signature:
    """Specialise for the types, whether there is a C, and the epilogue."""
    del config
    oriented, _, _ = row_result(problem)
    plain = _signature(oriented.a.dtype, oriented.b.dtype, oriented.d.dtype, problem.c is not None)
    return (*plain, *epilogue_signature(oriented.epilogue))


def _signature(a: DType, b: DType, out: DType, adds: bool) -> Signature:
    return (*type_keys(a, b, out), *adds_key(adds))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return both types and every result once."""
    del arch
    return (
        _signature(FLOAT8_E4M3, FLOAT8_E4M3, BFLOAT16, False),
        _signature(FLOAT8_E5M2, FLOAT8_E4M3, FLOAT32, True),
        _signature(FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, False),
        _signature(FLOAT16, FLOAT8_E4M3, FLOAT16, False),
        _signature(BFLOAT16, FLOAT8_E4M3, BFLOAT16, False),
    )


def _grid(oriented: GemmProblem, config: W8A16Config) -> tuple[int, int, int]:
    weights, tokens = -(-oriented.n // config.tile_w), -(-oriented.m // config.tile_n)
    return (weights * tokens * config.cluster_k, 1, (oriented.batch or (1,))[0])


def launch(problem: GemmProblem, config: W8A16Config) -> Launch:
    """Return the launch recipe: a cluster for each tile."""
    oriented, first, second = row_result(problem)
    batch = oriented.batch or (1,)
    return Launch(
        grid=_grid(oriented, config),
        block=(THREADS, 1, 1),
        shared_bytes=config.shared_bytes(oriented.a.dtype.itemsize),
        cluster=(config.cluster_k, 1, 1),
        overlaps=oriented.epilogue is None or not oriented.epilogue.absmax,
        params=(
            *operand_params(second, oriented.b.transposed(), batch, config.tile_w),
            *operand_params(first, oriented.a, batch, config.tile_n),
            *row_params(oriented, batch),
            *scale_params(problem),
            *epilogue_params(oriented.epilogue, batch[0], problem.accumulator),
        ),
    )


#: Measured on an H200, in microseconds and bytes of one: a launch; weights from memory; k-tiles from the L2 cache to a
#: SM; each further wave of CTAs.
_LAUNCH, _MEMORY, _PORT, _WAVE = 2.1, 4.25e6, 66e3, 1.0
#: Time of a k-tile on an SM, by rows and blocks, where that is more than its transfer.
_K_TILE = {(16, 1): 0.3, (32, 1): 0.39, (64, 1): 0.53, (64, 2): 0.78, (128, 2): 1.42}
#: The exchange of sums, for each KB of them, and that for each CTA of the cluster.
_EXCHANGE, _EXCHANGE_KB, _EXCHANGE_EACH = 1.1, 0.013, 0.009
#: Factor of clusters that fit badly into the 16 or 18 SMs of a GPC.
_UNEVEN = {4: 1.05, 5: 1.04, 8: 1.06}
#: Rows beyond which it was not measured, and is not taken.
_MOST_ROWS = 512


def costs(problem: GemmProblem, configs: Sequence[W8A16Config], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds."""
    oriented, _, _ = row_result(problem)
    k_tiles = -(-oriented.k // TILE_K)
    memory = problem.bytes_min / gpu.memory_rate(_MEMORY)

    def time(config: W8A16Config) -> float:
        cluster, kilobytes = config.cluster_k, config.tile_elements * 4 / 1024
        ctas = math.prod(_grid(oriented, config))
        at_once = max(CLUSTERS[cluster] * config.residents * gpu.multiprocessors // SMS, 1) * cluster
        waves = math.ceil(ctas / at_once)
        load = (config.tile_w + config.tile_n * oriented.a.dtype.itemsize) * TILE_K / _PORT
        each = gpu.load * math.ceil(k_tiles / cluster) * max(load, _K_TILE.get((config.tile_n, config.blocks), 0.0))
        # With several CTAs an SM, the first that ends makes room.
        several = waves if config.residents == 1 else max(ctas / gpu.multiprocessors, 1.0)
        read = float((memory**3 + (several * each) ** 3) ** (1 / 3))
        total = gpu.launch * _LAUNCH + read + gpu.load * _WAVE * (waves - 1)
        if cluster > 1:
            total += gpu.load * (_EXCHANGE + kilobytes * (_EXCHANGE_KB + _EXCHANGE_EACH * cluster))
        return total * _UNEVEN.get(cluster, 1.0)

    return [time(config) for config in configs]


def faster_alternative(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel that upcasts operands in memory, where that is expected to be faster."""
    if UPCAST.is_refused(problem, UPCAST.archs[0]):
        return None
    return UPCAST.name if UPCAST.least_cost(problem, gpu) < cost else None


def defers_to(problem: GemmProblem, gpu: GpuRates) -> str | None:
    """Return the same kernel for more rows than were measured."""
    del gpu
    return UPCAST.name if min(problem.m, problem.n) > _MOST_ROWS else None


#: For each tile its stages, slots, CTAs on an SM and blocks.
_SHAPES: tuple[tuple[int, int, int, int, int], ...] = (
    (16, 4, 4, 2, 1),
    (8, 5, 4, 2, 1),
    (32, 3, 3, 2, 1),
    (64, 5, 3, 1, 1),
    (64, 4, 3, 1, 2),
    (128, 3, 2, 1, 2),
)
#: Those whose stages fit if A has 16 bits.
_FOR_16_BITS = ((64, 3, 3, 1, 2), (128, 2, 2, 1, 2))


def _configs(clusters: Sequence[int], shapes: Sequence[tuple[int, int, int, int, int]]) -> tuple[W8A16Config, ...]:
    """Return for every shape a config for every cluster."""
    return tuple(
        W8A16Config(tile_n, stages, slots, cluster_k, residents, blocks)
        for tile_n, stages, slots, residents, blocks in shapes
        for cluster_k in clusters
    )


SPEC = KernelSpec(
    name="hopper_gemm_w8a16",
    operation="gemm",
    summary="small M: 8-bit or 16-bit floats by 8-bit floats, both K-major and aligned to 16 bytes: weights are read "
    "once, and upcast in registers",
    package=__package__,
    archs=(HOPPER,),
    configs=(*_configs((1, 2, 3, 4, 5, 6, 7, 8), _SHAPES), *_configs((1, 2, 4, 6), _FOR_16_BITS)),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
    faster_alternative=faster_alternative,
    defers_to=defers_to,
    epilogues=True,
    absmax=True,
)
