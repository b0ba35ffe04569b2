"""Epilogues that are measured: what gemmule is told, and PyTorch's way to the same result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from gemmule.api.epilogues.ending import ending_of
from gemmule.core.dtype import BFLOAT16
from gemmule.core.epilogue import Epilogue
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.problem import GemmProblem
from gemmule.lab.products import gemm_problem


@dataclasses.dataclass(frozen=True)
class Form:
    """An epilogue: what gemmule is told, and PyTorch's way.

    Attributes
    ----------
    epilogue : function or str or None
        As of `gemm`.
    bias, residual : bool
        Whether a bias of N elements is added, and whether a matrix goes in: C where there is no function.
    torch : callable
        ``torch(ops, given)`` queues PyTorch's operations on the `Tensors` that are given.
    gated : bool
        Whether two products of N / 2 columns each make a result of as many.
    absmax : bool
        Whether the absolute maximum is kept.
    """

    epilogue: Any
    bias: bool
    residual: bool
    torch: Callable[..., None]
    gated: bool = False
    absmax: bool = False


@dataclasses.dataclass(frozen=True)
class Tensors:
    """What PyTorch computes with: `both` and `half` are for what it writes on the way, `largest` holds one float32."""

    d: Any
    a: Any
    b: Any
    bias: Any
    residual: Any
    both: Any
    half: Any
    largest: Any


def _activated(name: str, **options: Any) -> Callable[..., None]:
    def queue(ops: Any, at: Tensors) -> None:
        ops.addmm.out(at.bias, at.a, at.b, out=at.d)
        getattr(ops, name).out(at.d, **options, out=at.d)

    return queue


def _added(ops: Any, at: Tensors) -> None:
    ops.addmm.out(at.bias if at.residual is None else at.residual, at.a, at.b, out=at.d)


def _residual(ops: Any, at: Tensors) -> None:
    ops.addmm.out(at.bias, at.a, at.b, out=at.d)
    ops.add.out(at.d, at.residual, out=at.d)


def _gated(name: str, **options: Any) -> Callable[..., None]:
    def queue(ops: Any, at: Tensors) -> None:
        ops.mm.out(at.a, at.b, out=at.both)
        gate, up = at.both.chunk(2, -1)
        getattr(ops, name).out(gate, **options, out=at.half)
        ops.mul.out(at.half, up, out=at.d)

    return queue


def _largest(ops: Any, at: Tensors) -> None:
    ops.addmm.out(at.bias, at.a, at.b, out=at.d)
    ops.relu.out(at.d, out=at.d)
    ops.linalg_vector_norm.out(at.d, float("inf"), dtype=at.largest.dtype, out=at.largest.view(()))


FORMS = {
    "bias": Form(None, True, False, _added),
    "bias_relu": Form("relu", True, False, _activated("relu")),
    "bias_gelu": Form("gelu", True, False, _activated("gelu")),
    "bias_gelu_tanh": Form("gelu_tanh", True, False, _activated("gelu", approximate="tanh")),
    "bias_silu": Form("silu", True, False, _activated("silu")),
    "beta_c": Form(None, False, True, _added),
    "c": Form(lambda acc, c: acc + c, False, True, _added),
    "bias_residual": Form(lambda acc, c: acc + c, True, True, _residual),
    "swiglu": Form("swiglu", False, False, _gated("silu"), gated=True),
    "geglu_tanh": Form("geglu_tanh", False, False, _gated("gelu", approximate="tanh"), gated=True),
    "bias_relu_absmax": Form("relu", True, False, _largest, absmax=True),
}


def fused(problem: GemmProblem, form: Form) -> GemmProblem:
    """Return a product with an epilogue; a gated form takes the halves of B's columns as matrices of their own."""
    ending, _ = ending_of(
        form.epilogue, form.bias or None, form.residual or None, None, gated=form.gated, absmax=form.absmax
    )
    if form.gated:
        half = gemm_problem(problem.m, problem.n // 2, problem.k, "bfloat16", "bfloat16", problem.layout)
        return dataclasses.replace(half, epilogue=Epilogue(ending.expression, second=half.b))
    if ending is None:
        return dataclasses.replace(problem, c=contiguous(BFLOAT16, problem.m, problem.n), beta=1)
    bias = StridedMatrix(BFLOAT16, problem.m, problem.n, 0, 1)
    c = contiguous(BFLOAT16, problem.m, problem.n) if form.residual else None
    epilogue = Epilogue(ending.expression, (bias,) if form.bias else (), absmax=form.absmax)
    return dataclasses.replace(problem, c=c, epilogue=epilogue)
