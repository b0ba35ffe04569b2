"""A matrix to add that nobody would read is refused, wherever one can be given."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

import gemmule as gm
from gemmule.cli import gemmule

X = np.arange(4.0).reshape(2, 2)


def test_beta_must_be_said():
    for call in (gm.gemm, gm.gemm.plan):
        for options in ({}, {"epilogue": "relu"}, {"bias": np.ones(2)}, {"out": np.empty((2, 2))}):
            with pytest.raises(gm.ArgumentError, match=r"c would not be read; give beta=1, or omit c"):
                call(X, X, X, **options)
    with pytest.raises(gm.ArgumentError, match=r"give beta=1, or omit c"):
        gm.outofcore.matmul(X, X, np.empty((2, 2)), c=X, executor="cpu")


def test_what_is_said_is_done():
    nan = np.full((2, 2), np.nan)
    np.testing.assert_array_equal(gm.gemm(X, X, nan, beta=0), X @ X)
    np.testing.assert_array_equal(gm.gemm(X, X, X, beta=1), X @ X + X)
    np.testing.assert_array_equal(gm.gemm(X, X, X, epilogue=lambda acc, c: acc - c), X @ X - X)
    out = np.empty((2, 2))
    gm.outofcore.matmul(X, X, out, c=nan, beta=0, executor="cpu")
    np.testing.assert_array_equal(out, X @ X)


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    command = ["matmul", "x.npy", "x.npy", "-o", "y.npy", "--c", "x.npy", "--executor", "cpu"]
    refused = CliRunner().invoke(gemmule, command)
    assert (refused.exit_code, refused.stderr) == (
        1,
        "gemmule: --c needs --beta; give both, or neither\n",
    )
    assert CliRunner().invoke(gemmule, [*command, "--beta", "1"]).exit_code == 0
    np.testing.assert_array_equal(np.load("y.npy"), X @ X + X)


@pytest.mark.parametrize("executor", ["cpu", "vgpu"])
@pytest.mark.parametrize(
    ("c", "factors", "sums"),
    [("f8", "f4", "float32"), ("i4", "f4", "float32"), ("i8", "i1", "int32")],
)
def test_a_c_that_would_be_rounded_is_refused(c, factors, sums, executor):
    a, c = X.astype(factors), X.astype(c)
    with pytest.raises(gm.DTypeError, match=rf"^c is {c.dtype}, but is added to .* convert c to {sums}$"):
        gm.gemm(a, a, c, beta=1, executor=executor)
    # Where it is not read, its type is nobody's concern.
    np.testing.assert_array_equal(gm.gemm(a, a, c, beta=0, executor=executor), X @ X)


def test_a_complex_c_of_a_real_product_is_refused():
    with pytest.raises(gm.DTypeError, match=r"^c is complex64, .*: pass c\.real, or make a or b complex$"):
        gm.gemm(X.astype("f4"), X.astype("f4"), X.astype("c8"), beta=1)


def test_a_c_that_the_sums_hold_is_added():
    halves = X.astype("f2")
    found = gm.gemm(halves, halves, X.astype("f4") / 4096, beta=1, executor="cpu")
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, (X @ X + X / 4096).astype("f2"))
    np.testing.assert_array_equal(gm.gemm(X.astype("f4"), X.astype("f4"), halves, beta=1, executor="cpu"), X @ X + X)
