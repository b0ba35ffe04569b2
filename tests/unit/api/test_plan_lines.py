"""Lines of plans about launches beside the product's, and about its work."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gemmule as gm


@pytest.mark.parametrize(
    ("given", "options", "copies", "steps"),
    [
        ("b", {}, r"b in row-major order first, into 8\.389 MB, .* us of the time", ["b is copied in row-major order"]),
        ("a", {}, r"a in row-major order first, into 8\.389 MB, .* us of the time", ["a is copied in row-major order"]),
        (
            "",
            {"c": "float32"},
            "c first, .* us of the time",
            ["c is converted to complex64 and copied into the result"],
        ),
        (
            "b",
            {"out": "complex64"},
            r"b in row-major order first, the result last, into 16\.78 MB, .*",
            ["b is copied in row-major order", "the result is copied from row-major order"],
        ),
        (
            "",
            {"out_dtype": "complex64"},
            "a as float64 first, the result last.*",
            ["the result is converted to complex64"],
        ),
    ],
    ids=str,
)
def test_plans_of_real_by_complex_products_say_what_is_copied(given, options, copies, steps):
    shape, wide = (1024, 1024), "complex128" if "out_dtype" in options else "complex64"
    factors = [np.empty(shape, np.float32), np.empty(shape, wide).T if given else np.empty(shape, wide)]
    if given == "a":
        # Rows of the transposes' right operand are columns.
        factors = [np.empty(shape, wide), factors[0]]
        options = {"out": "complex64"}
    options = dict(options)
    if "c" in options:
        options |= {"c": np.empty(shape, options["c"]), "beta": 1}
    if "out" in options:
        options["out"] = np.empty(shape, options["out"]).T
    plan = gm.gemm.plan(*factors, chip="h200", **options)
    assert re.fullmatch(copies, plan.copies)
    assert plan.rewrite.count(" by ") == len(steps)
    for step in steps:
        assert f"; {step}" in plan.rewrite


def test_plans_say_which_kernel_computes_the_second_product_and_which_the_epilogue():
    a = np.empty((1024, 1024))
    plan = gm.gemm.plan(a, a, gated=a, epilogue="swiglu", chip="h200")
    assert re.search(
        r"; the second product is computed first, by float64_gemm \[[^]]*\], and the epilogue", plan.rewrite
    )
    assert re.search(r"from the sums of both in workspaces, by gemm_reference \[[^]]*\]$", plan.rewrite)


def test_products_of_integers_have_operations():
    a = np.empty((2048, 2048), np.int8)
    plan = gm.matmul.plan(a, a, chip="h200")
    assert re.search(r"expected .* us, [\d.]+ [TP]OP/s$", str(plan).splitlines()[0])
    assert "work: 17.18 GOP, " in str(plan)
    assert "work: 17.18 GOP, " in str(gm.matmul.plan(a, a, executor="cpu"))
    assert "work: 17.18 GFLOP, " in str(gm.matmul.plan(a, a.astype(np.float16), chip="h200"))


def test_plans_of_parts_of_k_say_which_kernel_computes_the_rest():
    x = np.empty(10_000_003, np.float32)
    plan = gm.matmul.plan(x, x, chip="h200")
    assert re.fullmatch(
        r"k is divided into 64 parts, a batch of products, and a rest by \w+ \[[^]]*\]; "
        r"their results are added by gemm_reference \[[^]]*\]",
        plan.rewrite,
    )
    whole = gm.matmul.plan(x[: 64 * 150_000], x[: 64 * 150_000], chip="h200")
    assert "products; their results are added by" in whole.rewrite


def test_plans_of_merged_batches_name_the_kernel_of_equal_copies_once():
    heads = np.empty((64, 128, 16, 32), np.float16)
    plan = gm.matmul.plan(heads.transpose(0, 2, 1, 3), heads.transpose(0, 2, 3, 1), chip="h200")
    assert re.fullmatch(
        r"dimensions of the batch are merged, with copies of a and b by transpose_blocks \[[^]]*\]", plan.rewrite
    )
