"""Whether a plan says if its kernel uses the precision that the caller allows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gemmule as gm
from gemmule.api.planning.plan_lines import precision_text
from gemmule.core.arch import Arch
from gemmule.core.dtype import Precision
from gemmule.dispatch.select import choose
from gemmule.lab.products import gemm_problem

HOPPER = Arch.parse("sm_90a")
FLOATS = {"tf32": "float32", "bf16x6": "float32", "ozaki": "float64", "ozaki-14": "float64", "ozaki-15": "float64",
          "ozaki-16": "float64", "float8": "float8_e4m3fn"}  # fmt: skip


def told(precision, size, dtype, layout="nt"):
    problem = gemm_problem(size, size, size, dtype, "float32" if dtype.startswith("float8") else dtype, layout)
    problem = dataclasses.replace(problem, precision=precision)
    choice = choose(problem, HOPPER, multiprocessors=132)
    return choice.spec.name, precision_text(precision, "gpu", choice, problem)


@pytest.mark.parametrize("precision", [one for one in Precision if one is not Precision.IEEE])
def test_large_products_make_use_of_it(precision):
    dtype = FLOATS[precision.value]
    name, text = told(precision, 8192, dtype)
    guarded = " where its guard allows it, else the native kernel; plan.decision() says which"
    assert text == f"'{precision.value}' is used" + (guarded if precision is Precision.OZAKI else "")
    # The same kernel is not to be had without it.
    assert told(Precision.IEEE, 8192, dtype)[0] != name or name == "hopper_syrk"


@pytest.mark.parametrize("precision", [Precision.BF16X6, Precision.OZAKI_15])
def test_small_products_do_not(precision):
    name, text = told(precision, 16, FLOATS[precision.value])
    assert name.startswith(("gemm", "simt", "float64"))
    assert text == f"'{precision.value}' is allowed, but unused: this kernel computes as with 'ieee'"


@pytest.mark.parametrize("precision", [one for one in Precision if one is not Precision.IEEE])
def test_the_host_computes_more_exactly_than_it_must(precision):
    a = np.zeros((3, 3), np.float32 if FLOATS[precision.value] == "float32" else np.float64)
    if precision is Precision.FLOAT8:
        import ml_dtypes

        a = a.astype(ml_dtypes.float8_e4m3fn)
    plan = gm.matmul.plan(a, a, precision=precision.value, executor="cpu")
    assert plan.precision == f"'{precision.value}' is allowed, but unused: the host computes as with 'ieee'"
    assert f"precision: {plan.precision}" in str(plan).splitlines()


def test_without_a_precision_nothing_is_said():
    plan = gm.matmul.plan(np.zeros((3, 3)), np.zeros((3, 3)), executor="cpu")
    assert plan.precision == ""
    assert "precision" not in str(plan)
