"""Plans of operands that are copied first, and of products in another form, for a chip by its name."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import numpy_dtype


def test_the_time_of_copies_is_not_that_of_further_launches():
    a, b = np.zeros((512, 1024), np.float16)[:, ::2], np.zeros((512, 512), np.float16)
    assert re.fullmatch(r"a first, into 524.3 kB, .* us of the time", gm.gemm.plan(a, b, chip="h200").copies)
    a, b = np.empty((4096, 4096), np.float32), np.empty((4096, 8192), np.float32)
    gated = gm.gemm.plan(a, b, epilogue="swiglu", chip="h200")
    assert "second product" in gated.rewrite
    assert gated.copies == "a first, into 67.11 MB"


@pytest.mark.parametrize(
    ("types", "options", "copies", "products"),
    [
        (("bfloat16", "bfloat16"), {}, "a first, into 8.389 MB", ["hopper_gemm"]),
        (
            ("bfloat16", "bfloat16"),
            {"gated": "pairs"},
            "a and both right operands first, into 25.17 MB",
            ["hopper_gemm"],
        ),
        (("int8", "float16"), {}, "a as float16 first, into 8.389 MB", ["hopper_gemm"]),
        (
            ("bfloat16", "float16"),
            {},
            "a as float32 and both right operands as float32 first, into 50.33 MB",
            ["hopper_gemm"],
        ),
        (("float32", "bfloat16"), {}, "a and both right operands as float32 first, into 50.33 MB", ["simt_gemm"] * 2),
        (("float32", "float32"), {"precision": "tf32"}, "a first, into 16.78 MB", ["hopper_gemm"] * 2),
        (("float64", "float64"), {}, "a first, into 33.55 MB", ["float64_gemm"] * 2 + ["gemm_reference"]),
    ],
    ids=str,
)
def test_factorsof_gated_forms_are_copied_once(types, options, copies, products):
    a, b = np.empty((2048, 4096), numpy_dtype(types[0]))[:, ::2], np.empty((2048, 4096), numpy_dtype(types[1]))
    plan = gm.gemm.plan(a, b, epilogue="swiglu", chip="h200", **options)
    assert plan.choice.form is None
    assert plan.copies.rpartition(", ")[0] == copies
    launches, workspaces = plan.choice.launches(plan.problem)
    assert [one.spec.name for one in launches] == [plan.kernel, *products]
    assert plan.workspace_bytes == sum(workspaces.values())
    assert bool(plan.rewrite) == (len(products) > 1)
    whole = gm.gemm.plan(a.copy(), b, epilogue="swiglu", chip="h200", **options)
    if types[0] == types[1] and "gated" not in options:
        assert whole.predicted_us < plan.predicted_us < 1.1 * whole.predicted_us + 60
    if "precision" in options:
        assert plan.precision == "'tf32' is used"


def test_work_counts_each_element_and_each_real_product_once():
    row, b = np.zeros((1, 512), np.float32), np.zeros((512, 512), np.complex64)
    a = np.broadcast_to(row, (512, 512))
    least = row.nbytes + 2 * b.nbytes
    for options in ({"chip": "h200"}, {"executor": "cpu"}):
        plan = gm.matmul.plan(a, b, **options)
        assert plan.bytes_min == least
        # A real number times a complex one is two products.
        assert plan.flop == 2 * 2 * 512**3


@pytest.mark.parametrize(("first", "copies"), [(1, "both right operands first, into 67.11 MB"), (8, "")])
def test_both_factors_are_copied_where_tma_cannot_load_the_second(first, copies):
    a, (gate, up) = np.empty((4096, 4096), np.float16), np.empty((2, 4096, 4104), np.float16)
    plan = gm.gemm.plan(a, gate[:, :4096], gated=up[:, first:][:, :4096], epilogue="swiglu", chip="h200")
    assert plan.copies.rpartition(", ")[0] == copies
    assert plan.choice.launches(plan.problem)[0][-1].spec.name == "hopper_gemm"


@pytest.mark.parametrize("gated", ["halves", "pairs", "array"])
def test_copied_gated_operands_never_run_the_reference_kernel(gated):
    a, b = np.empty((1024, 2048), np.float16)[:, ::2], np.empty((1024, 2048), np.float16)
    options = {"out": np.empty((1024, 1024), np.float16, order="F")}
    if gated == "array":
        # One matrix for all of the batch, which TMA cannot load again.
        b, options = np.empty((3, 1024, 1024), np.float16), {}
        gated = np.broadcast_to(np.empty((1024, 1024), np.float16), b.shape)
    plan = gm.gemm.plan(a, b, epilogue="swiglu", gated=gated, chip="h200", **options)
    launches, _ = plan.choice.launches(plan.problem)
    assert "gemm_reference" not in {one.spec.name for one in launches if one.problem.k}


def test_a_c_that_could_be_copied_does_not_keep_accumulators_from_a_workspace():
    a, c = np.empty((1024, 1024), numpy_dtype("bfloat16")), np.empty((1024, 1024), np.float16, order="F")
    plan = gm.gemm.plan(a, a, c, beta=1.0, out=np.empty((1024, 1025), np.float16)[:, :1024], chip="h200")
    assert plan.kernel != "gemm_reference"
    assert plan.predicted_us < 50
