"""Spec of dot products: results of few elements and a long K."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from gemmule.core.arch import Arch
from gemmule.core.config import why_not_cluster
from gemmule.core.dtype import BFLOAT16, COMPLEX64, COMPLEX128, FLOAT16, FLOAT32, FLOAT64, DType, Kind, accumulator
from gemmule.core.launch import FEW_BYTES, Launch, TensorParam, scalar_params
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, OperandTypes, inner_problem
from gemmule.core.row_major import MAX_EXTENT, why_not_extents, why_not_grid
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.parts.conjugates import conj_key, why_not_conjugates

from .config import DotConfig
from .cost import costs

_TYPES = (FLOAT32, FLOAT64, FLOAT16, BFLOAT16, COMPLEX64, COMPLEX128)


def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    del arch
    inner = inner_problem(problem, SPEC.batch_dims)
    if inner.batch and inner.batch[0] > MAX_EXTENT:
        return f"the batch is {inner.batch[0]}; this kernel takes at most {MAX_EXTENT} matrices"
    return why_not_conjugates(inner) or why_not_extents(inner)


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    del arch
    if types.a != types.b or types.a not in _TYPES:
        names = ", ".join(map(str, _TYPES))
        return f"A and B are {types.a} and {types.b}; this kernel takes both of one type among {names}"
    outputs = (types.a, accumulator(types.a, types.b))
    for name, other in (("output", types.d), ("C", types.c)):
        if other is not None and other not in outputs:
            return f"{name} is {other}; this kernel takes that of A and B, or of their accumulators"
    return None


def why_not(problem: GemmProblem, arch: Arch, config: DotConfig) -> str | None:
    """Say why the kernel cannot take `problem` with `config`, or None where it can."""
    if reason := why_not_cluster(config, config.cluster_k, arch):
        return reason
    return why_not_grid(_grid(inner_problem(problem, SPEC.batch_dims), config))


def _grid(problem: GemmProblem, config: DotConfig) -> tuple[int, int, int]:
    tiles = -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n)
    return tiles * (problem.batch or (1,))[0] * config.cluster_k, 1, 1


def signature(problem: GemmProblem, config: DotConfig) -> Signature:
    """Specialise for the element types; without C, its slot takes the output's type."""
    del config
    c = problem.c if problem.c is not None else problem.d
    plain = _signature(problem.a.dtype, c.dtype, problem.d.dtype)
    return (*plain, ("conj", conj_key(problem))) if problem.a.dtype.kind is Kind.COMPLEX else plain


def _signature(factors: DType, c: DType, d: DType) -> Signature:
    acc = accumulator(factors, factors)
    return (("a", factors.name), ("b", factors.name), ("c", c.name), ("d", d.name), ("acc", acc.name))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return, for every type, the outputs of its own type and of its accumulators'."""
    del arch
    found = tuple(_signature(x, d, d) for x in _TYPES for d in dict.fromkeys((x, accumulator(x, x))))
    return tuple((*one, ("conj", "no")) if "complex" in one[0][1] else one for one in found)


def launch(problem: GemmProblem, config: DotConfig) -> Launch:
    """Return the launch recipe: a cluster for each tile of each matrix of the batch."""
    m, n, k, acc = problem.m, problem.n, problem.k, problem.accumulator
    batch = (problem.batch or (1,))[0]
    c = problem.c if problem.c is not None else problem.d

    def matrix(name: str, matrix: StridedMatrix, shape: tuple[int, int]) -> TensorParam:
        return TensorParam(
            name, (*shape, batch), (matrix.row_stride, matrix.col_stride, *(matrix.batch_strides or (0,)))
        )

    return Launch(
        grid=_grid(problem, config),
        block=(config.threads, 1, 1),
        cluster=(config.cluster_k, 1, 1),
        shared_bytes=config.tile_elements * config.warps * acc.itemsize,
        params=(
            matrix("a", problem.a, (m, k)),
            # B is (K, N) in the API, and (N, K) in CuTe.
            matrix("b", problem.b.transposed(), (n, k)),
            matrix("d" if problem.c is None else "c", c, (m, n)),
            matrix("d", problem.d, (m, n)),
            *scalar_params(acc, problem.alpha, problem.beta if problem.c is not None else 0),
        ),
        overlaps=problem.bytes_min <= FEW_BYTES,
    )


def _configs() -> Iterator[DotConfig]:
    """Yield tiles of few elements, alone and in clusters."""
    for tile_m, tile_n, unroll in ((4, 4, 2), (1, 1, 8), (4, 1, 4), (1, 4, 4)):
        config = DotConfig(tile_m, tile_n, unroll)
        yield config
        yield dataclasses.replace(config, cluster_k=8)


SPEC = KernelSpec(
    name="simt_dot",
    operation="gemm",
    summary="floats of 16 to 64 bits, complex numbers, any strides, batch: few results and a long K, dot products",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=tuple(_configs()),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
)
