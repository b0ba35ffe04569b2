"""hopper_grouped, products of groups whose sizes are in device memory: its limits, launch recipe and cost."""

from __future__ import annotations

import functools

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, DType, Precision
from gemmule.core.epilogue import SECOND, Epilogue
from gemmule.core.epilogue_inputs import INPUTS, epilogue_params, epilogue_signature
from gemmule.core.grouped_problem import AXES, GroupedProblem
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch, Param, TensorParam, Workspace
from gemmule.core.signature import adds_key, major_keys, type_keys
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.hopper.refusals import HOPPER, why_not_arch
from gemmule.kernels.hopper.tile_config import EPI_TILE_M, THREADS, why_not_promoted
from gemmule.kernels.hopper.tma_tiles import (
    operand_params,
    promotion_for,
    result_params,
    row_param,
    why_not_stored,
    why_not_tma,
)
from gemmule.kernels.parts.grouped_tiles import MAX_GROUPS, most_tiles, overlapping_tiles

from .config import COUNTER_WORDS, FOR_FLOAT8, GroupedConfig, search_space
from .cost import costs

DTYPES = (BFLOAT16, FLOAT16)
#: Most rows and columns, and tiles, that 32-bit numbers count with those of a wave beyond.
_MOST = 1 << 30


def why_not(problem: GroupedProblem, arch: Arch, config: GroupedConfig) -> str | None:
    """Say why a config does not take `problem`, or None where it does."""
    del arch
    if problem.axis == "row" and config.cluster_m > 1:
        return f"config {config}: the rows of a cluster have one matrix; cluster_m must be 1 where each row has its own"
    if problem.a.dtype.is_float8 and (reason := why_not_promoted(config)):
        return reason
    return (
        config.why_not_gated(problem.b.dtype.itemsize, not problem.b.has_contiguous_cols) if problem.num_b > 1 else None
    )


@cache_last_call
def refuses(problem: GroupedProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where all do."""
    if reason := why_not_arch(arch) or _why_not_types(problem):
        return reason
    if not all((problem.m, problem.n, problem.k, problem.groups)):
        return "there is nothing to multiply: an extent or the number of groups is 0"
    if problem.axis in ("m", "n") and problem.groups > MAX_GROUPS:
        return f"there are {problem.groups} groups, of at most {MAX_GROUPS}; multiply them in several calls"
    for name, matrix, major in zip("ab", (problem.a, problem.b), _majors(problem), strict=True):
        if not (matrix.has_contiguous_rows or matrix.has_contiguous_cols):
            return f"{name.upper()} has no contiguous dimension among its last two; pass a copy"
        if reason := why_not_tma(name, matrix, problem.batch_of(name)):
            return f"{reason}; pass a copy with padded rows"
        if matrix.dtype.is_float8 and not (matrix.has_contiguous_rows if name == "a" else matrix.has_contiguous_cols):
            return f"{name.upper()} is {matrix.dtype} and not contiguous along K; give A row-major and B column-major"
        if major == ("m" if problem.axis == "row" else problem.axis):
            return (
                f"{name.upper()} is contiguous along {major.upper()}, which the {problem.divider} divide: groups would "
                "begin between the 16 bytes that TMA moves together; pass a copy with the other dimension contiguous"
            )
    if problem.epilogue is not None and (reason := _why_not_epilogue(problem, problem.epilogue)):
        return reason
    if not problem.d.is_row_major:
        return "D is not row-major; pass an output whose last dimension is contiguous"
    if max(problem.m, problem.n, problem.k) >= _MOST or overlapping_tiles(problem, EPI_TILE_M) >= _MOST:
        return f"a dimension of {(problem.m, problem.n, problem.k)} or the number of tiles is beyond {_MOST}"
    return None


def _why_not_epilogue(problem: GroupedProblem, epilogue: Epilogue) -> str | None:
    if problem.axis == "row" and epilogue.matrices:
        return "each row has a matrix of its own; inputs of an epilogue are for groups of rows"
    if AXES[problem.axis] != "b":
        return f"the offsets divide {problem.axis.upper()}; a bias or an epilogue is for groups of rows"
    for matrix in epilogue.matrices:
        if matrix.dtype not in INPUTS:
            return f"an input of the epilogue is {matrix.dtype}; this kernel takes {', '.join(map(str, INPUTS))}"
    if epilogue.second is not None and (reason := why_not_tma("b", epilogue.second, problem.batch_of("b"))):
        return f"{reason}, in both halves; pass a copy with padded rows"
    return None


def _majors(problem: GroupedProblem) -> tuple[str, str]:
    """Return the contiguous dimensions of A and B, as TMA loads them."""
    return "k" if problem.a.has_contiguous_rows else "m", "k" if problem.b.has_contiguous_cols else "n"


def _why_not_types(problem: GroupedProblem) -> str | None:
    a, b, d = problem.a.dtype, problem.b.dtype, problem.d.dtype
    if a.is_float8 and b.is_float8:
        if problem.precision is not Precision.FLOAT8:
            return f"A and B are {a} and {b}: pass precision='float8', as FP8 wgmma accumulates with 13 fraction bits"
        results: tuple[DType, ...] = (BFLOAT16, FLOAT16, FLOAT32)
    elif a == b and a in DTYPES:
        results = (a, FLOAT32)
    else:
        return (
            f"A is {a} and B is {b}; grouped products on a GPU take both of one type among "
            f"{', '.join(map(str, DTYPES))} and float32, or 8-bit floats"
        )
    if d not in results:
        return f"the output is {d}; grouped products of {a} give {' or '.join(map(str, results))}"
    return None


def _by_threads(problem: GroupedProblem) -> bool:
    """Return whether threads write D, which TMA cannot store."""
    if problem.axis == "n":
        # Groups begin at any column.
        return True
    return bool(why_not_tma("d", problem.d, problem.batch_of("d")) or why_not_stored(problem.d))


def signature(problem: GroupedProblem, config: GroupedConfig) -> Signature:
    """Specialise for the types, the contiguous dimensions of A and B, the divided one, and how D is written."""
    del config
    written = "threads" if _by_threads(problem) else "boxes"
    plain = _signature((problem.a.dtype, problem.b.dtype), problem.d.dtype, _majors(problem), problem.axis, written)
    return (*plain, *epilogue_signature(problem.epilogue))


def _signature(
    elements: tuple[DType, DType], out: DType, majors: tuple[str, str], axis: str, written: str
) -> Signature:
    types = type_keys(*elements, out)
    return (*types, *major_keys(*majors), *adds_key(False), ("axis", axis), ("written", written))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return the signatures of a mixture of experts in bfloat16, and one or two of the others."""
    del arch
    kinds = (
        ((BFLOAT16, BFLOAT16), BFLOAT16, ("k", "k"), "m", "boxes"),
        ((BFLOAT16, BFLOAT16), BFLOAT16, ("k", "n"), "m", "boxes"),
        ((BFLOAT16, BFLOAT16), BFLOAT16, ("m", "n"), "k", "boxes"),
        ((BFLOAT16, BFLOAT16), BFLOAT16, ("k", "k"), "row", "boxes"),
        ((FLOAT16, FLOAT16), FLOAT32, ("k", "k"), "n", "threads"),
    )
    return tuple(_signature(*kind) for kind in kinds)


def launch(problem: GroupedProblem, config: GroupedConfig) -> Launch:
    """Return the launch recipe: as many clusters as may have tiles, and run at once."""
    rows, cols = config.tile_m * config.cluster_m, config.tile_n // problem.num_b * config.cluster_n
    clusters = min(most_tiles(problem, rows, cols), config.max_active_clusters)
    a, b, d = problem.a, problem.b.transposed(), problem.d
    batches = {name: problem.batch_of(name) or (1,) for name in "abd"}
    tile_b = config.tile_n // problem.num_b, config.cluster_m
    promotion = promotion_for(problem.m / problem.groups) if problem.axis == "m" else None
    params: tuple[Param, ...] = (
        *operand_params("a", a, batches["a"], config.tile_m, config.cluster_n, promotion),
        *operand_params("b", b, batches["b"], *tile_b, promotion),
        row_param("d", d, batches["d"]),
    )
    if not _by_threads(problem):
        box = (config.epi_tile_n(d.dtype.itemsize, problem.num_b), EPI_TILE_M)
        params += result_params("d", d, batches["d"], box)
    params += epilogue_params(problem.epilogue, problem.groups, FLOAT32)
    if problem.epilogue is not None and problem.epilogue.second is not None:
        second = problem.epilogue.second.transposed()
        params += operand_params(SECOND, second, batches["b"], *tile_b, promotion)
    params += (TensorParam(problem.divider, (problem.operands()[problem.divider].cols,), ()),)
    workspaces = (Workspace("counter", 8 * COUNTER_WORDS),) if config.dynamic else ()
    return Launch(
        grid=(clusters * config.cluster_size, 1, 1),
        block=(THREADS, 1, 1),
        shared_bytes=config.shared_bytes,
        cluster=(config.cluster_size, 1, 1),
        overlaps=True,
        params=(*params, *(TensorParam(x.name, (COUNTER_WORDS,), ()) for x in workspaces)),
        workspaces=workspaces,
    )


@functools.cache
def extra_configs() -> tuple[GroupedConfig, ...]:
    """Return the configs that a search tries beyond those below."""
    return tuple(one for one in search_space() if one not in SPEC.configs)


SPEC = KernelSpec(
    name="hopper_grouped",
    operation="grouped",
    summary="groups along M, N or K of float16 and bfloat16, whose sizes are in device memory: wgmma, TMA",
    package=__package__,
    archs=(HOPPER,),
    configs=(
        GroupedConfig(tile_m=128, tile_n=256, stages=4),
        GroupedConfig(tile_m=128, tile_n=256, stages=4, dynamic=1),
        GroupedConfig(tile_m=128, tile_n=256, stages=4, cluster_m=2),
        GroupedConfig(tile_m=128, tile_n=256, stages=4, cluster_n=2),
        GroupedConfig(tile_m=256, tile_n=128, stages=4, cluster_n=2),
        GroupedConfig(tile_m=128, tile_n=192, stages=4),
        GroupedConfig(tile_m=128, tile_n=192, stages=4, pingpong=1),
        GroupedConfig(tile_m=128, tile_n=192, stages=4, pingpong=1, dynamic=1),
        GroupedConfig(tile_m=128, tile_n=160, stages=5, pingpong=1, cluster_n=2),
        GroupedConfig(tile_m=128, tile_n=128, stages=6, pingpong=1),
        GroupedConfig(tile_m=128, tile_n=128, stages=6, pingpong=1, cluster_n=2),
        GroupedConfig(tile_m=64, tile_n=256, stages=4, pingpong=1),
        GroupedConfig(tile_m=64, tile_n=256, stages=4, pingpong=1, dynamic=1),
        GroupedConfig(tile_m=64, tile_n=256, stages=4, pingpong=1, cluster_n=2),
        GroupedConfig(tile_m=64, tile_n=192, stages=5, pingpong=1),
        GroupedConfig(tile_m=64, tile_n=128, stages=7, pingpong=1),
        GroupedConfig(tile_m=64, tile_n=64, stages=11, pingpong=1),
        FOR_FLOAT8,
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    costs=costs,
    cost_in_us=True,
    extra_configs=extra_configs,
)
