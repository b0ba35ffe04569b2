"""A complex matrix times its own transpose or adjoint (HERK): each tile below the block diagonal is written twice."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Sequence
from typing import Any

from gemmule.core.arch import Arch
from gemmule.core.block_triangle import STEP, BlockTriangle
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch, TensorParam
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result
from gemmule.core.spec import Buildable, KernelSpec, Signature
from gemmule.kernels.parts.block_triangle import syrk_spec

from .complex64.spec import SPEC as COMPLEX64_GEMM
from .complex128.spec import SPEC as COMPLEX128_GEMM


def mirrored_spec(whole: KernelSpec, name: str, summary: str) -> KernelSpec:
    """Return the spec of a kernel for a matrix and its own transpose, by the GEMM kernel of its type."""
    below = syrk_spec(whole, name=name, summary=summary, smallest=64)
    return dataclasses.replace(
        below,
        signatures=functools.partial(_signatures, below),
        signature=functools.partial(_signature, below),
        launch=functools.partial(_launch, below),
        build=functools.partial(_build, whole.package),
        why_not=functools.partial(_why_not, below),
        refuses=functools.partial(_refuses, below),
        costs=functools.partial(_costs, below),
        cost=None,
        faster_alternative=functools.partial(_faster_alternative, whole),
        is_syrk=True,
    )


def _triangle(problem: GemmProblem) -> GemmProblem:
    """Return the product with a row-major result of which the block lower triangle is computed."""
    oriented, _, _ = row_result(problem)
    return dataclasses.replace(oriented, needed=BlockTriangle(0, STEP))


def _why_not_mirrored(problem: GemmProblem) -> str | None:
    if not problem.own_transpose:
        return "B is not A transposed, in the same memory"
    if problem.c is not None or problem.needed is not None:
        return "this kernel adds no C, and computes all of a result"
    return None


def _refuses(below: KernelSpec, problem: GemmProblem, arch: Arch) -> str | None:
    assert below.refuses is not None
    return _why_not_mirrored(problem) or below.refuses(_triangle(problem), arch)


def _why_not(below: KernelSpec, problem: GemmProblem, arch: Arch, config: Any) -> str | None:
    return _why_not_mirrored(problem) or below.own_why_not(_triangle(problem), arch, config)


def _signature(below: KernelSpec, problem: GemmProblem, config: Any) -> Signature:
    """Return that of the triangle, and what is written above it: the transpose, or the adjoint."""
    kind = "adjoint" if problem.a.conj != problem.b.conj else "transpose"
    return (*below.signature(_triangle(problem), config), ("above", kind))


def _signatures(below: KernelSpec, arch: Arch) -> tuple[Signature, ...]:
    adjoint, transpose = {"a", "b"}, {"no"}
    return tuple(
        (*one, ("above", kind))
        for one in below.signatures(arch)
        for kind, conj in (("adjoint", adjoint), ("transpose", transpose))
        if dict(one)["conj"] in conj
    )


def _launch(below: KernelSpec, problem: GemmProblem, config: Any) -> Launch:
    recipe = below.launch(_triangle(problem), config)
    if problem.d.is_row_major:
        return recipe
    # The operands of the product of the transposes, by their names in this one.
    names = {"a": "b", "b": "a"}
    params = [
        dataclasses.replace(one, operand=names.get(one.operand, one.operand)) if isinstance(one, TensorParam) else one
        for one in recipe.params
    ]
    return dataclasses.replace(recipe, params=tuple(params))


def _costs(below: KernelSpec, problem: GemmProblem, configs: Sequence[Any], gpu: GpuRates) -> list[float]:
    assert below.costs is not None
    found: list[float] = below.costs(_triangle(problem), configs, gpu)
    return found


def _faster_alternative(whole: KernelSpec, problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the name of the kernel that computes all tiles where it is expected to be faster, else None."""
    return whole.name if whole.least_cost(problem, gpu) <= cost else None


def _build(package: str, config: Any, signature: Signature) -> Buildable:
    from gemmule.kernels.parts.schedulers.data_parallel import LowerTriangularTileScheduler

    kernel = importlib.import_module(f"{package}.kernel")
    found: Buildable = kernel.buildable(config, dict(signature), LowerTriangularTileScheduler)
    return found


COMPLEX64_SYRK = mirrored_spec(
    COMPLEX64_GEMM, "complex64_syrk", "complex64, a matrix times its own transpose or adjoint: half of the tiles"
)
COMPLEX128_SYRK = mirrored_spec(
    COMPLEX128_GEMM, "complex128_syrk", "complex128, a matrix times its own transpose or adjoint: half of the tiles"
)
