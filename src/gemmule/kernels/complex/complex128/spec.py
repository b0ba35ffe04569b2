"""Spec of the complex128 GEMM on the float64 tensor cores."""

from __future__ import annotations

import dataclasses
import itertools

from gemmule.core.arch import Arch
from gemmule.core.dtype import COMPLEX64, COMPLEX128
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, OperandTypes, inner_problem
from gemmule.core.row_major import row_result, why_not_extents, why_not_grid, why_not_strides, why_not_types
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.complex.config import Complex128Config
from gemmule.kernels.complex.cost import complex128_costs
from gemmule.kernels.float64.shared_launch import shared_launch, why_not_shared
from gemmule.kernels.hopper.refusals import refuse_matrices
from gemmule.kernels.hopper.tma_tiles import part_params
from gemmule.kernels.parts.batched_launch import copies_signature, tile_grid, tile_launch, tiles_divide, tiles_signature
from gemmule.kernels.parts.conjugates import conj_key, why_not_conjugates
from gemmule.kernels.parts.leading_dimension import LeadingDimension, leading_dimension


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    del arch
    inner = inner_problem(problem, SPEC.batch_dims)
    if reason := why_not_strides(inner) or why_not_extents(inner) or why_not_conjugates(inner):
        return reason
    for name, matrix in inner.operands().items():
        if matrix.dtype == COMPLEX128 and _ld(matrix).copy_bytes < COMPLEX128.itemsize:
            return f"{name.upper()} is aligned to {_ld(matrix).copy_bytes} bytes; this kernel takes multiples of 16"
    return None


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    """Say which operand is of another type, or None: the result may be rounded to complex64, and C is of its type."""
    if types.d != COMPLEX64:
        return why_not_types(COMPLEX128, types, arch)
    if types.c not in (None, COMPLEX64):
        return f"C is {types.c}; this kernel adds one of the result's type, {types.d}"
    return why_not_types(COMPLEX128, types._replace(c=None, d=COMPLEX128), arch)


def why_not(problem: GemmProblem, arch: Arch, config: Complex128Config) -> str | None:
    """Say why the kernel cannot take `problem` with `config`, or None where it can."""
    inner = inner_problem(problem, SPEC.batch_dims)
    oriented, _, _ = row_result(inner)
    if reason := config.why_not_on(arch) or why_not_shared(problem, config):
        return reason
    if config.tma and (reason := refuse_matrices(problem, "abcd", tma="ab")):
        return reason
    return why_not_grid(tile_grid(oriented, config.tile_m, config.tile_n, config.cluster_k))


def _ld(matrix: StridedMatrix) -> LeadingDimension:
    return leading_dimension(matrix, (COMPLEX128.itemsize, 8, 4, 2, 1))


def signature(problem: GemmProblem, config: Complex128Config) -> Signature:
    """Specialise for the major modes of A and B, conjugates, whole tiles, and a result of complex64."""
    oriented, _, _ = row_result(problem)
    whole = tiles_divide(oriented, (config.tile_m, config.tile_n, config.tile_k))
    a, b = _ld(oriented.a).row_major, _ld(oriented.b).row_major
    found = _signature("k" if a else "m", "n" if b else "k", conj_key(oriented), whole)
    return found if oriented.d.dtype == COMPLEX128 else (*found, ("d", oriented.d.dtype.name))


def _signature(a: str, b: str, conj: str, whole: bool) -> Signature:
    size = COMPLEX128.itemsize
    copies = copies_signature((a, size), (b, size), 1)
    return (("element", COMPLEX128.name), *copies, ("conj", conj), *tiles_signature(whole))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return all layouts with whole tiles and with tiles that do not divide, of one conjugates, and a narrow result."""
    del arch
    layouts = tuple(_signature(a, b, "no", whole) for whole, a, b in itertools.product((True, False), "km", "nk"))
    narrow = (*_signature("k", "n", "no", False), ("d", COMPLEX64.name))
    return (*layouts, *(_signature("k", "n", conj, False) for conj in ("a", "b", "ab")), narrow)


def launch(problem: GemmProblem, config: Complex128Config) -> Launch:
    """Return the launch recipe: one CTA for each tile of C and matrix of the batch, or with stream-K those resident."""
    recipe = tile_launch(problem, config, _ld, config.shared_bytes)
    return shared_launch(problem, config, _by_tma(problem, config, recipe) if config.tma else recipe)


def _by_tma(problem: GemmProblem, config: Complex128Config, recipe: Launch) -> Launch:
    """Return the recipe with tensor maps of the parts of A and B."""
    oriented, first, second = row_result(problem)
    batch, major = oriented.batch or (1,), dict(signature(problem, config))
    params = (
        *part_params(first, oriented.a, batch, config.tile_m, k_major=major["a_major"] == "k"),
        *part_params(second, oriented.b.transposed(), batch, config.tile_n, k_major=major["b_major"] == "k"),
        *recipe.params[2:],
    )
    return dataclasses.replace(recipe, block=(config.block_threads, 1, 1), params=params)


SPEC = KernelSpec(
    name="complex128_gemm",
    operation="gemm",
    summary="complex128, any of the four layouts, conjugates: four real multiplications (4M) on float64 tensor cores",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=(
        Complex128Config(warps_m=4, warps_n=1),
        *(Complex128Config(tile_m=32, stages=6, stream_k=shared) for shared in (0, 1)),
        Complex128Config(tile_m=32, tile_n=32, mma_k=16, tile_k=16),
        Complex128Config(tile_m=32, tile_n=32, tile_k=16, cluster_k=2),
        Complex128Config(tile_m=32, tile_n=32, tile_k=16, cluster_k=4),
        Complex128Config(stages=3, mma_m=8, mma_k=4),
        Complex128Config(tile_m=128, warps_m=8, warps_n=1, stages=3, stream_k=1),
        Complex128Config(tile_m=128, warps_m=4, mma_k=16, stages=8, stream_k=1, tma=1),
        Complex128Config(tile_n=128, warps_n=4, mma_k=16, stages=8, stream_k=1, tma=1),
        Complex128Config(warps_m=4, mma_k=16, stages=10, stream_k=1, tma=1),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=complex128_costs,
    cost_in_us=True,
)
