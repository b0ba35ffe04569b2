"""Spec of the products of few tiles, of any alignment, by mma.sync."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.config import why_not_cluster
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, DType, Precision
from gemmule.core.epilogue_inputs import epilogue_params, epilogue_signature, why_not_inputs
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, OperandTypes, inner_problem
from gemmule.core.row_major import row_result, why_not_extents, why_not_grid, why_not_strides
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.mma_sync.operand_types import refuse_types
from gemmule.kernels.parts.batched_launch import batched_params, copies_signature, tiles_signature, types_signature
from gemmule.kernels.parts.leading_dimension import LeadingDimension, leading_dimension, result_vector

from .config import MOST_REGISTERS, SmallMmaConfig
from .cost import times_us

#: Types that C and D may have for each type of A and B.
OUTPUTS: dict[DType, tuple[DType, ...]] = {
    FLOAT16: (FLOAT16, FLOAT32),
    BFLOAT16: (BFLOAT16, FLOAT32),
    FLOAT32: (FLOAT32,),
}
#: Bytes that a copy may move at once; 2 are those of an element.
COPIES = (16, 8, 4, 2)
#: Most bytes of a problem whose launch begins while its predecessor ends: 27 of 1.1 to 4.2 MB are faster by 8 to 25 %,
#: six larger ones from 23 % slower to 7 % faster (an H200, by turns, not recorded).
_OVERLAPPED = 1 << 22
#: Bytes of a word: operands whose copies have fewer pass through registers, an element in each.
WORD = 4


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    del arch
    inner = inner_problem(problem, SPEC.batch_dims)
    return why_not_inputs(problem) or why_not_strides(inner) or why_not_extents(inner)


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    return refuse_types(types, OUTPUTS, arch)


def why_not(problem: GemmProblem, arch: Arch, config: SmallMmaConfig) -> str | None:
    """Say why the kernel cannot take `problem` with `config`, or None where it can."""
    if reason := why_not_cluster(config, config.cluster_k, arch):
        return reason
    if config.shared_bytes > (most := arch.shared_bytes_per_block):
        return f"config {config} needs {config.shared_bytes} bytes of shared memory, more than the {most} of {arch}"
    oriented = _oriented(problem)
    sides = zip((oriented.a, oriented.b), (config.tile_m, config.tile_n), strict=True)
    if config.registers(side for matrix, side in sides if _lead(matrix).copy_bytes < WORD) > MOST_REGISTERS:
        return f"config {config}: a thread has more than {MOST_REGISTERS} elements and accumulators"
    return why_not_grid(_grid(oriented, config))


@cache_last_call
def _oriented(problem: GemmProblem) -> GemmProblem:
    """Return a launch's problem, its result in rows."""
    return row_result(inner_problem(problem, SPEC.batch_dims))[0]


def _grid(problem: GemmProblem, config: SmallMmaConfig) -> tuple[int, int, int]:
    tiles_m, tiles_n = -(-problem.m // config.tile_m), -(-problem.n // config.tile_n)
    return tiles_m * config.cluster_k, tiles_n, (problem.batch or (1,))[0]


def _lead(matrix: StridedMatrix) -> LeadingDimension:
    return leading_dimension(matrix, COPIES)


def signature(problem: GemmProblem, config: SmallMmaConfig) -> Signature:
    """Specialise for types, the major modes of A and B, and the widths of copies and of what is written."""
    del config
    oriented, _, _ = row_result(problem)
    a, b = _lead(oriented.a), _lead(oriented.b)
    majors = ("k" if a.row_major else "m", a.copy_bytes), ("n" if b.row_major else "k", b.copy_bytes)
    plain = _signature(problem.a.dtype, problem.d.dtype, *majors, result_vector(oriented, 2))
    return (*plain, *epilogue_signature(oriented.epilogue))


def _signature(element: DType, out: DType, a: tuple[str, int], b: tuple[str, int], vector: int) -> Signature:
    return (*types_signature(element, out, FLOAT32), *copies_signature(a, b, vector), *tiles_signature(False))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return the layouts with lines that begin anywhere, then wider copies and results."""
    del arch
    return (
        *(_signature(FLOAT16, FLOAT16, (a, 2), (b, 2), 1) for a, b in itertools.product("km", "nk")),
        _signature(BFLOAT16, BFLOAT16, ("k", 2), ("n", 2), 1),
        _signature(BFLOAT16, BFLOAT16, ("k", 16), ("n", 16), 2),
        _signature(BFLOAT16, FLOAT32, ("m", 16), ("k", 4), 2),
        *(_signature(FLOAT32, FLOAT32, (a, 4), (b, 4), 1) for a, b in itertools.product("km", "nk")),
        _signature(FLOAT32, FLOAT32, ("m", 16), ("n", 16), 2),
    )


def launch(problem: GemmProblem, config: SmallMmaConfig) -> Launch:
    """Return the launch recipe: one CTA, or cluster along K, for each tile of D and matrix of the batch."""
    problem, first, second = row_result(problem)
    if problem.epilogue is not None and problem.epilogue.expression.names_c:
        # With beta = 0, C is not read.
        problem = dataclasses.replace(problem, beta=1)
    batch = (problem.batch or (1,))[0]
    return Launch(
        grid=_grid(problem, config),
        block=(config.threads, 1, 1),
        shared_bytes=config.shared_bytes,
        cluster=(config.cluster_k, 1, 1),
        params=(
            *batched_params(problem, first, second, *(_lead(x).stride for x in (problem.a, problem.b))),
            *epilogue_params(problem.epilogue, batch, problem.accumulator),
        ),
        overlaps=problem.bytes_min <= _OVERLAPPED,
    )


def costs(problem: GemmProblem, configs: Sequence[SmallMmaConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds."""
    oriented = _oriented(problem)
    copies = _lead(oriented.a).copy_bytes, _lead(oriented.b).copy_bytes
    return times_us(oriented, configs, gpu, copies)


#: Bytes of a problem from which on it is no small one, of many rows and columns, and of few: assumed.
_MOST_BYTES, _FEW = (1 << 23, 1 << 26), 64


def is_faster(problem: GemmProblem, cost: float, gpu: GpuRates) -> bool:
    """Return whether less than `cost` microseconds are predicted; of large problems and other types none is."""
    element = problem.a.dtype
    most = _MOST_BYTES[min(problem.m, problem.n) <= _FEW]
    if problem.bytes_min > most or element not in OUTPUTS:
        return False
    if element == FLOAT32 and problem.precision is not Precision.TF32:
        return False
    return SPEC.least_cost(problem, gpu) < cost


SPEC = KernelSpec(
    name="mma_sync_small",
    operation="gemm",
    summary="float16, bfloat16 and TF32, few tiles, any alignment: mma.sync, several k-tiles loaded at once",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=(
        SmallMmaConfig(),
        *(SmallMmaConfig(k_tiles=4, cluster_k=parts) for parts in (1, 2, 4, 8)),
        *(SmallMmaConfig(tile_m=64, tile_n=64, warps_n=4, warps_k=1, cluster_k=parts) for parts in (1, 2, 4, 8)),
        # One round of up to 256 elements of K of 16 bits; the next for TF32 alone, whose elements need no registers.
        SmallMmaConfig(tile_m=64, tile_n=64, warps_m=4, warps_n=4, warps_k=1, k_tiles=4),
        SmallMmaConfig(k_tiles=8),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    epilogues=True,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
)
