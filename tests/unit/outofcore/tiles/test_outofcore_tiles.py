"""Streamed products against products in memory."""

from __future__ import annotations

import itertools
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from gemmule.core.errors import ArgumentError, DTypeError, ShapeError
from gemmule.host.tiles import HostTileExecutor
from gemmule.outofcore.stores.arrays import ArraySink, ArraySource
from gemmule.outofcore.stores.formats.npy_sink import NpySink
from gemmule.outofcore.stores.formats.npy_source import NpySource
from gemmule.outofcore.stores.matrix import TransposedSource
from gemmule.outofcore.tiles.result_rules import output_dtype, result_dtype
from support.outofcore.tile_products import multiply, plan_tiles


class PlainSum:
    """A sum in float64: exact for small integers."""

    def __init__(self, m, n):
        self.total = np.zeros((m, n))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.total = None

    def add(self, a, b):
        self.total += a.astype(np.float64) @ b.astype(np.float64)

    def finish(self, out, alpha=1, beta=0, c=None):
        out[...] = alpha * self.total + (beta * c if beta else 0)


class PlainExecutor:
    name = "plain"

    def describe(self):
        return "plain NumPy"

    def tile_bytes(self, a_dtype, b_dtype, out_dtype, m, n, k):
        return 8 * m * n

    def tile_sum(self, m, n, a_dtype, b_dtype, out_dtype, into=None):
        return PlainSum(m, n)


def small_integers(shape, dtype, seed=0):
    return np.random.default_rng(seed).integers(0, 3, shape).astype(dtype)


@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1), (0, 5, 3), (5, 0, 3), (5, 3, 0), (0, 0, 0), (97, 101, 103), (64, 300, 1), (1, 500, 70), (300, 1, 70)],
)
@pytest.mark.parametrize("memory", [12_000, 40_000, 10_000_000])
def test_shapes(shape, memory):
    m, n, k = shape
    a, b = small_integers((m, k), "f4"), small_integers((k, n), "f4", 1)
    out = np.full((m, n), np.nan, "f4")
    report = multiply(ArraySource(a), ArraySource(b), ArraySink(out), PlainExecutor(), memory=memory)
    np.testing.assert_array_equal(out, a @ b)
    assert report.memory_bytes <= memory
    assert (report.m, report.n, report.k) == shape
    assert report.bytes_written == out.nbytes


DTYPES = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
    "uint8",
    "int32",
    "int64",
    "complex64",
]


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize(
    ("transpose_a", "transpose_b", "order"), list(itertools.product([False, True], [False, True], "CF"))
)
def test_dtypes_from_files(tmp_path: Path, name, transpose_a, transpose_b, order):
    dtype = output_dtype(name)
    a, b = small_integers((37, 29), dtype), small_integers((29, 41), dtype, 1)
    np.save(tmp_path / "a.npy", np.asarray(a.T if transpose_a else a, order=order))
    np.save(tmp_path / "b.npy", np.asarray(b.T if transpose_b else b, order=order))
    out_dtype = result_dtype(dtype, dtype)
    with (
        NpySource(tmp_path / "a.npy", name if dtype.kind == "V" else None) as left,
        NpySource(tmp_path / "b.npy", name if dtype.kind == "V" else None) as right,
        NpySink(tmp_path / "c.npy", (37, 41), out_dtype) as sink,
    ):
        multiply(
            TransposedSource(left) if transpose_a else left,
            TransposedSource(right) if transpose_b else right,
            sink,
            HostTileExecutor(),
            memory=12 << 20,
        )
        sink.commit()
    wide = np.complex128 if dtype.kind == "c" else np.float64
    expected = (a.astype(wide) @ b.astype(wide)).astype(out_dtype)
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy").view(out_dtype), expected)


def test_alpha_beta_and_c():
    a, b, c = small_integers((50, 60), "f4"), small_integers((60, 70), "f4", 1), small_integers((50, 70), "f8", 2)
    out = np.empty((50, 70), "f8")
    report = multiply(
        ArraySource(a),
        ArraySource(b),
        ArraySink(out),
        PlainExecutor(),
        memory=20_000,
        alpha=2,
        beta=-3,
        c=ArraySource(c),
    )
    np.testing.assert_array_equal(out, 2.0 * (a @ b) - 3 * c)
    assert report.tiles > 1


def test_alpha_zero_reads_no_factor_and_beta_zero_no_c():
    a, b = np.full((5, 6), np.nan), np.full((6, 7), np.nan)
    c, out = np.ones((5, 7)), np.empty((5, 7))
    arguments = ArraySource(a), ArraySource(b), ArraySink(out), PlainExecutor()
    report = multiply(*arguments, memory=20_000, alpha=0, beta=2, c=ArraySource(c))
    assert (out == 2).all()
    assert report.bytes_read == c.nbytes
    report = multiply(*arguments, memory=20_000, alpha=0, c=ArraySource(np.full((5, 7), np.nan)))
    assert (out == 0).all()
    assert report.bytes_read == 0


def test_progress_ends_at_the_total():
    a, b, out = np.ones((50, 60)), np.ones((60, 70)), np.empty((50, 70))
    seen = []
    multiply(
        ArraySource(a), ArraySource(b), ArraySink(out), PlainExecutor(), memory=20_000,
        progress=lambda *now: seen.append(now),
    )  # fmt: skip
    assert seen == sorted(seen)
    assert seen[-1] == (50 * 60 * 70, 50 * 60 * 70)


def test_the_same_bits_again():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((200, 300), "f4"), rng.standard_normal((300, 100), "f4")
    first, second = np.empty((200, 100), "f4"), np.empty((200, 100), "f4")
    for out in (first, second):
        multiply(ArraySource(a), ArraySource(b), ArraySink(out), HostTileExecutor(), memory=11 << 20)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("stage", ["read", "write", "add"])
def test_failures_come_out(stage):
    def broken(*args, **kwargs):
        raise OSError("broken")

    a, b, out = ArraySource(np.ones((90, 60))), ArraySource(np.ones((60, 70))), ArraySink(np.empty((90, 70)))
    executor = PlainExecutor()
    if stage == "read":
        b.read = broken
    elif stage == "write":
        out.write = broken
    else:
        executor.tile_sum = broken
    with pytest.raises(OSError, match="broken"):
        multiply(a, b, out, executor, memory=20_000)


def test_what_does_not_fit_together_is_refused():
    a, b, executor = ArraySource(np.ones((4, 5))), ArraySource(np.ones((5, 6))), PlainExecutor()
    out = ArraySink(np.empty((4, 6)))
    with pytest.raises(ShapeError, match=r"4 x 5 and .* 4 x 5"):
        multiply(a, a, out, executor, memory=10**6)
    with pytest.raises(ShapeError, match="output is 4 x 5"):
        multiply(a, b, ArraySink(np.empty((4, 5))), executor, memory=10**6)
    with pytest.raises(ArgumentError, match=r"give c=\.\.\., or leave it out"):
        multiply(a, b, out, executor, memory=10**6, beta=1)
    with pytest.raises(ShapeError, match="shape of the product"):
        multiply(a, b, out, executor, memory=10**6, beta=1, c=a)
    with pytest.raises(DTypeError, match="out_dtype"):
        multiply(a, b, ArraySink(np.empty((4, 6), "i4")), executor, memory=10**6)
    integers = [ArraySource(np.ones(shape, "i4")) for shape in ((4, 5), (5, 6))]
    with pytest.raises(ArgumentError, match=r"alpha=0.5 is not an integer"):
        multiply(*integers, ArraySink(np.empty((4, 6), "i4")), executor, memory=10**6, alpha=0.5)
    for alpha in (float("inf"), float("nan")):
        with pytest.raises(ArgumentError, match="is not an integer"):
            multiply(*integers, ArraySink(np.empty((4, 6), "i4")), executor, memory=10**6, alpha=alpha)


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        ("int8", "int8", "int32"),
        ("uint8", "int8", "int16"),
        ("float16", "float32", "float32"),
        ("int32", "float32", "float64"),
    ],
)
def test_result_types(a, b, out):
    assert result_dtype(np.dtype(a), np.dtype(b)) == np.dtype(out)


def test_types_without_a_common_one_need_out_dtype():
    e4m3 = np.dtype(ml_dtypes.float8_e4m3fn)
    with pytest.raises(DTypeError, match="out_dtype"):
        result_dtype(e4m3, np.dtype("f2"))
    assert result_dtype(e4m3, np.dtype("f2"), np.dtype("f4")) == np.dtype("f4")
    with pytest.raises(DTypeError, match="float17"):
        output_dtype("float17")


def test_finished_tiles_are_neither_read_nor_computed_nor_written():
    a, b, out = small_integers((90, 40), "f4"), small_integers((40, 100), "f4", 1), np.full((90, 100), -1, "f4")
    sources = ArraySource(a), ArraySource(b)
    plan = plan_tiles(*sources, (90, 100), out.dtype, PlainExecutor(), memory=20_000)
    first, *rest = plan.order()
    assert rest
    done = {(plan.rows(i).start, plan.cols(j).start) for i, j in plan.order()} - {
        (plan.rows(first[0]).start, plan.cols(first[1]).start)
    }
    seen = []
    report = multiply(
        *sources, ArraySink(out), PlainExecutor(), memory=20_000, plan=plan, progress=lambda *step: seen.append(step),
        finished=lambda rows, cols: (rows.start, cols.start) in done,
    )  # fmt: skip
    rows, cols = plan.rows(first[0]), plan.cols(first[1])
    np.testing.assert_array_equal(out[rows, cols], (a @ b)[rows, cols])
    assert (out == -1).sum() == out.size - out[rows, cols].size
    assert (report.tiles, report.tiles_computed) == (plan.tiles, 1)
    assert report.bytes_written == out[rows, cols].nbytes
    assert report.bytes_read == a[rows].nbytes + b[:, cols].nbytes
    assert seen[-1] == (out[rows, cols].size * 40,) * 2
