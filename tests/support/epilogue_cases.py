"""Epilogues with what they should give: for the tests of every executor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import gemmule.epilogue as ep
from gemmule.core.dtype import dtype_named
from support.oracle import smallest_subnormal

_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x):
    return _erf(x).astype(float)


@dataclasses.dataclass(frozen=True)
class Given:
    """An input: ``n``, ``1n``, ``m1`` or ``mn`` for its shape, and its type; None is the output's."""

    extents: str
    dtype: str | None = "bfloat16"

    def shape(self, m, n):
        return tuple({"m": m, "n": n, "1": 1}[extent] for extent in self.extents)


@dataclasses.dataclass(frozen=True)
class Case:
    """An epilogue as `gemm` is given it, and the same in NumPy: ``expected(x, **arrays)`` of x = alpha * a @ b."""

    epilogue: Any
    expected: Callable[..., Any]
    arrays: dict[str, Given] = dataclasses.field(default_factory=dict)
    numbers: dict[str, float] = dataclasses.field(default_factory=dict)
    alpha: float = 1.0
    beta: float = 0.0
    #: How steep the function is at most: an error of the sum becomes so much.
    slope: float = 1.2

    @property
    def reads_c(self):
        return "c" in self.arrays


def gelu(x):
    return x * (1 + erf(x / math.sqrt(2))) / 2


def gelu_tanh(x):
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def silu(x):
    return x / (1 + np.exp(-x))


ROW, COLUMN, MATRIX, C = Given("1n"), Given("m1", "float32"), Given("mn", "float16"), Given("mn", None)

CASES = {
    "relu": Case("relu", lambda x: np.maximum(x, 0)),
    "bias": Case(None, lambda x, bias: x + bias, {"bias": ROW}),
    "bias_gelu": Case("gelu", lambda x, bias: gelu(x + bias), {"bias": ROW}),
    "row_bias_silu": Case("silu", lambda x, bias: silu(0.5 * x + bias), {"bias": COLUMN}, alpha=0.5),
    "named_c": Case(
        lambda acc, c, bias, scale: scale * ep.relu(acc + bias) + c,
        lambda x, c, bias, scale: scale * np.maximum(x + bias, 0) + c,
        {"c": C, "bias": ROW},
        {"scale": 0.75},
    ),
    "beta_c_gelu_tanh": Case(
        "gelu_tanh", lambda x, c: gelu_tanh(2 * x - 1.5 * c), {"c": C}, alpha=2.0, beta=-1.5, slope=3
    ),
    "two_matrices": Case(
        # Without a step where the comparison turns, which a rounding could cross.
        lambda acc, x, y: ep.where(acc > x, (acc - x) * y, x - acc),
        lambda acc, x, y: np.where(acc > x, (acc - x) * y, x - acc),
        {"x": Given("mn", "float32"), "y": MATRIX},
        slope=6,
    ),
    "functions": Case(
        lambda acc, x: (
            ep.tanh(acc) + ep.exp(-abs(x)) + ep.erf(acc / 2) + ep.sqrt(x * x) + ep.log(x * x + 1) + ep.minimum(acc, 3)
        ),
        lambda acc, x: np.tanh(acc) + np.exp(-abs(x)) + erf(acc / 2) + abs(x) + np.log(x * x + 1) + np.minimum(acc, 3),
        {"x": COLUMN},
        slope=4,
    ),
    "powers": Case(
        lambda acc, x: ep.sigmoid(acc) ** 3 - (2 - x) / 4,
        lambda acc, x: (1 / (1 + np.exp(-acc))) ** 3 - (2 - x) / 4,
        {"x": ROW},
        slope=1,
    ),
}


def assert_finished(got, a, b, case, values):
    """Hold a result against float64: the sum's error goes through the function, then one rounding of the output."""
    out = dtype_named(got.dtype.name)
    wide = {name: value.astype(np.float64) for name, value in values.items()}
    product = a.astype(np.float64) @ b.astype(np.float64)
    size = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)) + sum(np.abs(x) for x in wide.values()) + 4
    expected = np.asarray(case.expected(product, **wide, **case.numbers), np.float64)
    unit = 2.0**-53 if "float64" in (a.dtype.name, b.dtype.name) else 2.0**-24
    # One rounding, which is a subnormal number away where the result is smaller than a normal one.
    rounding = out.unit_roundoff * np.abs(expected) * 1.01 + smallest_subnormal(out)
    bound = (a.shape[-1] + 32) * unit * case.slope * size + rounding
    assert np.isfinite(got.astype(np.float64)).all(), "the output holds NaN or infinity: not every element was written"
    error = np.abs(got.astype(np.float64) - expected) / bound
    worst = float(error.max(initial=0.0))
    assert worst <= 1, f"error is {worst:.3g} times the bound, at {np.unravel_index(np.argmax(error), error.shape)}"
