"""Products streamed through a device made of threads: the engine of the GPU, with delays that shuffle everything."""

from __future__ import annotations

import dataclasses
import threading
import time
import types

import ml_dtypes
import numpy as np
import pytest

from gemmule.host.streams import HostStreams
from gemmule.outofcore.device.engine import streaming
from gemmule.outofcore.device.engine.output_writer import Drain
from gemmule.outofcore.device.engine.staging import chunks
from gemmule.outofcore.device.engine.stream_workers import Lane
from gemmule.outofcore.device.engine.streaming import Tracking, stream_product
from gemmule.outofcore.device.planner.operation import C_OUT, COMPUTE, STREAMS
from gemmule.outofcore.stores.arrays import ArraySink, ArraySource
from support.oracle import assert_product
from support.outofcore.stream_plans import SMALL, STRATEGIES, matrix, planned, shuffled


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("shape", [(97, 101, 103), (160, 90, 300), (1, 300, 70), (64, 64, 1), (1, 1, 1)])
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("whole", [(1, 1, 1), (32, 16, 24)])
def test_products(strategy, shape, direct, whole):
    m, n, k = shape
    chosen = planned(shape, "f4", strategy, c="f4")
    a, b, c = matrix((m, k), "f4", 0), matrix((k, n), "f4", 1), matrix((m, n), "f4", 2)
    out = np.full((m, n), np.nan, "f4")
    sources = {"a": ArraySource(a), "b": ArraySource(b), "c": ArraySource(c)}
    with HostStreams(shuffled(), pinned_arrays=direct, whole=whole) as device:
        streamed = stream_product(chosen.plan, sources, ArraySink(out), device, alpha=3, beta=-2, settings=SMALL)
        # What was predicted is what crossed the links.
        moved = {"copy_in": chosen.prediction.bytes_in, "copy_out": chosen.prediction.bytes_out}
        assert device.moved == moved
        # Plans with few tiles leave some of their buffers unused.
        assert 0 < device.allocated <= chosen.plan.device_bytes
    np.testing.assert_array_equal(out, 3 * (a @ b) - 2 * c)
    assert (streamed.bytes_in, streamed.bytes_out) == tuple(moved.values())
    assert streamed.bytes_written == out.nbytes
    assert streamed.tiles == chosen.plan.tiles
    assert streamed.staged == (() if direct else ("a", "b", "c", "out"))
    assert streamed.bytes_read == (0 if direct else streamed.bytes_in)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 0, 3), (5, 3, 0), (0, 0, 0)])
def test_nothing_to_multiply(strategy, shape):
    m, n, k = shape
    chosen = planned(shape, "f8", strategy, c="f8")
    c, out = matrix((m, n), "f8", 2), np.full((m, n), np.nan)
    sources = {"a": ArraySource(np.ones((m, k))), "b": ArraySource(np.ones((k, n))), "c": ArraySource(c)}
    with HostStreams() as device:
        stream_product(chosen.plan, sources, ArraySink(out), device, alpha=3, beta=2)
    np.testing.assert_array_equal(out, 2 * c)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("dtype", "out", "total", "c"),
    [
        ("bfloat16", "bfloat16", "f4", "f4"),
        ("i1", "i4", "i4", "i4"),
        ("f8", "f8", "f8", "f4"),
        ("f2", "f2", "f4", "f2"),
    ],
)
def test_sums_of_another_type(strategy, dtype, out, total, c):
    dtype, out = (np.dtype(getattr(ml_dtypes, name, name)) for name in (dtype, out))
    shape = (150, 130, 400)
    chosen = planned(shape, dtype, strategy, out=out, total=total, c=c)
    m, n, k = shape
    rng = np.random.default_rng()
    a, b = (
        rng.standard_normal(size).astype(dtype) if dtype.kind != "i" else rng.integers(-128, 128, size).astype(dtype)
        for size in ((m, k), (k, n))
    )
    added = matrix((m, n), c, 3)
    result = np.full((m, n), -77).astype(out)
    sources = {"a": ArraySource(a), "b": ArraySource(b), "c": ArraySource(added)}
    with HostStreams(shuffled(), whole=(16, 16, 96)) as device:
        stream_product(chosen.plan, sources, ArraySink(result), device, alpha=2, beta=3, settings=SMALL)
    assert_product(result, a, b, added, 2, 3)
    assert len(list(chosen.plan.steps())) > 2


@pytest.mark.parametrize("orders", ["CF", "FC", "FF"])
@pytest.mark.parametrize("direct", [True, False])
def test_orders(orders, direct):
    chosen = planned((90, 110, 260), "f8", "c-stationary", orders=orders)
    a, b = matrix((90, 260), "f8", 0, orders[0]), matrix((260, 110), "f8", 1, orders[1])
    out = np.full((90, 110), np.nan)
    with HostStreams(shuffled(), pinned_arrays=direct, whole=(16, 16, 64)) as device:
        sources = {"a": ArraySource(a), "b": ArraySource(b)}
        stream_product(chosen.plan, sources, ArraySink(out), device, settings=SMALL)
    np.testing.assert_array_equal(out, a @ b)


@pytest.mark.parametrize("strategy", ["c-stationary", "resident-c"])
@pytest.mark.parametrize(("order", "direct"), [("C", True), ("F", True), ("C", False)])
def test_a_matrix_times_its_transpose(strategy, order, direct):
    chosen = planned((140, 140, 700), "f8", strategy, orders=order + "CF"["FC".index(order)], symmetric=True)
    a = matrix((140, 700), "f8", 0, order)
    out = np.full((140, 140), np.nan)
    with HostStreams(shuffled(), pinned_arrays=direct, whole=(16, 16, 8)) as device:
        sources = {"a": ArraySource(a), "b": ArraySource(a.T)}
        streamed = stream_product(chosen.plan, sources, ArraySink(out), device, settings=SMALL)
        assert device.moved["copy_in"] == chosen.prediction.bytes_in
        assert device.moved["copy_out"] == chosen.prediction.bytes_out == out.nbytes
        if strategy == "resident-c":
            assert device.moved["copy_in"] == a.nbytes
    np.testing.assert_array_equal(out, a @ a.T)
    assert streamed.flop < 2 * 140 * 140 * 700
    assert streamed.bytes_written == out.nbytes
    assert chosen.plan.tiles >= 3


def test_strided_and_swapped_arrays_are_staged():
    chosen = planned((60, 70, 80), "f4", "c-stationary")
    a, b = matrix((60, 160), "f4", 0)[:, ::2], matrix((80, 70), ">f4", 1)
    out = np.full((60, 140), np.nan, "f4")[:, ::2]
    with HostStreams() as device:
        streamed = stream_product(
            chosen.plan, {"a": ArraySource(a), "b": ArraySource(b)}, ArraySink(out), device, settings=SMALL
        )
    assert streamed.staged == ("a", "b", "out")
    np.testing.assert_array_equal(out, a @ b.astype("f4"))


def test_the_same_bits_whatever_the_delays():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((200, 700)), rng.standard_normal((700, 100))
    chosen = planned((200, 100, 700), "f8", "c-stationary")
    results = []
    for seed in range(3):
        out = np.full((200, 100), np.nan)
        with HostStreams(shuffled(seed), pinned_arrays=seed == 0) as device:
            stream_product(
                chosen.plan, {"a": ArraySource(a), "b": ArraySource(b)}, ArraySink(out), device, settings=SMALL
            )
        results.append(out)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("direct", [True, False])
def test_progress_tiles_and_activity(direct):
    chosen = planned((150, 130, 400), "f4", "c-stationary", c="f4")
    a, b, c = np.ones((150, 400), "f4"), np.ones((400, 130), "f4"), np.ones((150, 130), "f4")
    out = np.full((150, 130), np.nan, "f4")
    seen, stored = [], []
    with HostStreams(shuffled(), pinned_arrays=direct) as device:
        streamed = stream_product(
            chosen.plan, {"a": ArraySource(a), "b": ArraySource(b), "c": ArraySource(c)}, ArraySink(out), device,
            beta=1, settings=SMALL, tracking=Tracking(progress=seen.append, stored=lambda i, j: stored.append((i, j))),
        )  # fmt: skip
    done = [now.flop_done for now in seen]
    assert done == sorted(done)
    assert done[-1] == seen[-1].flop == 2 * 150 * 130 * 400 == streamed.flop
    assert seen[-1].tiles == chosen.plan.tiles
    assert sorted(stored) == sorted(chosen.plan.order())
    assert {one.stream for one in streamed.activity} == set(STREAMS)
    assert min(one.start_ns for one in streamed.activity) == 0
    assert all(one.end_ns >= one.start_ns for one in streamed.activity)
    sizes = {name: sum(one.size for one in streamed.activity if one.stream == name) for name in STREAMS}
    assert sizes[COMPUTE] == streamed.flop
    assert sizes[C_OUT] == out.nbytes
    assert 0 <= streamed.exposed_share < 1


def test_a_tile_is_told_of_when_its_copy_has_arrived():
    """Whether it arrives before or after its end is known: once."""
    arrived, told = threading.Event(), []

    class Streams:
        def record(self, stream):
            return None

        def copy_out(self, stream, array, source):
            pass

        def synchronize(self, event):
            arrived.wait(10)

    event_table, out = types.SimpleNamespace(failed=False, fail=pytest.fail), np.zeros((2, 4))
    drain = Drain(None, out, Streams(), event_table, buffers=None, threads=1, stored=lambda *at: told.append(at))
    tiles = [(0, 0), (0, 1)]
    for tile in tiles:
        op = types.SimpleNamespace(tile=tile, rows=(0, 2), cols=(2 * tile[1], 2 * tile[1] + 2), final=True, nbytes=32)
        drain.store(None, op, None)
        assert told == []
    arrived.set()
    drain.finish()
    assert sorted(told) == tiles
    assert drain.tiles == 2


def test_tiles_that_are_there_are_kept():
    chosen = planned((150, 130, 400), "f4", "c-stationary")
    a, b = matrix((150, 400), "f4", 0), matrix((400, 130), "f4", 1)
    out = np.full((150, 130), 7, "f4")
    there = set(list(chosen.plan.order())[::2])
    with HostStreams() as device:
        streamed = stream_product(
            chosen.plan, {"a": ArraySource(a), "b": ArraySource(b)}, ArraySink(out), device, tracking=Tracking(there)
        )
    expected = a @ b
    for i, j in there:
        expected[chosen.plan.rows(i), chosen.plan.cols(j)] = 7
    np.testing.assert_array_equal(out, expected)
    assert streamed.tiles == chosen.plan.tiles - len(there) > 0


def test_copies_hide_behind_products():
    """With copies and products that take equally long, something runs in little more than half of their sum."""
    chosen = planned((400, 400, 400), "f4", "c-stationary", memory=300)
    a, b, out = matrix((400, 400), "f4", 0), matrix((400, 400), "f4", 1), np.empty((400, 400), "f4")
    rates = {"copy_in": 3e6, "copy_out": 3e7, "multiply": 3e8, "convert": 1e9}
    with HostStreams(lambda kind, amount: amount / rates[kind]) as device:
        streamed = stream_product(chosen.plan, {"a": ArraySource(a), "b": ArraySource(b)}, ArraySink(out), device)
    # Not the time from the first to the last: what else the computer does in between is no fault.
    apart = sum(one.duration_ns for one in streamed.activity)
    assert streaming._covered(list(streamed.activity)) < 0.8 * apart


@pytest.mark.parametrize("stage", ["read", "write", "copy_in", "multiply", "progress", "stored"])
@pytest.mark.parametrize("direct", [True, False])
def test_failures_come_out(stage, direct):
    def broken(*args, **kwargs):
        raise OSError("broken")

    if direct and stage in ("read", "write"):
        pytest.skip("copies take the arrays themselves")
    chosen = planned((150, 130, 400), "f4", "c-stationary")
    sources = {"a": ArraySource(np.ones((150, 400), "f4")), "b": ArraySource(np.ones((400, 130), "f4"))}
    sink = ArraySink(np.empty((150, 130), "f4"))
    hooks = {stage: broken} if stage in ("progress", "stored") else {}

    def delay(kind, amount):
        return broken() if kind == stage else 0

    if stage == "read":
        sources["b"].read = broken
    if stage == "write":
        sink.write = broken
    before = threading.active_count()
    with HostStreams(delay, pinned_arrays=direct) as device:
        with pytest.raises(OSError, match="broken"):
            stream_product(chosen.plan, sources, sink, device, settings=SMALL, tracking=Tracking(**hooks))
    assert threading.active_count() == before


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("limit", [8, 100, 4096, 10**6])
def test_chunks_cover_a_piece_in_order(order, limit):
    rows, cols = (3, 40), (10, 75)
    seen = np.zeros((50, 80), int)
    for row_part, col_part in chunks(rows, cols, 8, order, limit):
        height, width = row_part[1] - row_part[0], col_part[1] - col_part[0]
        assert 0 < height * width * 8 <= limit
        seen[slice(*row_part), slice(*col_part)] += 1
    assert (seen[slice(*rows), slice(*cols)] == 1).all()
    assert seen.sum() == 37 * 65


@pytest.mark.parametrize("where", [Lane, Drain])
def test_an_interruption_at_the_end_leaves_no_thread_that_writes(monkeypatch, where):
    class Slow(ArraySink):
        def write(self, row, col, tile):
            time.sleep(0.02)
            return super().write(row, col, tile)

    finish, calls = where.finish, []

    def interrupted(self):
        calls.append(self)
        if len(calls) == 1:
            raise KeyboardInterrupt
        finish(self)

    monkeypatch.setattr(where, "finish", interrupted)
    chosen = planned((160, 90, 300), "f4", "panels")
    sources = {"a": ArraySource(matrix((160, 300), "f4", 0)), "b": ArraySource(matrix((300, 90), "f4", 1))}
    before = set(threading.enumerate())
    with HostStreams(pinned_arrays=False) as device:
        with pytest.raises(KeyboardInterrupt):
            stream_product(
                chosen.plan,
                sources,
                Slow(np.zeros((160, 90), "f4")),
                device,
                settings=SMALL,
                tracking=Tracking(progress=lambda _: None),
            )
        left = [one.name for one in set(threading.enumerate()) - before]
    # The device has threads of its own.
    assert not [name for name in left if name.startswith("gemmule-") and not name.startswith("gemmule-stream")]


class Prepared(HostStreams):
    """A device that notes what was made ready, and what was computed without."""

    def __init__(self):
        super().__init__()
        self.ready, self.surprised = set(), []

    def prepare(self, stream, product):
        self.ready.add((product.d.rows, product.d.cols, product.a.cols, product.beta))

    def prepare_convert(self, stream, target, source):
        self.ready.add((target.rows, target.cols))

    def prepare_transpose(self, stream, target, source):
        self.ready.add(("transpose", target.rows, target.cols))

    def transpose(self, stream, target, source):
        if ("transpose", target.rows, target.cols) not in self.ready:
            self.surprised.append(target)
        super().transpose(stream, target, source)

    def multiply(self, stream, product):
        if (product.d.rows, product.d.cols, product.a.cols, product.beta) not in self.ready:
            self.surprised.append(product.d)
        super().multiply(stream, product)

    def convert(self, stream, target, source):
        if (target.rows, target.cols) not in self.ready:
            self.surprised.append(target)
        super().convert(stream, target, source)


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("strategy", ["c-stationary", "panels"])
def test_every_kernel_is_made_ready(strategy, dtype):
    plan = planned((197, 161, 103), dtype, strategy, total="f4").plan
    if strategy == "c-stationary":
        plan = dataclasses.replace(plan, tile_m=64, tile_n=80, tile_k=32)
        assert plan.converts_results == (dtype == "f2")
    a, b, out = matrix((197, 103), dtype, 0), matrix((103, 161), dtype, 1), np.full((197, 161), np.nan, dtype)
    with Prepared() as device:
        stream_product(plan, {"a": ArraySource(a), "b": ArraySource(b)}, ArraySink(out), device, settings=SMALL)
        assert device.ready
        assert device.surprised == []


@pytest.mark.parametrize("strategy", ["c-stationary", "resident-c"])
def test_every_transpose_is_made_ready(strategy):
    plan = planned((157, 157, 103), "f4", strategy, orders="CF", symmetric=True).plan
    plan = dataclasses.replace(plan, tile_m=48, tile_n=48, c_tiles=10 if strategy == "resident-c" else 2)
    a, out = matrix((157, 103), "f4", 0), np.full((157, 157), np.nan, "f4")
    with Prepared() as device:
        stream_product(plan, {"a": ArraySource(a), "b": ArraySource(a.T)}, ArraySink(out), device, settings=SMALL)
        assert {kind for kind in device.ready if kind[0] == "transpose"} == {("transpose", 48, n) for n in (48, 13)}
        assert device.surprised == []
    np.testing.assert_array_equal(out, a @ a.T)
