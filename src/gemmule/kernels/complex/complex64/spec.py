"""Spec of the complex64 GEMM on the FMA units."""

from __future__ import annotations

import functools
import itertools

from gemmule.core.arch import Arch
from gemmule.core.config import why_not_cluster
from gemmule.core.dtype import COMPLEX64
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem, inner_problem
from gemmule.core.row_major import row_result, why_not_extents, why_not_grid, why_not_lines, why_not_types
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.complex.config import Complex64Config
from gemmule.kernels.complex.cost import complex64_costs
from gemmule.kernels.parts.batched_launch import copies_signature, tile_grid, tile_launch, tiles_divide, tiles_signature
from gemmule.kernels.parts.conjugates import conj_key, why_not_conjugates
from gemmule.kernels.parts.leading_dimension import result_vector
from gemmule.kernels.simt.config import VECTOR_BYTES
from gemmule.kernels.simt.cost import operand_copies

#: Elements of D that a thread writes at once.
_VECTOR = VECTOR_BYTES // COMPLEX64.itemsize


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    del arch
    inner = inner_problem(problem, SPEC.batch_dims)
    return why_not_lines(inner, COMPLEX64) or why_not_extents(inner) or why_not_conjugates(inner)


def why_not(problem: GemmProblem, arch: Arch, config: Complex64Config) -> str | None:
    """Say why the kernel cannot take `problem` with `config`, or None where it can."""
    if reason := why_not_cluster(config, config.cluster_k, arch):
        return reason
    oriented, _, _ = row_result(inner_problem(problem, SPEC.batch_dims))
    return why_not_grid(tile_grid(oriented, config.tile_m, config.tile_n, config.cluster_k))


def signature(problem: GemmProblem, config: Complex64Config) -> Signature:
    """Specialise for the major modes of A and B, the widths of copies, conjugates, and whole tiles."""
    oriented, _, _ = row_result(problem)
    a, b, vector = operand_copies(oriented.a), operand_copies(oriented.b), result_vector(oriented, _VECTOR)
    # K-major operands are transposed by copies of an element.
    a_key = ("k", 8) if a.row_major else ("m", a.copy_bytes)
    b_key = ("n", b.copy_bytes) if b.row_major else ("k", 8)
    whole = tiles_divide(oriented, (config.tile_m, config.tile_n, config.tile_k)) and vector > 1
    return _signature(a_key, b_key, vector, conj_key(oriented), whole)


def _signature(a: tuple[str, int], b: tuple[str, int], vector: int, conj: str, whole: bool) -> Signature:
    copies = copies_signature(a, b, vector)
    return (("element", COMPLEX64.name), *copies, ("conj", conj), *tiles_signature(whole))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return all layouts with whole tiles, with tiles that do not divide, unaligned rows, and the conjugates of one."""
    del arch
    widths = ((16, _VECTOR, True), (16, _VECTOR, False), (8, 1, False))
    layouts = tuple(
        _signature((a, 8 if a == "k" else size), (b, 8 if b == "k" else size), vector, "no", whole)
        for (size, vector, whole), a, b in itertools.product(widths, "km", "nk")
    )
    return (*layouts, *(_signature(("k", 8), ("n", 16), _VECTOR, conj, False) for conj in ("a", "b", "ab")))


def launch(problem: GemmProblem, config: Complex64Config) -> Launch:
    """Return the launch recipe: the CTAs of a cluster for each tile of C and matrix of the batch."""
    types = dict(signature(problem, config))
    shared_bytes = config.shared_bytes(types["a_major"] == "k", types["b_major"] == "k")
    return tile_launch(problem, config, operand_copies, shared_bytes)


SPEC = KernelSpec(
    name="complex64_gemm",
    operation="gemm",
    summary="complex64, any of the four layouts and any alignment, conjugates: FMA units, k-tiles by cp.async",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=(
        Complex64Config(),
        Complex64Config(tile_m=64, warps_m=2),
        Complex64Config(tile_m=64, tile_n=64, warps_m=2, warps_n=1, tile_k=16, warps_k=2),
        Complex64Config(tile_m=64, tile_n=64, warps_m=2, tile_k=16),
        Complex64Config(tile_m=64, tile_n=64, warps_m=2, tile_k=16, cluster_k=2),
        Complex64Config(tile_m=64, tile_n=64, warps_m=2, tile_k=16, cluster_k=4),
        Complex64Config(tile_m=32, tile_n=32, tile_k=16, warps_m=2, warps_n=1),
        Complex64Config(tile_m=32, tile_n=32, tile_k=16, warps_m=2, warps_n=1, cluster_k=4),
        Complex64Config(tile_m=32, tile_n=32, tile_k=16, warps_m=2, warps_n=1, cluster_k=8),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    refuses_types=functools.partial(why_not_types, COMPLEX64),
    costs=complex64_costs,
    cost_in_us=True,
)
