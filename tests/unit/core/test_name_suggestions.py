"""Unknown names: a suggestion where one is similar, else all of them."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

import gemmule as gm
from gemmule.cli import gemmule
from gemmule.core.dtype import Precision
from gemmule.core.errors import ArgumentError
from gemmule.core.name_suggestions import did_you_mean, remedy_for, similar_names

STRATEGIES = ["c-stationary", "panels", "resident-c", "five-buffers"]


def test_a_suggestion_is_a_question():
    assert did_you_mean(["a"]) == "did you mean a?"
    assert did_you_mean(["a", "b", "c"]) == "did you mean a, b or c?"


def test_at_most_three_and_none_of_a_short_list():
    assert len(similar_names("naive", ["a_naive", "b_naive", "c_naive", "d_naive"])) == 3
    # "host" looks like none of them.
    assert similar_names("host", ["gpu", "cpu", "vgpu"]) == ()
    # A letter is a part of most names.
    assert similar_names("x", ["bf16x6", "tf32", "ieee", "float8"]) == ()


def test_values_are_quoted_as_in_python():
    assert remedy_for("panel", STRATEGIES).startswith("did you mean 'panels'")
    assert remedy_for(3, ["a", "b"], ", or pass a function") == "choose one of 'a', 'b', or pass a function"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["matmul", "a", "b", "-o", "c", "--strategy", "panel"], "'panel' is not known; did you mean panels"),
        (["matmul", "a", "b", "-o", "c", "--executor", "host"], "'host' is not one of 'gpu', 'cpu', 'vgpu'"),
        (["bench", "gemm", "--precision", "bf16"], "did you mean bf16x6"),
        (["bench", "gemm", "--layout", "xx"], "'xx' is not one of 'nn', 'nt', 'tn', 'tt'"),
    ],
)
def test_values_of_options(words, message):
    result = CliRunner().invoke(gemmule, words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_values_of_arguments():
    a = np.ones((2, 2), np.float32)
    with pytest.raises(gm.ArgumentError, match="epilogue='rellu' is not known; did you mean 'relu'"):
        gm.gemm(a, a, epilogue="rellu")
    with pytest.raises(gm.ArgumentError, match="or pass a function"):
        gm.gemm(a, a, epilogue="xyz")
    with pytest.raises(gm.ArgumentError, match="choose one of 'gpu', 'cpu', 'vgpu'"):
        gm.matmul(a, a, executor="host")


@pytest.mark.parametrize("name", ["float32", "fp64", "double"])
def test_a_type_is_no_precision(name):
    with pytest.raises(
        ArgumentError, match=f"precision='{name}' is a type; omit precision, or give 'ieee', .*choose one of 'tf32', "
    ):
        Precision.parse(name)
