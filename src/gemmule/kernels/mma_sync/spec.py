"""Spec of the GEMM on tensor cores by mma.sync."""

from __future__ import annotations

import dataclasses

from gemmule.core.arch import Arch
from gemmule.core.config import why_not_cluster
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, FLOAT32, INT8, INT32, DType
from gemmule.core.epilogue import SECOND
from gemmule.core.epilogue_inputs import (
    aligned_with_second,
    epilogue_params,
    epilogue_signature,
    num_b_of,
    why_not_inputs,
    why_not_second,
)
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import FEW_BYTES, Launch, TensorParam, Workspace
from gemmule.core.problem import GemmProblem, OperandTypes, inner_problem
from gemmule.core.row_major import row_result, why_not_extents, why_not_grid, why_not_strides
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.mma_sync.small.spec import SPEC as MMA_SYNC_SMALL
from gemmule.kernels.mma_sync.small.spec import is_faster as is_faster_small
from gemmule.kernels.parts.batched_launch import (
    batched_params,
    copies_signature,
    tiles_divide,
    tiles_signature,
    types_signature,
)
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.leading_dimension import leading_dimension
from gemmule.kernels.parts.schedulers.stream_k_workspaces import stream_k_workspaces

from .config import COPIES, FRAGMENT_BYTES, SUBTILE_N, MmaSyncConfig
from .config_lists import CONFIGS
from .cost import costs
from .launch_geometry import (
    BATCH_DIMS,
    MAX_WORDS,
    WORD,
    columns_of,
    copied_bytes,
    grid_of,
    has_registers,
    launch_problem,
    splits_of,
    vector_of,
    widest,
)
from .operand_types import refuse_types

#: Types that C and D may have for each type of A and B.
OUTPUTS: dict[DType, tuple[DType, ...]] = {
    FLOAT16: (FLOAT16, FLOAT32, FLOAT8_E4M3, FLOAT8_E5M2),
    BFLOAT16: (BFLOAT16, FLOAT32, FLOAT8_E4M3, FLOAT8_E5M2),
    FLOAT32: (FLOAT32,),
    INT8: (INT8, INT32),
}


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where one may."""
    del arch
    inner = inner_problem(problem, BATCH_DIMS)
    return why_not_inputs(problem) or why_not_second(problem) or why_not_strides(inner) or why_not_extents(problem)


def why_not(problem: GemmProblem, arch: Arch, config: MmaSyncConfig) -> str | None:
    """Say why the kernel cannot take `problem` with `config`, or None where it can."""
    if config.sum_bits == 16 and (element := problem.a.dtype) != FLOAT16:
        return f"config {config} accumulates in float16; from {element} this kernel makes accumulators of 32 bits"
    if not config.takes(problem.a.dtype):
        return (
            f"config {config}: tiles of {problem.a.dtype} must be multiples of 64 bytes, and warp tiles whole lines of "
            "64 or 128 bytes, or parts of one that divide it"
        )
    if reason := why_not_cluster(config, config.cluster_k, arch):
        return reason
    if config.split_k and (problem.a.dtype != FLOAT32 or problem.epilogue is not None):
        return f"config {config}: split_k=1 is for TF32 without an epilogue"
    if config.shared_bytes > (most := arch.shared_bytes_per_block):
        return f"config {config} needs {config.shared_bytes} bytes of shared memory, more than the {most} of {arch}"
    if reason := _why_not_halves(problem, config):
        return reason
    oriented = launch_problem(problem)
    if config.cluster_k > 1 and not has_registers(config, oriented):
        return (
            f"config {config} has no registers for partial sums and copies of {WORD} bytes or fewer: rows of A and B "
            "must begin at multiples of 8 bytes"
        )
    if (words := _words(oriented, config)) > MAX_WORDS:
        return (
            f"rows of A or B that begin anywhere are copied element by element, and config {config} has no registers "
            f"for that: {words} words in each thread are more than {MAX_WORDS}"
        )
    return why_not_grid(grid_of(oriented, config))


def _why_not_halves(problem: GemmProblem, config: MmaSyncConfig) -> str | None:
    """Say why a tile cannot hold two B, or None where it can or need not."""
    half = columns_of(problem, config)
    if half == config.tile_n:
        return None
    if half % (SUBTILE_N * config.warps_n) or half * config.k_bytes % (max(COPIES) * config.threads):
        return f"config {config}: {half} columns of each of two B are too few for its warps"
    return None


def _words(problem: GemmProblem, config: MmaSyncConfig) -> int:
    """Return the words of accumulators, fragments, and elements that are copied one by one, of a thread."""
    warp_m, warp_n = config.tile_m // config.warps_m, config.tile_n // config.warps_n
    words = warp_m * warp_n // 32 + (warp_m + warp_n) // 2
    parts = config.k_bytes // FRAGMENT_BYTES - 1
    for copied, side in zip(copied_bytes(problem), (config.tile_m, config.tile_n), strict=True):
        if copied < WORD:
            words += side * config.depth(problem.a.dtype) // (parts * config.threads)
    return words


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    return refuse_types(types, OUTPUTS, arch)


def signature(problem: GemmProblem, config: MmaSyncConfig) -> Signature:
    """Specialise for types, the major modes of A and B, the widths of copies, and whole tiles."""
    oriented, _, _ = row_result(aligned_with_second(problem))
    a, b, vector = leading_dimension(oriented.a, COPIES), leading_dimension(oriented.b, COPIES), vector_of(oriented)
    whole = tiles_divide(oriented, (config.tile_m, columns_of(problem, config), config.depth(problem.a.dtype)))
    whole = whole and a.copy_bytes == b.copy_bytes == max(COPIES)
    major_a, major_b = ("k" if a.row_major else "m", a.copy_bytes), ("n" if b.row_major else "k", b.copy_bytes)
    plain = _signature(problem.a.dtype, problem.d.dtype, major_a, major_b, vector, whole)
    return (*plain, *epilogue_signature(oriented.epilogue))


def _signature(
    element: DType, out: DType, a: tuple[str, int], b: tuple[str, int], vector: int, whole: bool
) -> Signature:
    acc = INT32 if element == INT8 else FLOAT32
    return (*types_signature(element, out, acc), *copies_signature(a, b, vector), *tiles_signature(whole))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return each type with whole tiles, those of other sizes in two layouts that have all; then narrower copies."""
    del arch
    whole = [(FLOAT16, FLOAT16, "k", "n"), (BFLOAT16, FLOAT32, "k", "n")]
    whole += [
        (FLOAT32, FLOAT32, "k", "n"),
        (FLOAT32, FLOAT32, "m", "k"),
        (INT8, INT32, "k", "n"),
        (INT8, INT8, "m", "k"),
    ]
    whole += [(BFLOAT16, BFLOAT16, a, b) for a in "km" for b in "nk"]
    ragged = [(BFLOAT16, BFLOAT16, 16), (BFLOAT16, BFLOAT16, 2), (FLOAT32, FLOAT32, 4), (INT8, INT32, 1)]
    return (
        *(_signature(element, out, (a, 16), (b, 16), widest(out), True) for element, out, a, b in whole),
        *(
            _signature(element, out, ("k", size), ("n", size), widest(out) if size == 16 else 1, False)
            for element, out, size in ragged
        ),
    )


def launch(problem: GemmProblem, config: MmaSyncConfig) -> Launch:
    """Return the launch recipe: one CTA for each tile of C and matrix of the batch."""
    problem, first, second = row_result(aligned_with_second(problem))
    if problem.epilogue is not None and problem.epilogue.expression.names_c:
        # With beta = 0, C is not read.
        problem = dataclasses.replace(problem, beta=1)
    batch = (problem.batch or (1,))[0]
    lds = tuple(leading_dimension(x, COPIES).stride for x in (problem.a, problem.b))
    # The absolute maximum is cleared before the launch, and by no kernel.
    keeps = problem.epilogue is not None and problem.epilogue.absmax
    grid, tensors, workspaces = grid_of(problem, config), tuple[TensorParam, ...](), tuple[Workspace, ...]()
    if config.split_k:
        grid = (grid[0], splits_of(problem, config), 1)
        # The last cluster of a tile adds, and writes no partial sums.
        writing = max(grid[0] * (grid[1] - 1), 1)
        workspaces, tensors = stream_k_workspaces(writing, config.share_elements, WORD, config.threads // WARPGROUP)
    return Launch(
        grid=grid,
        block=(config.threads, 1, 1),
        shared_bytes=config.shared_bytes,
        cluster=(config.cluster_k, 1, 1),
        params=(
            *batched_params(problem, first, second, *lds),
            *epilogue_params(problem.epilogue, batch, problem.accumulator),
            # The second B has the layout of B.
            *(batched_params(problem, first, SECOND, *lds)[1] for _ in range(num_b_of(problem.epilogue) - 1)),
            *tensors,
        ),
        workspaces=workspaces,
        overlaps=problem.bytes_min <= FEW_BYTES and not keeps,
    )


#: Share of the predicted time that `mma_sync_small` must take less than where copies are of 16 bytes, assumed, and of
#: TF32, of which its times are too short where K is long (record 20261129T180210); where lines begin at any word, of a
#: short K, of which this kernel's are too short, and of a long one (20261130T005152).
_ALIGNED, _TF32, _WORDS, _LONG_K = 0.8, 0.87, (1.1, 0.92), 512


def faster_alternative(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel of small products, where it is expected to be faster."""
    if problem.a.dtype.itemsize == 2 and min(copied_bytes(launch_problem(problem))) == max(COPIES):
        cost *= _ALIGNED
    if problem.a.dtype == FLOAT32:
        any_word = min(copied_bytes(launch_problem(problem))) == WORD
        cost *= _WORDS[problem.k >= _LONG_K] if any_word else _TF32
    return MMA_SYNC_SMALL.name if is_faster_small(problem, cost, gpu) else None


SPEC = KernelSpec(
    name="mma_sync_gemm",
    operation="gemm",
    summary="float16, bfloat16, TF32 and int8, any of the four layouts: tensor cores by mma.sync, k-tiles by cp.async",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=CONFIGS,
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    batch_dims=BATCH_DIMS,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
    faster_alternative=faster_alternative,
    epilogues=True,
    gated=True,
    absmax=True,
)
