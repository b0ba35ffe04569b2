"""Epilogues without a device: tracing, canonical forms and keys, errors, and results on the host."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import gemmule as gm
from gemmule.api.epilogues.ending import ending_of
from gemmule.core.dtype import Precision, dtype_named
from gemmule.core.epilogue import Epilogue, Expression
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem, split_batch
from gemmule.core.row_major import row_result
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from support.epilogue_cases import CASES, assert_finished

M, N, K = 5, 7, 11
FACTOR = 0.25


def text_of(function, bias=None, c=None, **given):
    ending, _ = ending_of(function, bias, c, given or None)
    return ending.expression.text


def arrays(rng, dtype="float32"):
    kind = dtype_named(dtype).numpy()
    return rng.standard_normal((M, K)).astype(kind), rng.standard_normal((K, N)).astype(kind)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_on_the_host(name, dtype, rng):
    case = CASES[name]
    a, b = arrays(rng, dtype)
    values = {
        role: rng.standard_normal(given.shape(M, N)).astype(dtype_named(given.dtype or dtype).numpy())
        for role, given in case.arrays.items()
    }
    further = {role: value for role, value in values.items() if role not in ("bias", "c")} | case.numbers
    got = gm.gemm(
        a, b, values.get("c"), alpha=case.alpha, beta=case.beta, bias=values.get("bias"), epilogue=case.epilogue,
        epilogue_args=further or None, executor="cpu", out=np.full((M, N), np.nan).astype(a.dtype),
    )  # fmt: skip
    assert_finished(got, a, b, case, values)


def test_special_values_on_the_host():
    a, b = np.array([[math.nan], [math.inf], [-math.inf], [-1e6]], np.float32), np.ones((1, 1), np.float32)
    got = gm.gemm(a, b, epilogue="relu", executor="cpu")[:, 0]
    np.testing.assert_array_equal(got, np.array([math.nan, math.inf, 0, 0], np.float32))
    got = gm.gemm(a, b, epilogue="gelu", executor="cpu")[:, 0]
    assert np.isnan(got[0])
    assert got[1] == math.inf
    assert got[3] == 0
    for kind in ("float32", "float64"):
        for name in ("silu", "gelu", "gelu_tanh"):
            got = gm.gemm(a.astype(kind), b.astype(kind), epilogue=name, executor="cpu")[:, 0]
            assert np.isnan(got[0])
            np.testing.assert_array_equal(got[1:], np.array([math.inf, 0, 0], kind))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epilogue": lambda acc: acc * 10**400}, "a constant is larger than a float holds"),
        (
            {"epilogue": lambda acc, s: acc * s, "epilogue_args": {"s": 10**400}},
            r"epilogue_args\['s'\] is larger than a float holds",
        ),
        ({"epilogue": lambda acc: acc * 1e300}, r"the number 1e\+300 of the epilogue is larger than float32 holds"),
        ({"epilogue": lambda acc, s: acc * s, "epilogue_args": {"s": -1e39}}, "the number -1e.39 of the epilogue"),
    ],
)
def test_numbers_that_are_too_large(options, message):
    a = np.ones((2, 2), np.float32)
    with pytest.raises(gm.ArgumentError, match=message):
        gm.gemm(a, a, **options)
    # Infinity is one, and float64 holds more.
    assert np.isinf(gm.gemm(a, a, epilogue=lambda acc: acc * math.inf)).all()
    assert gm.gemm(a.astype("f8"), a.astype("f8"), epilogue=lambda acc: acc * 1e300)[0, 0] == 2e300


def test_a_function_is_known_by_what_it_does():
    one = np.ones(N, np.float32)

    def other(product, shift):
        return gm.epilogue.maximum(0, shift + product)

    texts = {
        text_of(lambda acc, bias: gm.epilogue.relu(acc + bias), bias=one),
        text_of(lambda acc: gm.epilogue.relu(acc), bias=one),
        text_of("relu", bias=one),
        text_of(other, shift=one),
    }
    assert texts == {"acc; e0; add 0 1; =0.0; maximum 2 3"}
    assert text_of(lambda acc: acc * 0.25) == text_of(lambda acc: FACTOR * acc)
    assert text_of(lambda acc: acc * 0.25) != text_of(lambda acc: acc * 0.5)
    assert text_of(lambda acc: acc - 2) == text_of(lambda acc: acc + -2)


def test_numbers_of_a_launch_are_no_part_of_the_key():
    first, _ = ending_of(lambda acc, s: acc * s, None, None, {"s": 2})
    second, _ = ending_of(lambda acc, s: acc * s, None, None, {"s": 3.5})
    assert first.expression == second.expression
    assert (first.numbers, second.numbers) == ((2.0,), (3.5,))


def test_what_is_computed_twice_is_one_step():
    ending, _ = ending_of(lambda acc: (acc * acc + 1) * (acc * acc + 1), None, None, None)
    assert ending.expression.steps == ("acc", "mul 0 0", "=1.0", "add 1 2", "mul 3 3")


def test_a_long_chain_is_one_list(rng):
    def squared(acc):
        for _ in range(200):
            acc = acc * acc * 0.5
        return acc

    assert len(Expression.parse(text_of(squared)).steps) == 2 * 200 + 2
    with pytest.raises(gm.ArgumentError, match="more than 512 operations"):
        text_of(lambda acc: sum((acc * i for i in range(1, 400)), acc))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda acc: max(0, acc), "a branch on it.*acc.*use where, .* of gemmule.epilogue"),
        (lambda acc: max(acc, 0), "a branch on it"),
        (lambda acc: math.exp(acc), r"Python's math.*acc.*use exp, .* of gemmule.epilogue"),
        (lambda acc: np.exp(acc), r"numpy\.exp.*functions of gemmule\.epilogue"),
        (lambda acc: np.maximum(acc, 0), r"numpy\.maximum"),
        (lambda acc: acc + np.ones(3), "with an array.*epilogue_args"),
        (lambda acc: np.ones(3) * acc, "with an array.*epilogue_args"),
        (lambda acc: acc + "x", "with a str"),
        (lambda acc: acc + 1j, "with a complex"),
        (lambda acc: acc.clip(0), "cannot be traced.*clip"),
        (lambda acc: acc[0], "an index"),
        (lambda acc: sum(acc), "iterating over it"),
        (lambda acc: None, "returned None"),
        (lambda acc: 1.0, "returned a float"),
        (lambda acc: acc > 0, r"returned the comparison \(0.0 < acc\)"),
        (lambda acc: (acc > 0) * acc, "not a comparison|comparisons go into"),
        (lambda acc: gm.epilogue.where(acc, 1, 2), "where takes a comparison"),
        (lambda acc: acc**0.5, "powers are whole numbers"),
        (lambda acc: gm.epilogue.gelu(acc, approximate="fast"), "got 'fast'"),
        (lambda acc, x: acc + x, "a parameter x for which there is no value"),
        (lambda acc, c: acc + c, "a parameter c for which there is no value; pass c to gemm"),
        (lambda *values: values[0], "takes no parameter by position"),
        (lambda acc, **more: acc, r"has the parameter \*\*more"),
        (lambda: 0, "has no parameters"),
        ("softplus", "choose one of 'relu'"),
        ("swish", "did you mean 'silu'"),
        (3, "epilogue is of type int"),
    ],
)
def test_what_cannot_be_traced(function, message):
    with pytest.raises(gm.ArgumentError, match=message):
        gm.gemm(np.ones((2, 3)), np.ones((3, 4)), epilogue=function)


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (gm.ShapeError, r"bias has shape \(5,\), which does not broadcast.*\(M, 1\)", {"bias": np.ones(5)}),
        (gm.ShapeError, "args.'x'. has shape", {"epilogue": lambda acc, x: x, "epilogue_args": {"x": np.ones((2, 2))}}),
        (gm.DTypeError, "bias is complex128", {"bias": np.ones(4) * 1j}),
        (gm.DTypeError, "bias is int64", {"bias": np.ones(4, int)}),
        (gm.ArgumentError, "beta=2.0 adds c", {"c": np.ones((2, 4)), "beta": 2, "epilogue": lambda acc, c: acc + c}),
        (gm.ArgumentError, "names x, of which", {"epilogue": lambda acc: acc, "epilogue_args": {"x": 1}}),
        (gm.ArgumentError, "has an entry 'bias'", {"epilogue": lambda acc, bias: acc, "epilogue_args": {"bias": 1}}),
        (gm.ArgumentError, "names x, but there is no epilogue", {"epilogue_args": {"x": 1}}),
        (gm.ArgumentError, "has no parameter x", {"epilogue": "relu", "epilogue_args": {"x": 1}}),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit(error, message, options):
    with pytest.raises(error, match=message):
        gm.gemm(np.ones((2, 3)), np.ones((3, 4)), **options)


def test_a_wider_bias_than_the_sum_is_refused():
    with pytest.raises(gm.DTypeError, match=r"bias is float64.*computed in float32; convert it"):
        gm.gemm(np.ones((2, 3), np.float32), np.ones((3, 4), np.float32), bias=np.ones(4))
    with pytest.raises(gm.DTypeError, match="epilogue: integer results take no bias"):
        gm.gemm(np.ones((2, 3), np.int8), np.ones((3, 4), np.int8), epilogue="relu")


def test_functions_are_for_epilogues():
    with pytest.raises(
        gm.ArgumentError, match=r"gemmule\.epilogue\.relu takes values inside of an epilogue, not ndarray"
    ):
        gm.epilogue.relu(np.ones(3))


def test_results_of_vectors_and_batches():
    a, b = np.full((3, 2, 4), 1.0), np.full((4, 5), 0.5)
    rows, cols = np.array([[1.0], [-9.0]]), np.arange(5.0)
    got = gm.gemm(a, b, bias=cols, epilogue=lambda acc, r: gm.epilogue.relu(acc + r), epilogue_args={"r": rows})
    np.testing.assert_array_equal(got, np.broadcast_to(np.maximum(2 + rows + cols, 0), (3, 2, 5)))
    np.testing.assert_array_equal(gm.gemm(a[0], b[:, 0], bias=np.array([1.0, 2.0])), [3, 4])
    np.testing.assert_array_equal(gm.gemm(a[0, 0], b, bias=cols), 2 + cols)


def test_layers_are_one_product_with_their_bias():
    kind = dtype_named("bfloat16").numpy()
    x, w, bias, residual = (np.ones(shape, kind) for shape in ((3, 16, 8), (8, 24), (24,), (3, 16, 24)))
    given = {"executor": "vgpu", "epilogue": lambda acc, r: gm.epilogue.relu(acc) + r}
    plan = gm.gemm.plan(x, w, bias=bias, epilogue_args={"r": residual}, **given)
    assert (plan.problem.m, plan.problem.batch, plan.problem.c.rows) == (48, (), 48)
    assert "epilogue: r + relu(acc + bias)" in str(plan).splitlines()
    (found,) = plan.problem.epilogue.matrices
    assert (found.rows, found.row_stride, found.col_stride, found.batch_strides) == (48, 0, 1, ())
    # A value for each row of every matrix is none for each row of the large one.
    plan = gm.gemm.plan(x, w, bias=np.ones((16, 1), kind), epilogue_args={"r": residual}, **given)
    assert (plan.problem.m, plan.problem.batch) == (16, (3,))


def test_c_is_not_read_unless_it_is_named():
    a, b, nan = np.ones((2, 3)), np.ones((3, 4)), np.full((2, 4), np.nan)
    np.testing.assert_array_equal(gm.gemm(a, b, nan, beta=0, epilogue="relu"), np.full((2, 4), 3.0))


def test_the_result_may_be_the_residual():
    a, b, c = np.ones((2, 3)), np.ones((3, 4)), np.arange(8.0).reshape(2, 4)
    expected = 3 + c
    assert gm.gemm(a, b, out=c, epilogue=lambda acc, r: acc + r, epilogue_args={"r": c}) is c
    np.testing.assert_array_equal(c, expected)
    with pytest.raises(gm.OverlapError, match="out shares memory with bias"):
        gm.gemm(a, b, out=c, bias=c[0])
    # Of vectors too.
    x = np.arange(4.0)
    assert gm.gemm(a[0], b, out=x, bias=x) is x
    np.testing.assert_array_equal(x, [3, 4, 5, 6])


def problem(epilogue, d=None, narrow=False, dtype="bfloat16"):
    kind = dtype_named(dtype)
    a, b = contiguous(kind, 64, 32), contiguous(kind, 32, 48)
    if narrow:
        a, b = contiguous(FLOAT8, 64, 32), contiguous(FLOAT8, 48, 32).transposed()
    return GemmProblem(64, 48, 32, (), a, b, None, d or contiguous(kind, 64, 48), epilogue=epilogue)


FLOAT8 = dtype_named("float8_e4m3fn")


BIASED = Epilogue(Expression(("acc", "e0", "add 0 1")), (contiguous(dtype_named("float32"), 64, 48),))


#: Types, depths and precisions of what kernels prepare, other than odd extents of bfloat16.
PREPARED = {
    "hopper_gemm_upcast": ("float8_e4m3fn", 31, Precision.IEEE),
    "gemm_upcast": ("int8", 31, Precision.IEEE),
    "hopper_gemm_k_major": ("float8_e4m3fn", 32, Precision.FLOAT8),
    "simt_gemm_mn_major": ("float32", 31, Precision.IEEE),
}


@pytest.mark.parametrize("spec", [spec for spec in REGISTRY if spec.operation == "gemm"], ids=lambda spec: spec.name)
def test_kernels_know_epilogues_or_refuse_them(spec):
    options = {
        "narrow": spec.name == "hopper_gemm_w8a16",
        "dtype": "float32" if spec.name == "simt_gemm" else "bfloat16",
    }
    reason = spec.why_not(problem(BIASED, **options), spec.archs[0], spec.default)
    if spec.next_kernel is not None and spec.epilogues:
        name, k, precision = PREPARED.get(spec.name, ("bfloat16", 31, Precision.IEEE))
        operands = {
            "a": contiguous(dtype_named(name), 64, k),
            "b": contiguous(dtype_named("bfloat16" if name == "int8" else name), k, 48),
        }
        odd = dataclasses.replace(problem(BIASED), k=k, precision=precision, **operands)
        assert spec.why_not(odd, spec.archs[0], spec.default) is None
        *_, then = spec.next_kernel(odd, spec.default).chain()
        assert then.problem.epilogue == BIASED
        assert then.operands["e0"] == "e0"
    elif spec.epilogues:
        assert reason is None
        launch = spec.launch(problem(BIASED, **options), spec.default)
        assert "e0" in {getattr(param, "operand", None) for param in launch.params}
        assert dict(spec.signature(problem(BIASED, **options), spec.default))["epilogue"] == BIASED.expression.text
        assert "epilogue" not in dict(spec.signature(problem(None, **options), spec.default))
    else:
        assert reason == "it computes no epilogue (a bias or a function of the product)"


def test_a_kernel_is_always_found():
    kinds = [("float64", "float64"), ("float32", "float32"), ("float8_e4m3fn", "float32"), ("float16", "float16")]
    for element, out in kinds:
        a, d = contiguous(dtype_named(element), 9, 9), contiguous(dtype_named(out), 9, 9)
        bias = Epilogue(BIASED.expression, (contiguous(dtype_named(out), 9, 9),))
        problem = GemmProblem(9, 9, 9, (), a, a, None, d, epilogue=bias)
        *_, last = choose(problem, REGISTRY[0].archs[0]).launches(problem)[0]
        assert last.spec.epilogues
        assert last.problem.epilogue == bias


def test_warpgroups_take_turns_where_an_epilogue_would_wait():
    kind = dtype_named("bfloat16")
    a = contiguous(kind, 4096, 4096)
    plain = GemmProblem(4096, 4096, 4096, (), a, a, None, a)
    gelu = Epilogue(Expression(("acc", "e0", "add 0 1", "gelu 2")), (a,))
    chosen = [
        choose(one, REGISTRY[0].archs[0], multiprocessors=132).config.as_dict()
        for one in (plain, dataclasses.replace(plain, epilogue=gelu))
    ]
    assert [config["pingpong"] for config in chosen] == [0, 1]


def test_a_transposed_problem_has_transposed_inputs():
    kind = dtype_named("bfloat16")
    turned = problem(BIASED, d=contiguous(kind, 48, 64).transposed())
    oriented, first, second = row_result(turned)
    assert (first, second) == ("b", "a")
    assert oriented.epilogue.matrices[0] == BIASED.matrices[0].transposed()


def test_inputs_walk_the_batch():
    kind = dtype_named("float32")
    matrices = {name: contiguous(kind, 4, 4, (2, 3)) for name in "abd"}
    bias = contiguous(kind, 4, 4, (2, 3))
    whole = GemmProblem(4, 4, 4, (2, 3), matrices["a"], matrices["b"], None, matrices["d"],
                        epilogue=Epilogue(BIASED.expression, (bias,)))  # fmt: skip
    inner, outer, strides = split_batch(whole, 1)
    assert (inner.batch, outer, strides["e0"]) == ((6,), (), ())
    assert inner.epilogue.matrices[0].batch_strides == (16,)
    inner, outer, strides = split_batch(whole, 0)
    assert (outer, strides["e0"]) == ((6,), (16,))
