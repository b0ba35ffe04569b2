"""Spec of the float32 GEMM with a cp.async mainloop."""

from __future__ import annotations

import functools
import itertools

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import FEW_BYTES, Launch
from gemmule.core.problem import GemmProblem, inner_problem
from gemmule.core.row_major import (
    is_vectorised,
    row_result,
    why_not_extents,
    why_not_grid,
    why_not_lines,
    why_not_types,
)
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.parts.batched_launch import batched_params, tile_grid, tiles_divide
from gemmule.kernels.simt.config import CpAsyncConfig

#: For tiles of so many elements, on an H200: nanoseconds for one more k of each tile of an SM, the least for
#: one tile alone, and the k that prologue and epilogue are worth.
_TIMES = {128 * 256: (180.0, 180.0, 97), 128 * 128: (100.0, 100.0, 78), 64 * 64: (36.3, 75.0, 34)}


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where one may."""
    del arch
    inner = inner_problem(problem, SPEC.batch_dims)
    return why_not_lines(inner, FLOAT32) or why_not_extents(problem)


def why_not(problem: GemmProblem, arch: Arch, config: CpAsyncConfig) -> str | None:
    """Say why the kernel cannot take `problem` with `config`, or None where it can."""
    del arch
    inner = inner_problem(problem, SPEC.batch_dims)
    oriented, _, _ = row_result(inner)
    return why_not_grid(tile_grid(oriented, config.tile_m, config.tile_n))


def signature(problem: GemmProblem, config: CpAsyncConfig) -> Signature:
    """Specialise for the major modes of A and B, the width of copies, and whole tiles."""
    oriented, _, _ = row_result(problem)
    rows = {name: name in "cd" or matrix.is_row_major for name, matrix in oriented.operands().items()}
    wide = all(is_vectorised(matrix, row_major=rows[name]) for name, matrix in oriented.operands().items())
    whole = wide and tiles_divide(oriented, (config.tile_m, config.tile_n, config.tile_k))
    return _signature("k" if rows["a"] else "m", "n" if rows["b"] else "k", wide, whole)


def _signature(a_major: str, b_major: str, wide: bool, whole: bool) -> Signature:
    return (
        ("element", FLOAT32.name),
        ("a_major", a_major),
        ("b_major", b_major),
        ("copies", "16" if wide else "4"),
        ("tiles", "whole" if whole else "ragged"),
    )


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return all layouts with whole tiles, with tiles that do not divide, and with rows that are not aligned."""
    del arch
    widths = ((True, True), (True, False), (False, False))
    return tuple(_signature(a, b, *width) for width, a, b in itertools.product(widths, "km", "nk"))


def launch(problem: GemmProblem, config: CpAsyncConfig) -> Launch:
    """Return the launch recipe: one CTA for each tile of C and matrix of the batch."""
    types = dict(signature(problem, config))
    problem, first, second = row_result(problem)
    lda = problem.a.row_stride if types["a_major"] == "k" else problem.a.col_stride
    ldb = problem.b.row_stride if types["b_major"] == "n" else problem.b.col_stride
    return Launch(
        grid=tile_grid(problem, config.tile_m, config.tile_n),
        block=(config.threads, 1, 1),
        shared_bytes=config.shared_bytes(types["a_major"] == "k", types["b_major"] == "k"),
        params=batched_params(problem, first, second, lda, ldb),
        overlaps=problem.bytes_min <= FEW_BYTES,
    )


def cost(problem: GemmProblem, config: CpAsyncConfig, gpu: GpuRates) -> float:
    """Return roughly the time in nanoseconds."""
    each, alone, ends = _TIMES.get(config.tile_elements, (config.tile_elements / 160, config.tile_elements / 160, 97))
    tiles = -(-tile_grid(problem, config.tile_m, config.tile_n)[0] // gpu.multiprocessors)
    return max(each * tiles, alone) * (problem.k + ends)


SPEC = KernelSpec(
    name="g07_cp_async",
    operation="gemm",
    summary="float32, any of the four layouts: asynchronous copies, 128 x 256 tiles, 16 x 8 elements a thread",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=(
        CpAsyncConfig(),
        CpAsyncConfig(tile_n=128, warps_m=4, warps_n=2),
        CpAsyncConfig(tile_m=64, tile_n=64, warps_n=2),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    refuses_types=functools.partial(why_not_types, FLOAT32),
    cost=cost,
)
