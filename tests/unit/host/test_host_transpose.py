"""Transposes on the host."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from gemmule.core.errors import ArgumentError, DTypeError, OverlapError, ShapeError
from gemmule.host.transpose import transpose

DTYPES = [np.dtype(t) for t in ("u1", "e", "f", "d", "D", ">i4", "?", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)]
SHAPES = [
    (),
    (0,),
    (5,),
    (0, 3),
    (1, 7),
    (7, 1),
    (63, 65),
    (64, 64),
    (129, 200),
    (3, 130, 70),
    (130, 3, 70),
    (2, 65, 3, 66),
]


def bits(x):
    return np.ascontiguousarray(x).view(np.uint8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_permutation_moves_every_bit(rng, dtype, shape):
    x = np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)
    for axes in [None, *itertools.permutations(range(len(shape)))]:
        expected = x.transpose(axes)
        out = np.zeros(expected.shape, dtype)
        transpose(x, axes, out)
        assert bits(out).tobytes() == bits(expected).tobytes()


@pytest.mark.parametrize("steps", list(itertools.product((1, -1, 2), repeat=4)), ids=str)
def test_strides(rng, steps):
    x = rng.integers(0, 2**30, (150, 280))[:: steps[0], :: steps[1]]
    memory = np.zeros((2 * x.shape[1], 2 * x.shape[0]), x.dtype)
    out = memory[:: steps[2], :: steps[3]][: x.shape[1], : x.shape[0]]
    transpose(x, (1, 0), out)
    np.testing.assert_array_equal(out, x.T)
    assert np.count_nonzero(memory) == np.count_nonzero(x)


def test_column_major_output_and_negative_axes(rng):
    x = rng.standard_normal((3, 100, 90))
    out = np.zeros((3, 90, 100), order="F")
    transpose(x, (0, -1, -2), out)
    np.testing.assert_array_equal(out, x.swapaxes(1, 2))


def test_zero_strides_and_other_byte_order(rng):
    x = np.broadcast_to(rng.standard_normal(80), (90, 80))
    out = np.zeros((80, 90), ">f8")
    transpose(x, None, out)
    np.testing.assert_array_equal(out, x.T)


def test_refusals():
    x = np.ones((2, 3), "f")
    for error, axes, out in [
        (ArgumentError, (0, 0), np.empty((3, 2), "f")),
        (ArgumentError, (0, 2), np.empty((3, 2), "f")),
        (ArgumentError, (0,), np.empty((3, 2), "f")),
        (ShapeError, None, np.empty((2, 3), "f")),
        (DTypeError, None, np.empty((3, 2), "i4")),
        (DTypeError, None, np.empty((3, 2), "d")),
        (OverlapError, None, x.reshape(3, 2)),
    ]:
        with pytest.raises(error):
            transpose(x, axes, out)
    out = np.empty((3, 2), "f")
    out.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        transpose(x, None, out)
