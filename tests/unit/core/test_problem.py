"""Batches: which dimensions merge, and what is left to repeat."""

from __future__ import annotations

from gemmule.core.dtype import FLOAT32, INT8
from gemmule.core.layout import StridedMatrix, compact_strides, contiguous, layout_name
from gemmule.core.problem import GemmProblem, collapse_batch, inner_problem, outer_offsets, split_batch


def test_contiguous_batches_merge_into_one():
    assert collapse_batch((2, 3, 4), [(12, 4, 1), (120, 40, 10)]) == ((24,), [(1,), (10,)])


def test_extents_of_one_vanish():
    assert collapse_batch((1, 5, 1), [(7, 2, 9)]) == ((5,), [(2,)])
    assert collapse_batch((), [(), ()]) == ((), [(), ()])


def test_broadcast_dimensions_stay_apart_where_they_must():
    assert collapse_batch((2, 3), [(0, 5), (15, 5)]) == ((2, 3), [(0, 5), (15, 5)])
    assert collapse_batch((2, 3), [(0, 0), (15, 5)]) == ((6,), [(0,), (5,)])


def gemm_over(batch, a, b):
    d = contiguous(FLOAT32, 4, 4, batch)
    return GemmProblem(
        4, 4, 4, batch, StridedMatrix(FLOAT32, 4, 4, 4, 1, a), StridedMatrix(FLOAT32, 4, 4, 4, 1, b), None, d
    )


def test_what_a_launch_does_not_cover_is_repeated():
    problem = gemm_over((2, 3, 5), (0, 80, 16), (240, 0, 16))
    inner, outer, strides = split_batch(problem, 1)
    assert inner.batch == (5,)
    assert outer == (2, 3)
    assert strides == {"a": (0, 80), "b": (240, 0), "d": (240, 80)}
    assert list(outer_offsets(outer, list(strides.values())))[:4] == [
        (0, 0, 0),
        (80, 0, 80),
        (160, 0, 160),
        (0, 240, 240),
    ]
    inner, outer, _ = split_batch(problem, 3)
    assert (inner.batch, outer) == ((2, 3, 5), ())
    assert inner_problem(problem, 1) == split_batch(problem, 1)[0]


def test_the_longest_dimensions_go_into_the_launch():
    inner, outer, strides = split_batch(gemm_over((1000, 2, 2), (0, 16, 0), (16, 0, 7)), 1)
    assert (inner.batch, outer) == ((1000,), (2, 2))
    assert (inner.a.batch_strides, inner.b.batch_strides) == ((0,), (16,))
    assert (strides["a"], strides["b"]) == ((16, 0), (0, 7))


def test_counts():
    problem = gemm_over((2,), (16,), (0,))
    assert problem.flop == 2 * 2 * 64
    assert problem.bytes_min == (2 + 1 + 2) * 16 * 4
    assert compact_strides((2, 3, 0, 5)) == (15, 5, 5, 1)


def test_layout_names():
    row, col = contiguous(INT8, 3, 5), contiguous(INT8, 5, 3).transposed()
    assert [layout_name(a, b) for a in (row, col) for b in (row, col)] == ["nn", "nt", "tn", "tt"]
