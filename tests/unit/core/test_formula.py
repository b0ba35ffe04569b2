"""Expressions as people write them: read as Python they compute what their steps do."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule.epilogue as ep
from gemmule.api.epilogues.ending import ending_of
from gemmule.core.epilogue import Expression
from gemmule.core.formula import formula
from gemmule.host.epilogue import apply

NAMESPACE = {
    "where": np.where, "maximum": np.maximum, "minimum": np.minimum, "exp": np.exp, "tanh": np.tanh, "abs": np.abs,
    "sqrt": np.sqrt, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)), "inf": np.inf,
}  # fmt: skip
FUNCTIONS = {
    "relu(acc + x)": lambda acc, x: ep.relu(acc + x),
    "acc - x - 2": lambda acc, x: acc - x - 2,
    "acc - (x - 2)": lambda acc, x: acc - (x - 2),
    "acc / (x / acc) / 2": lambda acc, x: acc / (x / acc) / 2,
    "-(acc + x) * acc": lambda acc, x: acc * -(acc + x),
    "acc - -acc * x": lambda acc, x: acc - (-acc) * x,
    "acc * sigmoid(acc + x)": lambda acc, x: acc * ep.sigmoid(acc + x),
    "silu(acc) * abs(x)": lambda acc, x: abs(x) * ep.silu(acc),
    "where(x < acc, acc, 0.25 * x)": lambda acc, x: ep.where(acc > x, acc, x * 0.25),
    "where(acc + x == 2, acc, maximum(acc, x))": lambda acc, x: ep.where(acc + x == 2, acc, ep.maximum(acc, x)),
    "minimum(acc, inf) * -1.5e-07": lambda acc, x: ep.minimum(acc, float("inf")) * -1.5e-7 + 0 * x,
    "powers": lambda acc, x: (acc + x) ** 3 - (acc - x) ** 2,
    "acc + (x + 1)": lambda acc, x: acc + (x + 1),
}


def shown(function, *roles, **numbers):
    given = dict.fromkeys(roles, np.zeros((1, 1))) | numbers
    return ending_of(function, None, None, given)[0]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_shown_is_what_is_computed(name, rng):
    ending = shown(FUNCTIONS[name], "x")
    acc, x = rng.uniform(0.5, 3, (2, 5, 7))
    expected = np.empty_like(acc)
    matrices = [x] * len(ending.roles)
    apply(expected, [acc], ending.expression, None, matrices, ())
    got = eval(ending.text, {"__builtins__": {}}, {**NAMESPACE, "acc": acc, "x": x})
    np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["relu(acc + x)", "acc - x - 2", "acc - (x - 2)", "where(x < acc, acc, x * 0.25)"])
def test_it_is_written_as_the_function_was(name):
    function = FUNCTIONS.get(name) or FUNCTIONS["where(x < acc, acc, 0.25 * x)"]
    assert shown(function, "x").text == name


def test_named_forms():
    def text(epilogue, bias=None, gated=False, absmax=False):
        return ending_of(epilogue, bias, None, None, gated=gated, absmax=absmax)[0].text

    assert [text(name) for name in ("relu", "gelu", "gelu_tanh", "silu")] == [
        "relu(acc)", "gelu(acc)", "gelu_tanh(acc)", "silu(acc)",
    ]  # fmt: skip
    assert text("gelu_tanh", bias=np.zeros(3)) == "gelu_tanh(acc + bias)"
    assert text("geglu_tanh", gated=True) == "up * gelu_tanh(gate)"
    assert text("swiglu", np.zeros(3), gated=True, absmax=True) == "(up + up_bias) * silu(gate + gate_bias); absmax"
    assert shown(lambda acc, s: acc * s, s=-0.5).text == "acc * -0.5"
    # The gate of one value by the tanh form of another is none of these.
    assert shown(lambda acc: acc * ep.sigmoid(acc * acc * 2)).text == "acc * sigmoid(acc * acc * 2)"


def test_a_long_expression_is_given_as_its_steps():
    expression = shown(lambda acc: ep.relu(acc) ** 64).expression
    assert formula(expression, {}) == expression.text
    # Each step doubles the text.
    doubled = Expression(("acc", *(f"mul {place} {place}" for place in range(500))))
    assert formula(doubled, {}) == doubled.text
