"""Asynchronous copies, several stages deep: what the kernel takes, how it is launched."""

from __future__ import annotations

import itertools

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32
from gemmule.core.launch import FEW_BYTES, Launch
from gemmule.core.problem import GemmProblem, split_batch
from gemmule.core.row_major import (
    batched_params,
    is_vectorised,
    row_result,
    why_not_extents,
    why_not_grid,
    why_not_lines,
)
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.simt.config import CpAsyncConfig

def why_not(problem: GemmProblem, arch: Arch, config: CpAsyncConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch
    inner, _, _ = split_batch(problem, SPEC.batch_dims)
    oriented, _, _ = row_result(inner)
    if reason := why_not_lines(inner, FLOAT32):
        return reason
    return why_not_extents(problem) or why_not_grid(_grid(oriented, config))


def _grid(problem: GemmProblem, config: CpAsyncConfig) -> tuple[int, int, int]:
    tiles = -(-problem.n // config.tile_n) * -(-problem.m // config.tile_m)
    return (tiles * (problem.batch or (1,))[0], 1, 1)


def signature(problem: GemmProblem, config: CpAsyncConfig) -> Signature:
    """Specialise for the direction in which A and B are contiguous, the width of copies, and whole tiles."""
    oriented, _, _ = row_result(problem)
    rows = {name: name in "cd" or matrix.is_row_major for name, matrix in oriented.operands().items()}
    wide = all(is_vectorised(matrix, row_major=rows[name]) for name, matrix in oriented.operands().items())
    extents = zip((oriented.m, oriented.n, oriented.k), (config.tile_m, config.tile_n, config.tile_k), strict=True)
    whole = wide and all(extent % side == 0 for extent, side in extents)
    return _signature("k" if rows["a"] else "m", "n" if rows["b"] else "k", wide, whole)


def _signature(a: str, b: str, wide: bool, whole: bool) -> Signature:
    copies, tiles = "16" if wide else "4", "whole" if whole else "ragged"
    return (("element", FLOAT32.name), ("a_major", a), ("b_major", b), ("copies", copies), ("tiles", tiles))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return all layouts with whole tiles, with tiles that do not divide, and with rows that are not aligned."""
    del arch
    widths = ((True, True), (True, False), (False, False))
    return tuple(_signature(a, b, *width) for width, a, b in itertools.product(widths, "km", "nk"))


def launch(problem: GemmProblem, config: CpAsyncConfig) -> Launch:
    """Return the launch recipe: one CTA for each tile of C and matrix of the batch."""
    kinds = dict(signature(problem, config))
    problem, first, second = row_result(problem)
    a_line = problem.a.row_stride if kinds["a_major"] == "k" else problem.a.col_stride
    b_line = problem.b.row_stride if kinds["b_major"] == "n" else problem.b.col_stride
    return Launch(
        grid=_grid(problem, config),
        block=(config.threads, 1, 1),
        shared_bytes=config.shared_bytes(kinds["a_major"] == "k", kinds["b_major"] == "k"),
        params=batched_params(problem, first, second, a_line, b_line),
        overlaps=problem.bytes_min <= FEW_BYTES,
    )


#: Of tiles of so many elements, on an H200: nanoseconds that one more row of K takes a multiprocessor for each, and at
#: least, where it has one alone; and how many rows of K its beginning and end are worth.
_TIMES = {128 * 256: (180.0, 180.0, 97), 128 * 128: (100.0, 100.0, 78), 64 * 64: (36.3, 75.0, 34)}


def cost(problem: GemmProblem, config: CpAsyncConfig, multiprocessors: int) -> float:
    """Return roughly the time in nanoseconds."""
    return cost_of(_grid(problem, config)[0], problem.k, config, multiprocessors)


def cost_of(ctas: int, k: int, config: CpAsyncConfig, multiprocessors: int) -> float:
    """Return roughly the time in nanoseconds of so many CTAs, of tiles with sums of `k` products."""
    each, alone, ends = _TIMES.get(config.outputs, (config.outputs / 160, config.outputs / 160, 97))
    tiles = -(-ctas // multiprocessors)
    return max(each * tiles, alone) * (k + ends)


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
    cost=cost,
)
