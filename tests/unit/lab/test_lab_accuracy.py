"""What is held to be right, and what is found to be wrong."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from gemmule.core.dtype import TF32_SIGNIFICAND, Kind, Precision
from gemmule.lab.accuracy import accuracy, reference, sampled_rows
from gemmule.lab.products import as_matrix, gemm_problem, random_inputs

TYPES = [
    ("float64", "float64"), ("float32", "float32"), ("float16", "float16"), ("bfloat16", "float32"),
    ("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "bfloat16"), ("int8", "int32"), ("int8", "int8"),
    ("int32", "int32"),
]  # fmt: skip


@pytest.fixture
def small_blocks(monkeypatch):
    """Cut products of some dozens into several blocks each way, with a rest."""
    small = {"_DEPTH": 8, "_WIDTH": 4, "_BLOCK_DEPTH": 16, "_BLOCK_WIDTH": 8, "_BLOCK": 64, "_VECTOR_ROWS": 4}
    for name, value in small.items():
        monkeypatch.setattr(f"gemmule.lab.row_products.{name}", value)


def case(dtype, out, shape=(40, 30, 50), layout="nn"):
    problem = gemm_problem(*shape, dtype, out, layout)
    inputs = random_inputs(problem, 3)
    sums = np.int64 if problem.d.dtype.kind is Kind.INTEGER else problem.accumulator.numpy()
    a, b = (as_matrix(inputs[name], getattr(problem, name)).astype(sums) for name in "ab")
    return reference(problem, inputs, sampled_rows(shape[0], 0)), (a @ b).astype(problem.d.dtype.numpy())


def test_the_sample_has_the_first_and_the_last_row():
    rows = sampled_rows(1000, 5)
    assert (len(rows), rows[0], rows[-1]) == (16, 0, 999)
    assert len(set(rows.tolist())) == 16
    assert sampled_rows(3, 0).tolist() == [0, 1, 2]
    assert sampled_rows(17, 0, 16).tolist()[-1] == 16


@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize(("dtype", "out"), TYPES)
def test_a_right_product_is_within_the_bound(dtype, out, layout):
    right = accuracy(*case(dtype, out, layout=layout))
    assert right.failure is None
    assert right.over_bound <= 1
    assert (right.error_u == 0) == (out in ("int32", "int8"))


@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_parts_of_complex_products_by_blocks(dtype, layout, small_blocks):
    expected, output = case(dtype, dtype, layout=layout)
    right = accuracy(expected, output)
    assert right.failure is None
    assert 0 < right.over_bound <= 1
    output.imag[expected.rows[7], 29] += 5
    assert f"({expected.rows[7]}, 59) is " in accuracy(expected, output).failure


@pytest.mark.parametrize(("dtype", "out"), TYPES)
def test_one_wrong_element_is_found(dtype, out):
    expected, output = case(dtype, out)
    row = expected.rows[7]
    output[row, 29] = output[row, 29] + (1 if out in ("int32", "int8") else 5)
    wrong = accuracy(expected, output)
    assert f"({row}, 29) is " in wrong.failure
    assert not wrong.over_bound <= 1


def test_an_element_that_was_not_written_is_found_wherever_it_is():
    expected, output = case("float32", "float32")
    row = next(row for row in range(40) if row not in expected.rows)
    output[row, 3] = np.nan
    assert f"({row}, 3)" in accuracy(expected, output).failure


def test_a_few_units_in_the_last_place_are_within_the_bound_and_many_are_not():
    expected, output = case("float32", "float32")
    assert accuracy(expected, output * np.float32(1 + 2**-22)).failure is None
    assert "times the error bound" in accuracy(expected, output * np.float32(1 + 2**-10)).failure
    assert accuracy(expected, output + np.float32(1e-3)).error_u > 100


@pytest.mark.parametrize("k", [1, 2, 700, 5000])
def test_the_reference_of_float64_is_far_more_exact_than_float64(k):
    problem = gemm_problem(3, 2, k, "float64", "float64", "nn")
    inputs = random_inputs(problem, 1)
    inputs["a"][0] *= 2.0**40
    found = reference(problem, inputs, np.arange(3))
    for i in range(3):
        for j in range(2):
            terms = zip(inputs["a"][i].tolist(), inputs["b"][:, j].tolist(), strict=True)
            exact = sum(Fraction(a) * Fraction(b) for a, b in terms)
            got = Fraction(found.high[i, j].item()) + Fraction(found.low[i, j].item())
            assert abs(float(got - exact)) <= 2.0**-57 * found.size[i, j]


@pytest.mark.parametrize("conj", ["", "a", "b", "ab"])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_the_reference_of_complex_numbers_is_far_more_exact_than_they_are(dtype, conj, small_blocks):
    problem = gemm_problem(3, 21, 50, dtype, dtype, "nt")
    marked = {name: dataclasses.replace(getattr(problem, name), conj=True) for name in conj}
    problem, inputs = dataclasses.replace(problem, **marked), random_inputs(problem, 1)
    found = reference(problem, inputs, np.arange(3))
    a, b = (np.conj(inputs[name]) if name in conj else inputs[name] for name in "ab")
    for i in range(3):
        for j in (0, 13, 20):
            terms = [
                [Fraction(float(part)) for part in (x.real, x.imag, y.real, y.imag)]
                for x, y in zip(a[i], b[j], strict=True)
            ]
            real = sum(xr * yr - xi * yi for xr, xi, yr, yi in terms)
            imag = sum(xr * yi + xi * yr for xr, xi, yr, yi in terms)
            for column, exact in ((2 * j, real), (2 * j + 1, imag)):
                got = Fraction(found.high[i, column].item()) + Fraction(found.low[i, column].item())
                unit = 2.0**-57 if dtype == "complex128" else 2.0**-51
                assert abs(float(got - exact)) <= unit * found.size[i, column]


@pytest.mark.parametrize("scale", [1e-310, 1e-300, 1e150])
def test_the_reference_of_numbers_near_the_ends_of_float64(scale):
    problem = gemm_problem(3, 40, 300, "float64", "float64", "nn")
    inputs = random_inputs(problem, 1)
    plain = reference(problem, inputs, np.arange(3))
    inputs["a"] *= scale
    found = reference(problem, inputs, np.arange(3))
    np.testing.assert_allclose(found.high, scale * plain.high, rtol=1e-9, atol=scale * 1e-9)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "complex64"])
def test_the_reference_is_the_same_by_small_and_by_large_blocks(dtype, request):
    out = "int32" if dtype == "int8" else dtype
    large, output = case(dtype, out, (20, 75, 83))
    request.getfixturevalue("small_blocks")
    small, _ = case(dtype, out, (20, 75, 83))
    assert np.all(np.abs((large.high - small.high) + (large.low - small.low)) <= 2.0**-48 * large.size)
    np.testing.assert_allclose(small.size, large.size, rtol=1e-12)
    np.testing.assert_allclose(small.signed_sums, large.signed_sums, rtol=1e-9, atol=1e-9)
    assert accuracy(small, output).failure is None


def rounded_to(values, bits):
    """Round float32 values to that many bits of significand."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits).astype(np.float32)


@pytest.mark.parametrize("bits", [11, 8], ids=["tf32", "bf16"])
@pytest.mark.parametrize("k", [1024, 8192, 16384])
def test_inputs_that_were_rounded_to_fewer_bits_are_found_at_any_k(k, bits):
    problem = gemm_problem(24, 20, k, "float32", "float32", "nn")
    inputs = random_inputs(problem, 0)
    expected = reference(problem, inputs, sampled_rows(problem.m, 0))
    sequential = np.zeros((24, 20), np.float32)
    for i in range(k):
        sequential += inputs["a"][:, i : i + 1] * inputs["b"][i]
    right = accuracy(expected, sequential)
    assert right.failure is None
    assert right.rms_over_bound < 0.4
    few = accuracy(expected, rounded_to(inputs["a"], bits) @ rounded_to(inputs["b"], bits))
    assert few.failure is not None
    assert few.rms_over_bound > 10
    one_less = accuracy(expected, inputs["a"][:, 1:] @ inputs["b"][1:])
    assert one_less.failure is not None


@pytest.mark.parametrize("k", [8, 1024, 8192])
def test_with_tf32_inputs_may_be_rounded_to_its_bits_and_to_no_fewer(k):
    problem = dataclasses.replace(gemm_problem(24, 20, k, "float32", "float32", "nt"), precision=Precision.TF32)
    inputs = random_inputs(problem, 0)
    a, b = (as_matrix(inputs[name], getattr(problem, name)) for name in "ab")
    expected = reference(problem, inputs, sampled_rows(problem.m, 0))
    as_allowed = accuracy(expected, rounded_to(a, TF32_SIGNIFICAND) @ rounded_to(b, TF32_SIGNIFICAND))
    assert as_allowed.failure is None
    assert 0.1 < as_allowed.rms_over_bound < 0.5
    assert accuracy(expected, rounded_to(a, 8) @ rounded_to(b, 8)).failure is not None


def test_the_bound_of_the_root_mean_square_allows_inputs_of_one_sign():
    problem = gemm_problem(24, 20, 8192, "float32", "float32", "nn")
    inputs = {name: np.abs(array) for name, array in random_inputs(problem, 0).items()}
    sequential = np.zeros((24, 20), np.float32)
    for i in range(8192):
        sequential += inputs["a"][:, i : i + 1] * inputs["b"][i]
    assert accuracy(reference(problem, inputs, np.arange(24)), sequential).failure is None


@pytest.mark.parametrize(
    ("dtype", "out"), [("float64", "float64"), ("float32", "float32"), ("bfloat16", "bfloat16"), ("int8", "int32")]
)
def test_a_wrong_element_is_found_in_rows_that_are_not_sampled(dtype, out):
    expected, output = case(dtype, out, (300, 200, 64))
    assert accuracy(expected, output).failure is None
    row = next(row for row in range(300) if row not in expected.rows)
    output[row, 77] = output[row, 77] + (1 if out == "int32" else 8)
    assert f"row {row} with random signs" in accuracy(expected, output).failure
