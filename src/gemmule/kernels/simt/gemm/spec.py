"""Spec of the float32 GEMM on the FMA units."""

from __future__ import annotations

import functools
import itertools

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import FEW_BYTES, Launch
from gemmule.core.problem import GemmProblem, split_batch
from gemmule.core.row_major import row_result, why_not_extents, why_not_grid, why_not_lines, why_not_types
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.parts.batched_launch import batched_params, tile_grid, tiles_divide
from gemmule.kernels.parts.leading_dimension import address_multiple
from gemmule.kernels.simt.config import VECTOR, SimtConfig
from gemmule.kernels.simt.cost import COPIES, costs, operand_copies


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    del arch
    inner, _, _ = split_batch(problem, SPEC.batch_dims)
    return why_not_lines(inner, FLOAT32) or why_not_extents(inner)


def why_not(problem: GemmProblem, arch: Arch, config: SimtConfig) -> str | None:
    """Say why the kernel cannot take `problem` with `config`, or None where it can."""
    if arch.major < 9 and config.cluster_k > 1:
        return f"config {config}: {arch} has no clusters, which sm_90 and newer have"
    inner, _, _ = split_batch(problem, SPEC.batch_dims)
    oriented, _, _ = row_result(inner)
    return why_not_grid(tile_grid(oriented, config.tile_m, config.tile_n, config.cluster_k))


def _vector(problem: GemmProblem) -> int:
    """Return how many elements of D, and of C, are moved at once."""
    outputs = [matrix for matrix in (problem.c, problem.d) if matrix is not None]
    aligned = all(address_multiple(x, x.rows, x.row_stride) % max(COPIES) == 0 for x in outputs)
    return VECTOR if problem.n % VECTOR == 0 and aligned else 1


def signature(problem: GemmProblem, config: SimtConfig) -> Signature:
    """Specialise for the major modes of A and B, the widths of copies, and whole tiles."""
    oriented, _, _ = row_result(problem)
    a, b, vector = operand_copies(oriented.a), operand_copies(oriented.b), _vector(oriented)
    # K-major operands are transposed by copies of an element.
    a_major, a_copies = ("k", 4) if a.row_major else ("m", a.copy_bytes)
    b_major, b_copies = ("n", b.copy_bytes) if b.row_major else ("k", 4)
    whole = tiles_divide(oriented, (config.tile_m, config.tile_n, config.tile_k)) and vector > 1
    return _signature((a_major, a_copies), (b_major, b_copies), vector, whole)


def _signature(a: tuple[str, int], b: tuple[str, int], vector: int, whole: bool) -> Signature:
    return (
        ("element", FLOAT32.name),
        ("a_major", a[0]),
        ("a_copies", str(a[1])),
        ("b_major", b[0]),
        ("b_copies", str(b[1])),
        ("d_vector", str(vector)),
        ("tiles", "whole" if whole else "ragged"),
    )


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return all layouts with whole tiles, with tiles that do not divide, and with rows that are not aligned."""
    del arch
    widths = ((16, VECTOR, True), (16, VECTOR, False), (4, 1, False))
    return tuple(
        _signature((a, 4 if a == "k" else size), (b, 4 if b == "k" else size), vector, whole)
        for (size, vector, whole), a, b in itertools.product(widths, "km", "nk")
    )


def launch(problem: GemmProblem, config: SimtConfig) -> Launch:
    """Return the launch recipe: the CTAs of a cluster for each tile of C and matrix of the batch."""
    types = dict(signature(problem, config))
    problem, first, second = row_result(problem)
    return Launch(
        grid=tile_grid(problem, config.tile_m, config.tile_n, config.cluster_k),
        block=(config.threads, 1, 1),
        shared_bytes=config.shared_bytes(types["a_major"] == "k", types["b_major"] == "k"),
        cluster=(config.cluster_k, 1, 1),
        params=batched_params(
            problem, first, second, operand_copies(problem.a).stride, operand_copies(problem.b).stride
        ),
        overlaps=problem.bytes_min <= FEW_BYTES,
    )


SPEC = KernelSpec(
    name="simt_gemm",
    operation="gemm",
    summary="float32, any of the four layouts and any alignment: FMA units, k-tiles by cp.async, split-K in clusters",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=(
        SimtConfig(tile_m=64, tile_n=64, tile_k=16, warps_m=2),
        SimtConfig(tile_m=64, tile_n=64, tile_k=16, warps_m=2, cluster_k=2),
        SimtConfig(tile_m=64, tile_n=64, tile_k=16, warps_m=2, cluster_k=4),
        SimtConfig(tile_m=64, tile_n=64, tile_k=16, warps_m=2, cluster_k=8),
        SimtConfig(tile_m=64, warps_m=2),
        SimtConfig(tile_m=64, tile_k=16, warps_m=2, cluster_k=2),
        SimtConfig(tile_m=64, tile_k=16, warps_m=2, cluster_k=4),
        SimtConfig(tile_m=64, tile_k=16, warps_m=2, cluster_k=8),
        SimtConfig(tile_n=64, tile_k=16, warps_n=1),
        SimtConfig(tile_n=64, tile_k=16, warps_n=1, cluster_k=2),
        SimtConfig(tile_n=64, tile_k=16, warps_n=1, cluster_k=4),
        SimtConfig(tile_n=256, warps_m=2, warps_n=4),
        SimtConfig(tile_m=256),
        SimtConfig(tile_m=32, tile_n=32, tile_k=16, warps_m=2, warps_n=1),
        SimtConfig(tile_m=32, tile_n=32, tile_k=16, warps_m=2, warps_n=1, cluster_k=4),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    refuses_types=functools.partial(why_not_types, FLOAT32),
    costs=costs,
    cost_in_us=True,
)
