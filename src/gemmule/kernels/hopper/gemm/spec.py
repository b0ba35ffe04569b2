"""hopper_gemm: its limits and launch recipe."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from gemmule.core.arch import Arch
from gemmule.core.dtype import (
    BFLOAT16,
    FLOAT8_E4M3,
    FLOAT8_E5M2,
    FLOAT16,
    FLOAT32,
    INT8,
    INT32,
    MAX_INT8_K,
    DType,
    Precision,
)
from gemmule.core.epilogue import SECOND, Epilogue
from gemmule.core.epilogue_inputs import (
    epilogue_params,
    epilogue_signature,
    num_b_of,
    why_not_inputs,
    why_not_scales,
    why_not_second,
)
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch, TensorParam, Workspace
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, OperandTypes
from gemmule.core.row_major import row_result
from gemmule.core.signature import adds_key, major_keys, majors_of, type_keys
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.hopper.cost.operation import k_tiles_of, operation_of, why_not_split
from gemmule.kernels.hopper.cost.rates import Numbers, parts_of_k
from gemmule.kernels.hopper.refusals import HOPPER, MN_MAJOR_BYTES, refuse_hopper, why_not_arch
from gemmule.kernels.hopper.scale_stages import scale_bytes
from gemmule.kernels.hopper.tile_config import (
    EPI_TILE_M,
    K_BYTES,
    MAX_SCALED_N,
    MAX_SHARED_BYTES,
    why_not_promoted,
)
from gemmule.kernels.hopper.tma_tiles import (
    block_scale_params,
    operand_params,
    promotion_for,
    result_params,
    scale_params,
    why_not_stored,
)
from gemmule.kernels.mma_sync.cost import is_faster
from gemmule.kernels.mma_sync.small.spec import SPEC as MMA_SYNC_SMALL
from gemmule.kernels.mma_sync.small.spec import is_faster as is_faster_small
from gemmule.kernels.mma_sync.spec import SPEC as MMA_SYNC
from gemmule.kernels.parts.schedulers.stream_k_workspaces import FLAG_BYTES, stream_k_workspaces

from .columns import why_not_columns
from .config import HopperGemmConfig, search_space
from .config_lists import CONFIGS
from .cost import costs, costs_of_each
from .dependent_launch import uses_pdl

_WIDE_FLOATS = (BFLOAT16, FLOAT16, FLOAT32)
_FLOATS = (*_WIDE_FLOATS, FLOAT8_E4M3, FLOAT8_E5M2)
#: Types that C and D may have for each type of A and B.
OUTPUTS: dict[DType, tuple[DType, ...]] = {**dict.fromkeys(_FLOATS, _FLOATS), INT8: (INT32, INT8, *_WIDE_FLOATS)}
#: Operands that TMA loads or stores; the last is the second B of a gated epilogue.
_BY_TMA = ("a", "b", "c", "d", SECOND)
#: Bytes of operands beyond which they are not in the L2 cache, and elements of a tile that is not small.
_STREAMED_BYTES, _LARGE_TILE = 40 << 20, 128 * 104
#: Name of the flags that the absolute maximum is cleared.
_FLAGS = "cleared"
#: Columns of an epilogue tile of 8-bit elements: 16 bytes.
_EPI_TILE_N_8_BIT = 16
#: Microseconds: predicted times up to which `mma_sync_small` is considered, by bytes of an element, what they are too
#: long by there (records 20261129T023120 and 20261129T172616), and the share of the rest that its own are less than.
_SHORT, _TOO_LONG, _MARGIN = {2: 2.8, 4: 3.3}, 0.4, {2: 1.0, 4: 0.95}


def why_not(problem: GemmProblem, arch: Arch, config: HopperGemmConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch
    if reason := why_not_columns(problem.a.dtype, _k_major(problem, config), config):
        return reason
    if reason := why_not_split(problem, config.cluster_k):
        return reason
    k_tiles = k_tiles_of(problem)
    if config.split_k and k_tiles * config.max_active_clusters >= 2**31:
        return (
            f"K={problem.k} has more k-tiles than the 32-bit numbers of split_k=1 count, in as many parts as clusters"
        )
    if problem.d.dtype.itemsize == 1:
        num_b = num_b_of(problem.epilogue)
        columns = config.tile_n // (config.cluster_k * config.warpgroups_n * num_b)
        if config.swap_ab or columns % _EPI_TILE_N_8_BIT:
            return (
                f"config {config}: 8-bit results are written in rows, a multiple of {_EPI_TILE_N_8_BIT} columns by a "
                "CTA, or by each warpgroup with side_by_side=1"
            )
    if problem.a.dtype.is_float8 and (reason := why_not_promoted(config)):
        return reason
    if (lines := _scale_lines(problem, config)) is not None:
        if lines[1] == 1 and config.tile_n > MAX_SCALED_N:
            return f"config {config}: a scale for each column fits into registers for {MAX_SCALED_N} columns at most"
        if (needed := config.shared_bytes + _scale_bytes(problem, config)) > MAX_SHARED_BYTES:
            return f"config {config}: {needed} bytes of shared memory with scales, of at most {MAX_SHARED_BYTES}"
    if num_b_of(problem.epilogue) > 1:
        if reason := config.why_not_gated(problem.b.dtype.itemsize, not problem.b.has_contiguous_cols):
            return reason
        if (needed := _shared_bytes(problem, config)) > MAX_SHARED_BYTES:
            return (
                f"config {config}: {needed} bytes of shared memory with a gated epilogue, of at most {MAX_SHARED_BYTES}"
            )
    return None


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    if problem.epilogue is not None and (
        reason := why_not_inputs(problem) or why_not_second(problem) or why_not_scales(problem)
    ):
        return reason
    majors = majors_of(problem)
    for name, matrix, major in zip("AB", (problem.a, problem.b), majors, strict=True):
        if major != "k" and matrix.dtype.itemsize != MN_MAJOR_BYTES and not _from_registers(problem, majors):
            return (
                f"{name} is {matrix.dtype} and not contiguous along K; wgmma takes only 16-bit operands MN-major, and "
                "one of TF32: give A row-major and B column-major"
            )
    if reason := refuse_hopper(problem, arch, _BY_TMA, tma=_BY_TMA):
        return reason
    oriented, _, _ = row_result(problem)
    if reason := why_not_stored(oriented.d):
        return reason
    if problem.a.dtype == INT8 and problem.k > MAX_INT8_K:
        return (
            f"K={problem.k}: the DSL's int8 wgmma saturates its int32 accumulators (.satfinite), which products beyond "
            f"K={MAX_INT8_K} may reach"
        )
    return None


def _from_registers(problem: GemmProblem, majors: tuple[str, str]) -> bool:
    """Return whether one operand, of TF32, is MN-major, which wgmma takes from registers."""
    return problem.a.dtype == FLOAT32 and majors.count("k") == 1


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    a, b, c, d, precision = types
    if not (a == b or (a.is_float8 and b.is_float8)) or a not in OUTPUTS:
        return f"A is {a} and B is {b}; this kernel takes both of one type among {', '.join(map(str, OUTPUTS))}"
    if a == FLOAT32 and precision is not Precision.TF32:
        return "A and B are float32; this kernel rounds them to TF32, for precision='tf32'"
    if a.is_float8 and precision is not Precision.FLOAT8:
        return f"A and B are {a} and {b}: pass precision='float8', as FP8 wgmma accumulates with 13 fraction bits"
    if d not in OUTPUTS[a]:
        return f"the output is {d}; from {a} this kernel makes {' and '.join(map(str, OUTPUTS[a]))}"
    if c is not None and c != d:
        return f"C is {c} and the output {d}; this kernel takes both of one type"
    return why_not_arch(arch)


def _operands(problem: GemmProblem, config: HopperGemmConfig) -> tuple[str, StridedMatrix, str, StridedMatrix]:
    """Return the names of the operands that are the kernel's A (M, K) and B (N, K), and the matrices.

    The one place where B turns from (K, N), as the API has it, to (N, K), as CuTe has it.
    """
    problem, first, second = row_result(problem)
    a, b = problem.a, problem.b.transposed()
    return (second, b, first, a) if config.swap_ab else (first, a, second, b)


def _scale_lines(problem: GemmProblem, config: HopperGemmConfig) -> tuple[int, int] | None:
    """Return the lines of a block of the kernel's own A and B, if there are scales by blocks."""
    if problem.epilogue is None or (scales := problem.epilogue.scales) is None:
        return None
    lines = (scales.lines_a, scales.lines_b)
    return lines if problem.d.is_row_major != bool(config.swap_ab) else lines[::-1]


def _scale_bytes(problem: GemmProblem, config: HopperGemmConfig) -> int:
    """Return the shared memory of a CTA for scales by blocks."""
    lines = _scale_lines(problem, config)
    return 0 if lines is None else scale_bytes(lines, config.tile_m, config.tile_n, config.stages)


def _k_major(problem: GemmProblem, config: HopperGemmConfig) -> tuple[bool, bool]:
    """Return whether the kernel's A (M, K) and B (N, K) are K-major."""
    oriented, _, _ = row_result(problem)
    a, b = oriented.a.has_contiguous_rows, oriented.b.has_contiguous_cols
    return (b, a) if config.swap_ab else (a, b)


def signature(problem: GemmProblem, config: HopperGemmConfig) -> Signature:
    """Specialise for the types, the direction in which A and B are contiguous, and whether there is a C."""
    _, a, _, b = _operands(problem, config)
    k_major_a, k_major_b = _k_major(problem, config)
    majors = "k" if k_major_a else "m", "k" if k_major_b else "n"
    plain = _signature((a.dtype, b.dtype), problem.d.dtype, majors, problem.c is not None)
    return (*plain, *epilogue_signature(_epilogue(problem, config), clears=_clears(problem, config)))


def _clears(problem: GemmProblem, config: HopperGemmConfig) -> bool:
    """Return whether the kernel clears the absolute maximum, if there is one.

    Where CTAs of small tiles stream operands from memory, the first one's fence took longer than a memset.
    """
    if problem.epilogue is None or not problem.epilogue.absmax or problem.epilogue.raises:
        return False
    return problem.bytes_min <= _STREAMED_BYTES or config.tile_elements >= _LARGE_TILE


def _epilogue(problem: GemmProblem, config: HopperGemmConfig) -> Epilogue | None:
    """Return the epilogue of the kernel's own product, which may be the transposed one."""
    problem, _, _ = row_result(problem)
    return problem.epilogue.transposed() if problem.epilogue is not None and config.swap_ab else problem.epilogue


def _signature(elements: tuple[DType, DType], out: DType, majors: tuple[str, str], adds: bool) -> Signature:
    return (*type_keys(*elements, out), *major_keys(*majors), *adds_key(adds))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return bfloat16 in every layout, and one or two layouts of each other type."""
    del arch
    every = [(BFLOAT16, BFLOAT16, a, b, adds) for a in "km" for b in "nk" for adds in (False, True)]
    every += [(FLOAT16, FLOAT16, "k", "n", adds) for adds in (False, True)]
    every += [
        (BFLOAT16, FLOAT32, "k", "n", True),
        (BFLOAT16, FLOAT32, "m", "k", False),
        (FLOAT16, FLOAT32, "m", "n", True),
    ]
    every += [(FLOAT32, FLOAT32, "k", "k", True), (FLOAT32, FLOAT32, "m", "k", False)]
    every += [(INT8, INT32, "k", "k", False), (INT8, INT8, "k", "k", True)]
    every += [(FLOAT8_E4M3, BFLOAT16, "k", "k", False), (FLOAT8_E5M2, FLOAT32, "k", "k", True)]
    return tuple(_signature((element, element), out, (a, b), adds) for element, out, a, b, adds in every)


def launch(problem: GemmProblem, config: HopperGemmConfig) -> Launch:
    """Return the launch recipe: clusters for all tiles, as many as run at once, and the operands' tensor maps."""
    name_a, a, name_b, b = _operands(problem, config)
    epilogue = _epilogue(problem, config)
    problem, _, _ = row_result(problem)
    batch = problem.batch or (1,)
    pair = num_b_of(epilogue)
    num_a, num_b = (pair, 1) if config.swap_ab else (1, pair)
    tiles = _tiles(a.rows * num_a, b.rows * num_b, batch[0], config)
    clusters, parts = min(tiles, config.max_active_clusters), 1
    workspaces: tuple[Workspace, ...] = ()
    tensors: tuple[TensorParam, ...] = ()
    if config.split_k:
        parts = int(parts_of_k(config.max_active_clusters, tiles, k_tiles_of(problem)))
        # The sums of the last part stay in registers.
        workspaces, tensors = _workspaces(max(clusters * (parts - 1), 1), config, problem.accumulator.itemsize)
    absmax = epilogue is not None and epilogue.absmax
    clears = _clears(problem, config)
    if clears:
        flags = clusters * config.cluster_size * parts
        workspaces += (Workspace(_FLAGS, flags * FLAG_BYTES),)
        tensors += (TensorParam(_FLAGS, (flags,), ()),)
    # Epilogue tiles are as long as rows of D allow.
    item = problem.d.dtype.itemsize
    epi_tile_n = config.epi_tile_n(item, pair)
    box = (K_BYTES // item, epi_tile_n) if config.swap_ab else (epi_tile_n, EPI_TILE_M)
    c = ("d", problem.d) if problem.c is None else ("c", problem.c)
    promotion = promotion_for(min(problem.m, problem.n)) if a.dtype.itemsize <= MN_MAJOR_BYTES else None
    params = (
        *operand_params(name_a, a, batch, config.tile_m // num_a, config.cluster_n, promotion),
        *operand_params(name_b, b, batch, config.tile_n // num_b, config.cluster_m, promotion, config.warpgroups_n),
        *result_params(*c, batch, box, swap_ab=bool(config.swap_ab)),
        *result_params("d", problem.d, batch, box, swap_ab=bool(config.swap_ab)),
        *scale_params(problem),
        *epilogue_params(epilogue, batch[0], problem.scale_type),
        *tensors,
    )
    if epilogue is not None and epilogue.second is not None:
        # Its layout is that of the kernel's A with swap_ab, else of its B.
        second, tile, ctas = epilogue.second.transposed(), config.tile_n // num_b, config.cluster_m
        if config.swap_ab:
            second, tile, ctas = epilogue.second, config.tile_m // num_a, config.cluster_n
        params += operand_params(SECOND, second, batch, tile, ctas, promotion)
    if epilogue is not None:
        params += block_scale_params(epilogue.scales, (name_a, name_b))
    return Launch(
        grid=(clusters * config.cluster_size, parts, 1),
        block=(config.threads, 1, 1),
        shared_bytes=_shared_bytes(problem, config),
        cluster=(config.cluster_size, 1, 1),
        # PDL does not wait for a memset.
        overlaps=(clears or not absmax) and uses_pdl(problem, tiles, clusters * parts, config),
        params=params,
        workspaces=workspaces,
        clears_absmax=clears,
    )


def _shared_bytes(problem: GemmProblem, config: HopperGemmConfig) -> int:
    if scales := _scale_bytes(problem, config):
        return config.shared_bytes + scales
    return config.shared_bytes_of(
        problem.d.dtype.itemsize, num_b_of(problem.epilogue), reads_c=problem.c is not None,
        fused=problem.epilogue is not None and not problem.a.dtype.is_float8,
    )  # fmt: skip


def _workspaces(
    clusters: int, config: HopperGemmConfig, itemsize: int
) -> tuple[tuple[Workspace, ...], tuple[TensorParam, ...]]:
    """Return the workspaces of split-K and their parameters; `itemsize` is that of accumulators."""
    return stream_k_workspaces(
        clusters * config.cluster_size, config.tile_elements, itemsize, config.warpgroups_per_tile
    )


def _tiles(m: int, n: int, batch: int, config: HopperGemmConfig) -> int:
    """Return how many tiles of whole clusters there are."""
    return -(-m // (config.tile_m * config.cluster_m)) * -(-n // (config.tile_n * config.cluster_n)) * batch


def costs_with_k_major_copies(problem: GemmProblem, gpu: GpuRates) -> list[Numbers]:
    """Return `costs` of a TF32 product, and of the product of K-major copies of its MN-major operands.

    Predicting both at once takes less time than one after the other.
    """
    configs: Sequence[Any] = SPEC.configs_on(gpu)
    own, others = costs_of_each(problem, operation_of(problem, prepares=True), configs, gpu)
    SPEC.cache_costs(problem, configs, gpu, own)
    return [own, others]


def faster_alternative(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return a kernel without wgmma: of small products, and where an operand of wgmma is in registers."""
    itemsize = problem.a.dtype.itemsize
    if cost <= _SHORT.get(itemsize, 0.0) * gpu.launch:
        limit = (cost - _TOO_LONG * gpu.launch) * _MARGIN[itemsize]
        if is_faster_small(problem, limit, gpu):
            return MMA_SYNC_SMALL.name
    if problem.a.dtype.itemsize == MN_MAJOR_BYTES or not _from_registers(problem, majors_of(problem)):
        return None
    return MMA_SYNC.name if is_faster(problem, cost, gpu) else None


@functools.cache
def extra_configs() -> tuple[HopperGemmConfig, ...]:
    """Return the configs of the search space that are not registered."""
    return tuple(one for one in search_space() if one not in SPEC.configs)


SPEC = KernelSpec(
    name="hopper_gemm",
    operation="gemm",
    summary="float16 and bfloat16 in any layout, TF32 with at least one operand K-major, int8 and float8 K-major, "
    "leading dimensions of multiples of 16 bytes: wgmma, TMA, persistent CTAs, split-K in clusters",
    package=__package__,
    archs=(HOPPER,),
    configs=CONFIGS,
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
    extra_configs=extra_configs,
    faster_alternative=faster_alternative,
    epilogues=True,
    gated=True,
    absmax=True,
    block_scales=True,
)
