"""hopper_gemm_line_classes, for an operand whose lines begin anywhere: its limits, launch recipe and cost."""

from __future__ import annotations

from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT16, INT32, DType
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch, ScalarParam, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, OperandTypes
from gemmule.core.signature import adds_key
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper, refuse_no_config, refuse_types
from gemmule.kernels.hopper.tma_tiles import scale_params, why_not_tma

from .classes import a_params, b_params, residues, why_not_classes
from .config import CLASSES, LineClassConfig
from .cost import times

DTYPES = (BFLOAT16, FLOAT16)


def oriented(problem: GemmProblem) -> tuple[GemmProblem, str, str]:
    """Return the equivalent problem whose A TMA loads M-major, and the operands that are its A and B."""
    if problem.a.has_contiguous_cols and why_not_tma("a", problem.a, ()) is None:
        return problem, "a", "b"
    return _transposed(problem), "b", "a"


_transposed = cache_last_call(GemmProblem.transposed)


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    if reason := refuse_hopper(problem, arch, "ab", batch_dims=0):
        return reason
    turned, first, second = oriented(problem)
    if not turned.a.has_contiguous_cols:
        return f"{first.upper()} is K-major; this kernel takes one operand MN-major"
    if reason := why_not_tma("a", turned.a, ()):
        return reason
    return why_not_classes(second.upper(), turned.b)


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    return refuse_types(DTYPES, types, arch)


def signature(problem: GemmProblem, config: LineClassConfig) -> Signature:
    """Specialise for the type, the direction in which B is contiguous, and whether there is a C."""
    del config
    turned, _, _ = oriented(problem)
    majors = "k" if turned.b.has_contiguous_cols else "n", "n" if turned.d.is_row_major else "m"
    return _signature(problem.a.dtype, majors, problem.c is not None)


def _signature(element: DType, majors: tuple[str, str], adds: bool) -> Signature:
    # With C lanes do not write along lines.
    b_major, d_major = majors
    return (("element", element.name), ("b_major", b_major), ("d_major", "n" if adds else d_major), *adds_key(adds))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every combination."""
    del arch
    return tuple(
        _signature(dtype, (b, d), adds)
        for dtype in DTYPES
        for b in "nk"
        for d, adds in (("n", False), ("m", False), ("n", True))
    )


def launch(problem: GemmProblem, config: LineClassConfig) -> Launch:
    """Return the launch recipe: a cluster for each tile, tensor maps of all classes of lines, and C and D in place."""
    problem, first, second = oriented(problem)
    if problem.b.has_contiguous_cols:
        ld, tiles_n = problem.b.col_stride, CLASSES * -(-problem.n // (CLASSES * config.tile_n))
    else:
        ld, tiles_n = problem.b.row_stride, -(-problem.n // (config.tile_n - CLASSES))
    c = ("d", problem.d) if problem.c is None else ("c", problem.c)
    return Launch(
        grid=(-(-problem.m // (config.tile_m * config.cluster_m)) * tiles_n * config.cluster_size, 1, 1),
        cluster=(config.cluster_size, 1, 1),
        block=(config.threads, 1, 1),
        shared_bytes=config.shared_bytes,
        params=(
            *a_params(problem, first, config.tile_m),
            *b_params(second, problem.b, config.tile_n, config.cluster_m),
            _strided(*c),
            _strided("d", problem.d),
            *(
                ScalarParam(name, INT32, value)
                for name, value in zip(("step", "inverse", "k"), (*residues(ld), problem.k), strict=True)
            ),
            *scale_params(problem),
        ),
        overlaps=True,
    )


def _strided(operand: str, matrix: StridedMatrix) -> TensorParam:
    return TensorParam(operand, (matrix.rows, matrix.cols, 1), (matrix.row_stride, matrix.col_stride, 0))


def costs(problem: GemmProblem, configs: Sequence[LineClassConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds."""
    return times(oriented(problem)[0], configs, gpu)


SPEC = KernelSpec(
    name="hopper_gemm_line_classes",
    operation="gemm",
    summary="float16 and bfloat16, one operand with unaligned lines, every 8th by one tensor map: wgmma, TMA",
    package=__package__,
    archs=(HOPPER,),
    # Those that together are within 1 % of the fastest of 33 for the products of record 20261130T173011.
    configs=(
        *(LineClassConfig(tile_m=128, tile_n=128, stages=6, cluster_k=k) for k in (1, 2, 4)),
        LineClassConfig(tile_m=128, tile_n=128, stages=6, cluster_m=2),
        *(LineClassConfig(tile_m=128, tile_n=192, stages=5, cluster_k=k) for k in (1, 2)),
        *(LineClassConfig(tile_m=128, tile_n=192, stages=5, cluster_m=2, cluster_k=k) for k in (1, 2)),
        *(LineClassConfig(tile_m=128, tile_n=64, stages=8, cluster_k=k) for k in (1, 4)),
        LineClassConfig(tile_m=128, tile_n=256, stages=4, cluster_m=4),
        *(LineClassConfig(tile_m=64, tile_n=128, stages=8, cluster_k=k) for k in (2, 4)),
        LineClassConfig(tile_m=64, tile_n=192, stages=6, cluster_k=4),
        *(LineClassConfig(tile_m=64, tile_n=64, stages=12, cluster_k=k) for k in (2, 4)),
    ),
    signatures=signatures,
    why_not=refuse_no_config,
    signature=signature,
    launch=launch,
    batch_dims=0,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
)
