"""Spec of the float64 GEMM on tensor cores."""

from __future__ import annotations

import dataclasses
import functools
import itertools

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT64
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, inner_problem
from gemmule.core.row_major import row_result, why_not_extents, why_not_grid, why_not_lines, why_not_types
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.float64.config import COLUMNS, COPIES, Float64Config
from gemmule.kernels.float64.cost import costs
from gemmule.kernels.float64.shared_launch import shared_launch, why_not_shared
from gemmule.kernels.hopper.refusals import refuse_matrices
from gemmule.kernels.hopper.tma_tiles import operand_params
from gemmule.kernels.parts.batched_launch import copies_signature, tile_grid, tile_launch, tiles_divide, tiles_signature
from gemmule.kernels.parts.leading_dimension import LeadingDimension, leading_dimension, result_vector

#: Most copies of single elements of a k-tile by a thread, which holds their addresses in registers.
_MAX_COPIES = 32
#: Most registers of a thread for these, accumulators and fragments, and elements of K of a fragment's word.
_MAX_REGISTERS, _DEPTH = 224, 4
#: Elements of D that a thread writes at once.
_VECTOR = 2


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    del arch
    inner = inner_problem(problem, SPEC.batch_dims)
    return why_not_lines(inner, FLOAT64) or why_not_extents(inner)


def why_not(problem: GemmProblem, arch: Arch, config: Float64Config) -> str | None:
    """Say why the kernel cannot take `problem` with `config`, or None where it can."""
    inner = inner_problem(problem, SPEC.batch_dims)
    oriented, _, _ = row_result(inner)
    if reason := config.why_not_on(arch):
        return reason
    if min(_ld(x).copy_bytes for x in (oriented.a, oriented.b)) < max(COPIES) and (reason := _why_not_odd(config)):
        return f"rows of A or B that begin or end at odd elements are copied one by one; config {config} has {reason}"
    if reason := why_not_shared(problem, config) or (_why_not_tma(problem) if config.tma else None):
        return reason
    return why_not_grid(tile_grid(oriented, config.tile_m, config.tile_n, config.cluster_k))


def _why_not_tma(problem: GemmProblem) -> str | None:
    """Say why TMA cannot load A and B, or None where it can."""
    return refuse_matrices(problem, "abcd", tma="ab")


def _why_not_odd(config: Float64Config) -> str | None:
    """Say why a thread cannot hold the addresses of copies of single elements, or None where it can."""
    copies = (config.tile_m + config.tile_n) * config.tile_k // config.threads
    if copies > _MAX_COPIES:
        return f"too few threads for that: {copies} copies each are more than {_MAX_COPIES}"
    # Accumulators, and fragments of B and, of two blocks of rows, of A.
    columns, words = config.tile_n // config.warps_n // COLUMNS, max(config.mma_k, 8) // _DEPTH
    held = config.tile_elements // config.threads + words * (columns + 4)
    if (registers := 2 * (held + copies)) > _MAX_REGISTERS:
        return f"no registers for that: {registers} of each thread are more than {_MAX_REGISTERS}"
    return None


def _ld(matrix: StridedMatrix) -> LeadingDimension:
    # The hardware reads only the part of a copy that is inside, but compute-sanitizer reports all of it as read.
    return leading_dimension(matrix, COPIES, ends=True)


def signature(problem: GemmProblem, config: Float64Config) -> Signature:
    """Specialise for the major modes of A and B, the widths of copies, and whole tiles."""
    oriented, _, _ = row_result(problem)
    a, b, vector = _ld(oriented.a), _ld(oriented.b), result_vector(oriented, _VECTOR)
    whole = tiles_divide(oriented, (config.tile_m, config.tile_n, config.tile_k))
    whole = whole and vector == _VECTOR and a.copy_bytes == b.copy_bytes == max(COPIES)
    return _signature(
        ("k" if a.row_major else "m", a.copy_bytes), ("n" if b.row_major else "k", b.copy_bytes), vector, whole
    )


def _signature(a: tuple[str, int], b: tuple[str, int], vector: int, whole: bool) -> Signature:
    return (("element", FLOAT64.name), *copies_signature(a, b, vector), *tiles_signature(whole))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return all layouts with whole tiles, with tiles that do not divide, and with rows that are not aligned."""
    del arch
    widths = ((16, _VECTOR, True), (16, _VECTOR, False), (8, 1, False))
    return tuple(
        _signature((a, size), (b, size), vector, whole)
        for (size, vector, whole), a, b in itertools.product(widths, "km", "nk")
    )


def launch(problem: GemmProblem, config: Float64Config) -> Launch:
    """Return the launch recipe: one CTA for each tile of C and matrix of the batch, or with stream-K those resident."""
    recipe = tile_launch(problem, config, _ld, config.shared_bytes)
    return shared_launch(problem, config, _by_tma(problem, config, recipe) if config.tma else recipe)


def _by_tma(problem: GemmProblem, config: Float64Config, recipe: Launch) -> Launch:
    """Return the recipe with tensor maps of A and B."""
    oriented, first, second = row_result(problem)
    batch = oriented.batch or (1,)
    k_major = [dict(signature(problem, config))[f"{name}_major"] == "k" for name in "ab"]
    params = (
        *operand_params(first, oriented.a, batch, config.tile_m, k_major=k_major[0]),
        *operand_params(second, oriented.b.transposed(), batch, config.tile_n, k_major=k_major[1]),
        *recipe.params[2:],
    )
    return dataclasses.replace(recipe, block=(config.block_threads, 1, 1), params=params)


SPEC = KernelSpec(
    name="float64_gemm",
    operation="gemm",
    summary="float64, any of the four layouts: tensor cores by mma.sync, k-tiles by cp.async or TMA",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=(
        Float64Config(),
        Float64Config(stages=3, mma_k=8),
        Float64Config(tile_n=128, warps_n=4, mma_k=8),
        *(Float64Config(tile_m=128, tile_n=128, warps_n=4, mma_k=k) for k in (8, 16)),
        Float64Config(mma_k=8, cluster_k=2),
        Float64Config(tile_n=32, cluster_k=2),
        *(Float64Config(tile_m=32, mma_k=8, cluster_k=parts) for parts in (1, 2)),
        Float64Config(tile_m=32, tile_n=32, tile_k=32, cluster_k=2),
        Float64Config(tile_m=32, tile_n=32, tile_k=32),
        Float64Config(tile_m=16, tile_k=32, warps_m=1, warps_n=4, cluster_k=2),
        Float64Config(tile_m=16, tile_k=32, warps_m=1, cluster_k=4),
        Float64Config(mma_k=8, cluster_k=4),
        Float64Config(tile_m=32, mma_k=8, cluster_k=4),
        # For few tiles and a long K.
        *(Float64Config(mma_k=8, cluster_k=parts) for parts in (6, 8)),
        *(Float64Config(tile_m=32, mma_k=8, cluster_k=parts) for parts in (6, 8)),
        *(Float64Config(tile_m=32, tile_n=32, tile_k=32, cluster_k=parts) for parts in (4, 6, 8)),
        *(Float64Config(tile_m=32, tile_k=32, stages=3, mma_k=8, cluster_k=parts) for parts in (2, 4, 8)),
        # Eight warps: more products at a time of each tile.
        *(Float64Config(warps_n=4, cluster_k=parts) for parts in (1, 2)),
        # Sides that others leave half empty.
        *(Float64Config(tile_m=96, stages=3, mma_k=8, cluster_k=parts) for parts in (1, 2)),
        Float64Config(tile_n=96, stages=3, mma_k=8),
        Float64Config(tile_n=112, warps_m=4, warps_n=1, stages=3, mma_k=8),
        Float64Config(tile_m=80, warps_m=1, warps_n=4, stages=3, mma_k=8),
        Float64Config(tile_n=32, mma_k=8),
        *(Float64Config(mma_k=8, tile_m=32, **fields) for fields in ({"cluster_k": 3}, {"tile_k": 32, "stages": 3})),
        *(Float64Config(tile_n=32, tile_k=32, stages=3, mma_k=8, cluster_k=parts) for parts in (1, 4)),
        Float64Config(warps_n=4, mma_k=8),
        *(Float64Config(tile_k=32, warps_n=4, stages=3, mma_k=8, cluster_k=parts) for parts in (2, 4)),
        # Partial last waves, and long K, by stream-K.
        Float64Config(stream_k=1),
        Float64Config(warps_n=4, stream_k=1),
        Float64Config(tile_n=128, warps_n=4, mma_k=8, stream_k=1),
        Float64Config(tile_m=128, warps_m=4, mma_k=8, stream_k=1),
        *(Float64Config(tile_m=128, tile_n=128, warps_n=4, mma_k=k, stream_k=1) for k in (8, 16)),
        Float64Config(tile_m=128, tile_n=128, tile_k=32, warps_n=4, stages=3, mma_k=8, stream_k=1),
        Float64Config(tile_m=128, tile_n=128, warps_n=4, stages=6, stream_k=1, tma=1),
        *(Float64Config(**{side: 96}, stages=3, mma_k=8, stream_k=1) for side in ("tile_m", "tile_n")),
        Float64Config(tile_n=112, warps_m=4, warps_n=1, stages=3, mma_k=8, stream_k=1),
        Float64Config(tile_m=32, mma_k=8, stream_k=1),
        Float64Config(tile_m=32, tile_k=32, stages=3, mma_k=8, stream_k=1),
        # Few tiles and a long K, by clusters that share tiles.
        Float64Config(cluster_k=2, stream_k=1),
        Float64Config(mma_k=8, cluster_k=4, stream_k=1),
        *(Float64Config(tile_m=32, tile_k=32, stages=3, mma_k=8, cluster_k=parts, stream_k=1) for parts in (4, 2)),
        Float64Config(cluster_k=4, stream_k=1),
        Float64Config(tile_m=32, mma_k=8, cluster_k=4, stream_k=1),
        Float64Config(tile_m=32, tile_n=32, tile_k=32, cluster_k=4, stream_k=1),
        Float64Config(tile_m=16, tile_k=32, warps_m=1, warps_n=4, cluster_k=4, stream_k=1),
        Float64Config(tile_k=32, warps_n=4, stages=3, mma_k=8, cluster_k=2, stream_k=1),
        Float64Config(tile_n=96, stages=3, mma_k=8, cluster_k=2, stream_k=1),
        Float64Config(stages=3, mma_m=8, mma_k=4),
        Float64Config(tile_m=128, tile_n=128, warps_n=4, stages=3, mma_m=8, mma_k=4),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    refuses_types=functools.partial(why_not_types, FLOAT64),
    costs=costs,
    cost_in_us=True,
)
