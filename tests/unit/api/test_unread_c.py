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
