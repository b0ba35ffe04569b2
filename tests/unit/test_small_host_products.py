"""Small products of NumPy arrays without a plan: what they take, and that they are what a plan computes."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.api import small_host_products
from gemmule.api.small_host_products import small_host_product

SHAPES = [((4, 4), (4, 4)), ((1, 7), (7, 3)), ((33, 1), (1, 65)), ((5, 6, 2), (5, 2, 3)), ((1000, 2, 2), (1000, 2, 2))]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_the_bits_of_a_plan(shapes, dtype, rng):
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    expected = gm.matmul.plan(a, b).execute()
    found = small_host_product(a, b, None)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(gm.matmul(a, b), expected)
    out = np.full(expected.shape, np.nan, dtype)
    assert gm.matmul(a, b, out) is out
    np.testing.assert_array_equal(out, expected)


def test_no_warning_of_what_is_not_finite():
    a = np.array([[np.inf, 1e300], [np.nan, 1.0]])
    assert np.isnan(gm.matmul(a, np.zeros((2, 2)))).any()
    assert gm.matmul(a[:1], np.full((2, 1), 1e300))[0, 0] == np.inf


class Subclass(np.ndarray):
    pass


X = np.ones((8, 8))
UNALIGNED = np.zeros(8 * 8 * 8 + 1, "u1")[1:].view("f8").reshape(8, 8)
READ_ONLY = np.zeros((8, 8))
READ_ONLY.flags.writeable = False
PLANNED = {
    "a list": (X.tolist(), X, None),
    "a subclass": (X.view(Subclass), X, None),
    "two types": (X, X.astype("f4"), None),
    "integers": (X.astype(int), X.astype(int), None),
    "half": (X.astype("f2"), X.astype("f2"), None),
    "foreign byte order": (X.astype(">f8"), X.astype(">f8"), None),
    "strided": (X[::2], X, None),
    "transposed": (X, np.ones((4, 8)).T, None),
    "not aligned": (UNALIGNED, X, None),
    "a vector": (X, X[0], None),
    "a broadcast batch": (np.ones((3, 8, 8)), X, None),
    "a batch of one": (np.ones((3, 8, 8)), np.ones((1, 8, 8)), None),
    "no K": (np.ones((8, 0)), np.ones((0, 8)), None),
    "no rows": (np.ones((0, 8)), X, None),
    "wrong extents": (X, np.ones((7, 8)), None),
    "large": (np.ones((1025, 1)), np.ones((1, 1025)), None),
    "out is an operand": (X, X, X),
    "out of another type": (X, X, np.zeros((8, 8), "f4")),
    "out of another shape": (X, X, np.zeros((8, 9))),
    "out in columns": (X, X, np.zeros((8, 8)).T),
    "out that is read-only": (X, X, READ_ONLY),
    "out of a list": (X, X, [0.0]),
}


@pytest.mark.parametrize("case", PLANNED)
def test_what_takes_a_plan(case, monkeypatch):
    monkeypatch.delenv("GEMMULE_EXECUTOR", raising=False)
    a, b, out = PLANNED[case]
    if case == "out in columns":
        out = np.zeros((8, 8), order="F")
    assert small_host_product(a, b, out) is None


def test_the_executor_of_the_environment(monkeypatch):
    monkeypatch.setenv("GEMMULE_EXECUTOR", "vgpu")
    assert small_host_product(X, X, None) is None
    monkeypatch.setenv("GEMMULE_EXECUTOR", "")
    assert small_host_product(X, X, None) is not None


def test_what_may_pay_for_a_gpu_takes_a_plan(monkeypatch):
    monkeypatch.setattr(small_host_products, "HOST_TO_GPU_FLOP", 2 * 8**3)
    assert small_host_product(X, X, None) is None
