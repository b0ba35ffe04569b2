"""gemmule.outofcore.matmul into and from arrays of unusual strides, without elements, or with a mask."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gemmule as gm

as_strided = np.lib.stride_tricks.as_strided


def multiply(*arguments, **options):
    return gm.outofcore.matmul(*arguments, executor="cpu", **options)


@pytest.mark.parametrize("shape", [(64, 0), (0, 64), (0, 0)])
def test_a_result_without_elements(shape):
    # NumPy gives such arrays strides of 0.
    out = np.zeros(shape, "f4")
    report = multiply(np.ones((shape[0], 5), "f4"), np.ones((5, shape[1]), "f4"), out, verify=True)
    assert (report.m, report.n) == shape


def test_rows_that_run_into_each_other_take_no_result():
    memory = np.zeros(40, "f4")
    for strides in ((8, 4), (0, 4), (4, 4)):
        with pytest.raises(gm.OverlapError, match="elements may share memory"):
            multiply(np.ones((5, 2), "f4"), np.ones((2, 6), "f4"), as_strided(memory, (5, 6), strides))
    assert not memory.any()
    out = np.zeros((6, 20), "f4")[::-2, 1:19:3]
    multiply(np.ones((3, 2), "f4"), np.ones((2, 6), "f4"), out)
    assert (out == 2).all()


def test_a_mask_is_not_dropped():
    plain, masked = np.ones((3, 3)), np.ma.masked_equal(np.eye(3), 0)
    for remedy, *arguments in (
        (r"a\.filled\(value\)", masked, plain, plain.copy()),
        (r"b\.filled\(value\)", plain, masked, plain.copy()),
        (r"out\.data", plain, plain, masked),
    ):
        with pytest.raises(gm.ArgumentError, match=rf"masked array.*pass {remedy}$"):
            multiply(*arguments)
    with pytest.raises(gm.ArgumentError, match=r"pass c\.filled\(value\)"):
        multiply(plain, plain, plain.copy(), c=masked, beta=1)


@pytest.mark.parametrize("through", [{}, {"device_memory": "1MiB", "pinned_memory": "64KiB"}])
def test_memory_that_is_too_small_for_the_check_is_said_before_anything_is_computed(through):
    a, b = np.ones((40_000, 3), "i2"), np.ones((3, 4), "i2")
    out = np.full((40_000, 4), -1, "i2")
    memory = "3MiB"
    with pytest.raises(gm.MemoryLimitError, match="verifying"):
        multiply(a, b, out, memory=memory, verify=True, **through)
    assert (out == -1).all()
    multiply(a, b, out, memory=memory, **through)
    assert (out == 3).all()


@pytest.mark.parametrize("through", [{}, {"device_memory": "1MiB"}, {"pinned_memory": "64KiB"}, {"pinned_memory": 1}])
@pytest.mark.parametrize("shape", [(131, 7, 40), (40_000, 4, 3), (3, 3, 3), (0, 4, 5)])
def test_the_memory_that_a_refusal_names_suffices_for_the_product_and_its_check(shape, through, tmp_path):
    m, n, k = shape
    a, b, file = np.ones((m, k)), np.ones((k, n)), tmp_path / "c.npy"
    limits = {"memory": 1, **through}
    for argument in ("memory", "pinned_memory") if through == {"pinned_memory": 1} else ("memory",):
        with pytest.raises(gm.MemoryLimitError) as error:
            multiply(a, b, file, verify=True, **limits)
        limits[argument] = re.search(rf"give {argument}='([^']*)' or more", str(error.value))[1]
        if argument == "memory":
            with pytest.raises(gm.MemoryLimitError):
                multiply(a, b, file, verify=True, **{**limits, "memory": error.value.least - 1})
    assert multiply(a, b, file, verify=True, **limits).verified.passed
    assert (np.load(file) == k).all()
