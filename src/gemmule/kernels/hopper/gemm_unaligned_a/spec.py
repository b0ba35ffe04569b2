"""hopper_gemm_unaligned_a, for an A whose lines begin anywhere: its limits and launch recipe.

Of an MN-major A B's copy has the k of each k-tile in the order of classes: hopper_gemm_repacked writes both.
"""

from __future__ import annotations

import dataclasses

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT16, DType
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import MAP_ALIGNMENT, ExtentsParam, Launch, Param, TensorMapParam, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, OperandTypes
from gemmule.core.row_major import row_result
from gemmule.core.signature import adds_key, major_keys, majors_of
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.hopper.cost.operation import why_not_split
from gemmule.kernels.hopper.gemm_line_classes.classes import class_lines
from gemmule.kernels.hopper.gemm_line_classes.config import CLASSES, TILE_K
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper, refuse_types
from gemmule.kernels.hopper.tile_config import THREADS
from gemmule.kernels.hopper.tma_tiles import operand_params, row_params, scale_params, why_not_tma

from .config import UnalignedAConfig
from .cost import costs

DTYPES = (BFLOAT16, FLOAT16)
#: Bytes that L2 fetches at once.
_PROMOTION = 128


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    if reason := refuse_hopper(problem, arch):
        return reason
    if problem.batch:
        return "there is a batch; this kernel multiplies two matrices"
    reasons = [_why_not_orientation(row_result(problem), swap) for swap in (False, True)]
    return None if None in reasons else reasons[0]


def why_not(problem: GemmProblem, arch: Arch, config: UnalignedAConfig) -> str | None:
    """Say why the kernel cannot take `problem` with `config`, or None where it can."""
    del arch
    given = row_result(problem)
    if reason := _why_not_orientation(given, bool(config.swap_ab)):
        return reason
    if reason := why_not_split(problem, config.cluster_k):
        return reason
    lines = _lines_of(given[0].b.transposed() if config.swap_ab else given[0].a).rows
    return f"an operand has {lines} lines, of at least {CLASSES}" if lines < CLASSES else None


def oriented_as(problem: GemmProblem, config: UnalignedAConfig) -> tuple[GemmProblem, str, str]:
    """Return the product as the kernel has it: with swap_ab of the transposes, D column-major."""
    oriented, first, second = row_result(problem)
    return (oriented.transposed(), second, first) if config.swap_ab else (oriented, first, second)


def _why_not_orientation(given: tuple[GemmProblem, str, str], swap: bool) -> str | None:
    """Say why the kernel cannot take a product with its first operand, or with `swap` the second, as it lies."""
    oriented, first, second = given
    if swap:
        oriented, first, second = oriented.transposed(), second, first
    a, name = oriented.a, first.upper()
    if a.alignment % MAP_ALIGNMENT:
        return f"{name} begins at a multiple of {a.alignment} bytes; this kernel needs {MAP_ALIGNMENT}"
    if (ahead := _lines_of(a).row_stride) <= 0:
        return f"{name} has lines {ahead} elements apart; this kernel takes them in order"
    return why_not_tma(second, oriented.b, ())


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    return refuse_types(DTYPES, types, arch)


def signature(problem: GemmProblem, config: UnalignedAConfig) -> Signature:
    """Specialise for the type, the direction in which B is contiguous, and whether there is a C."""
    oriented, _, _ = oriented_as(problem, config)
    return _signature(problem.a.dtype, majors_of(oriented), problem.c is not None)


def _signature(element: DType, majors: tuple[str, str], adds: bool) -> Signature:
    return (("element", element.name), *major_keys(*majors), *adds_key(adds))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every combination."""
    del arch
    return tuple(
        _signature(dtype, (a, b), adds) for dtype in DTYPES for a in "km" for b in "kn" for adds in (False, True)
    )


def _lines_of(matrix: StridedMatrix) -> StridedMatrix:
    """Return a matrix whose rows are contiguous: it, or its transpose."""
    return matrix if matrix.has_contiguous_rows else matrix.transposed()


def class_params(operand: str, matrix: StridedMatrix, config: UnalignedAConfig) -> tuple[Param, ...]:
    """Describe the classes of A's rows, each from the multiple of 16 bytes before its first row on."""
    item, lines = matrix.dtype.itemsize, _lines_of(matrix)
    k_major = lines is matrix
    box = (TILE_K, config.tile_m // CLASSES, 1) if k_major else (config.tile_m + 8, TILE_K // CLASSES, 1)
    swizzle = TILE_K * item if k_major else 0
    maps: list[Param] = []
    shapes: list[Param] = []
    for first in range(CLASSES):
        some, ahead = class_lines(lines, first)
        extents, pitch = (some.cols, some.rows, 1), some.row_stride * item
        pitches, offset = (pitch, pitch * some.rows), ahead * item
        maps.append(TensorMapParam(operand, matrix.dtype, extents, pitches, box, swizzle, _PROMOTION, offset=offset))
        shapes.append(ExtentsParam(operand, (some.rows, some.cols, 1)))
    return (*maps, *shapes)


def _result_params(problem: GemmProblem, batch: tuple[int, ...]) -> tuple[Param, Param]:
    """Describe C, or D where there is none, and D, row-major or column-major."""
    if problem.d.is_row_major:
        return row_params(problem, batch)
    c = ("d", problem.d) if problem.c is None else ("c", problem.c)
    first, second = (
        TensorParam(name, (one.rows, one.cols, *batch), (one.col_stride, 0)) for name, one in (c, ("d", problem.d))
    )
    return first, second


def launch(problem: GemmProblem, config: UnalignedAConfig) -> Launch:
    """Return the launch recipe: as many clusters as share the tiles, tensor maps of A and B, and C and D in place."""
    problem, first, second = oriented_as(problem, config)
    batch = (1,)
    rows, cols = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    tiles = -(-problem.m // rows) * -(-problem.n // cols)
    b = problem.b.transposed()
    if not problem.a.has_contiguous_rows:
        # Whole k-tiles in the order of classes.
        b = dataclasses.replace(b, cols=-(-b.cols // TILE_K) * TILE_K)
    params = (
        *class_params(first, problem.a, config),
        *operand_params(second, b, batch, config.tile_n, config.cluster_m),
        *_result_params(problem, batch),
        *scale_params(problem),
    )
    # Partial sums are received in the stages: a CTA has one tile.
    clusters = tiles if config.cluster_k > 1 else min(tiles, config.max_active_clusters)
    return Launch(
        grid=(clusters * config.cluster_size, 1, 1),
        cluster=(config.cluster_size, 1, 1),
        block=(THREADS, 1, 1),
        shared_bytes=config.shared_bytes,
        params=params,
        overlaps=True,
    )


SPEC = KernelSpec(
    name="hopper_gemm_unaligned_a",
    operation="gemm",
    summary="float16 and bfloat16, A of any leading dimension as it lies, B with one of multiples of 16 bytes",
    package=__package__,
    archs=(HOPPER,),
    configs=tuple(
        dataclasses.replace(one, swap_ab=swap)
        for swap in (0, 1)
        for one in (
            UnalignedAConfig(),
            UnalignedAConfig(tile_n=256, stages=3, pingpong=0),
            UnalignedAConfig(tile_n=192, stages=4, pingpong=0),
            UnalignedAConfig(tile_n=64, stages=7),
            UnalignedAConfig(cluster_n=2),
            UnalignedAConfig(tile_n=64, stages=7, cluster_n=2),
            UnalignedAConfig(tile_n=192, stages=4, pingpong=0, cluster_n=2),
            UnalignedAConfig(tile_n=256, stages=3, pingpong=0, cluster_n=2),
            # Clusters that split K, those that were fastest of 19.
            UnalignedAConfig(tile_n=64, stages=8, pingpong=0, cluster_k=4),
            UnalignedAConfig(tile_n=80, stages=7, pingpong=0, cluster_k=5),
            UnalignedAConfig(tile_n=96, stages=7, pingpong=0, cluster_k=3),
            *(UnalignedAConfig(stages=6, pingpong=0, cluster_k=k) for k in (2, 8)),
            UnalignedAConfig(tile_n=144, stages=5, pingpong=0, cluster_k=3),
            UnalignedAConfig(tile_n=192, stages=4, pingpong=0, cluster_k=2),
        )
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
)
