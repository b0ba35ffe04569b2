"""Batched 2-D transposes stand for every permutation of axes."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gemmule.core.layout import compact_strides
from gemmule.core.permutation import transpose_problem
from gemmule.core.problem import outer_offsets, split_batch

shapes = st.lists(st.integers(0, 4), min_size=0, max_size=6).map(tuple)


def moved(problem, source, target, keep):
    """Do what a kernel does, element by element, with launches that cover `keep` batch dimensions."""
    inner, outer, strides = split_batch(problem, keep)
    for first, second in outer_offsets(outer, list(strides.values())):
        for index in itertools.product(range(inner.rows), range(inner.cols), *map(range, inner.batch)):
            places = []
            for matrix, offset in ((inner.source, first), (inner.target, second)):
                steps = (matrix.row_stride, matrix.col_stride, *matrix.batch_strides)
                places.append(offset + sum(i * s for i, s in zip(index, steps, strict=True)))
            target[places[1]] = source[places[0]]


@given(shape=shapes, seed=st.randoms(use_true_random=False), keep=st.integers(0, 3))
def test_every_permutation_of_axes(shape, seed, keep):
    axes = list(range(len(shape)))
    seed.shuffle(axes)
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    expected = x.transpose(axes)
    strides = compact_strides(shape)
    problem = transpose_problem(
        expected.shape, tuple(strides[axis] for axis in axes), compact_strides(expected.shape), itemsize=8
    )
    got = np.full(x.size, -1)
    moved(problem, x.ravel(), got, keep)
    np.testing.assert_array_equal(got.reshape(expected.shape), expected)


@given(shape=shapes)
def test_elements_of_16_bytes_move_as_halves(shape):
    x = (np.arange(np.prod(shape, dtype=int)) * (1 + 2j)).reshape(shape)
    problem = transpose_problem(shape[::-1], compact_strides(shape)[::-1], compact_strides(shape[::-1]), itemsize=16)
    got = np.full(2 * x.size, -1.0)
    moved(problem, x.ravel().view(np.float64), got, keep=3)
    np.testing.assert_array_equal(got.view(complex).reshape(shape[::-1]), x.T)
