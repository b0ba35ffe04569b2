"""Kernels of products that differ from an aligned one in one thing: they are those of tensor cores with wgmma."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.batch_folding import fold_batch
from gemmule.core.epilogue import Epilogue, Expression
from gemmule.core.launch import TensorMapParam
from gemmule.core.layout import contiguous
from gemmule.core.problem import contiguous_gemm
from gemmule.dispatch.select import choose

HOPPER = Arch.parse("sm_90a")


def chosen(problem):
    return choose(fold_batch(problem), HOPPER, multiprocessors=132)


@pytest.mark.parametrize(("extent", "kernel"), [(2048, "hopper_gemm"), (2047, "hopper_gemm_repacked")])
@pytest.mark.parametrize("shared", "ab")
def test_one_matrix_for_all_of_a_batch(shared, extent, kernel):
    problem = contiguous_gemm(extent, extent, extent, ("bfloat16",) * 3, batch=(16,))
    each = chosen(problem)
    # Matrices of the other operand that do not continue each other: nothing is folded.
    steps = {shared: 0, {"a": "b", "b": "a"}[shared]: extent**2 + 8}
    operands = problem.operands() | {
        name: dataclasses.replace(getattr(problem, name), batch_strides=(step,)) for name, step in steps.items()
    }
    one = chosen(problem.with_operands(problem.batch, operands))
    assert (one.spec.name, each.spec.name) == (kernel, kernel)
    assert one.predicted_us < 1.05 * each.predicted_us
    if kernel == "hopper_gemm":
        maps = one.spec.launch(problem.with_operands((16,), operands), one.config).params
        assert {x.operand for x in maps if isinstance(x, TensorMapParam) and x.pitches[-1] == 0} == {shared}


def test_epilogues_of_results_with_odd_rows():
    plain = contiguous_gemm(4096, 4095, 1024, ("bfloat16",) * 3)
    plain = dataclasses.replace(plain, b=contiguous(plain.b.dtype, 4095, 1024).transposed())
    bias = dataclasses.replace(contiguous(plain.d.dtype, 1, 4095), rows=4096, row_stride=0)
    epilogue = Epilogue(Expression.parse("acc; e0; add 0 1"), (bias,), ())
    choice = chosen(dataclasses.replace(plain, epilogue=epilogue))
    assert (choice.spec.name, choice.form) == ("hopper_gemm_unaligned", None)
    assert choice.predicted_us < 1.2 * chosen(plain).predicted_us


def test_results_of_another_type_with_odd_rows():
    problem = contiguous_gemm(4096, 1025, 1024, ("bfloat16", "bfloat16", "float32"), batch=(4,))
    choice = chosen(problem)
    assert (choice.spec.name, choice.form) == ("hopper_gemm_repacked", None)
    assert choice.next_kernel(problem).spec.name == "hopper_gemm_unaligned"
