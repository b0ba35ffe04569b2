"""Tiles on the diagonal of a matrix times its own transpose, computed in strips on several streams."""

from __future__ import annotations

import dataclasses
import itertools
import random
import threading
import time

import ml_dtypes
import numpy as np
import pytest

from gemmule.core.dtype import numpy_dtype
from gemmule.host.streams import HostStreams
from gemmule.outofcore.device.engine.streaming import Settings, stream_product
from gemmule.outofcore.device.planner.choice import choose_plan
from gemmule.outofcore.device.planner.operation import (
    LANES,
    LAST,
    MIRRORING,
    Convert,
    Load,
    Mirror,
    Multiply,
    Reflect,
    Store,
)
from gemmule.outofcore.device.planner.plan import DevicePlan
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.device.planner.schedule import operations
from gemmule.outofcore.stores.arrays import ArraySink, ArraySource
from gemmule.outofcore.tiles.plan import Operand, Product
from support.outofcore.simulated_runs import simulate

SMALL = Settings(pinned=48 << 10, threads=3)
F4, F2 = np.dtype("f4"), np.dtype(ml_dtypes.bfloat16)


def planned(n, k, dtype, strategy, tile, cut, lanes, *, order="C", depth=100, strips=1, sums=None, stairs=0):
    dtype = numpy_dtype(dtype)
    product = Product(n, n, k, Operand(dtype, order), Operand(dtype, "CF"["FC".index(order)]), Operand(dtype))
    tiles = -(-n // tile)
    held = tiles * (tiles + 1) // 2 if strategy == "resident-c" else min(2, tiles)
    slots = (2 * tiles if strategy == "resident-c" else 4, 0)
    return DevicePlan(
        product, sums or dtype.name, strategy, tile, tile, depth, held, slots, symmetric=True, strips=strips, cut=cut,
        lanes=lanes, stairs=stairs,
    )  # fmt: skip


def whole_numbers(shape, dtype, seed, order="C"):
    return np.asarray(np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype), order=order)


def delays(seed):
    rng, lock = random.Random(seed), threading.Lock()

    def delay(kind, amount):
        with lock:
            return rng.choice((0, 0, 5e-5, 5e-4))

    return delay


@pytest.mark.parametrize(("lanes", "stairs"), [(1, 0), (2, 0), (4, 0), (1, 8), (2, 16), (3, 5)])
@pytest.mark.parametrize("strategy", ["c-stationary", "resident-c"])
@pytest.mark.parametrize(
    ("n", "tile", "cut", "dtype", "order", "direct"),
    [
        (157, 157, 20, "float32", "C", True),
        (157, 64, 16, "float64", "F", True),
        (157, 64, 48, "bfloat16", "C", True),
        (157, 80, 200, "float32", "C", False),
        (96, 96, 7, "bfloat16", "F", False),
        (150, 48, 16, "float32", "F", False),
    ],
)
def test_products(lanes, stairs, strategy, n, tile, cut, dtype, order, direct):
    k = 333
    sums = "float32" if dtype != "float64" else None
    plan = planned(n, k, dtype, strategy, tile, cut, lanes, order=order, sums=sums, stairs=stairs)
    assert plan.converts_results == (dtype == "bfloat16")
    a = whole_numbers((n, k), plan.product.a.dtype, lanes, order)
    out = np.full((n, n), np.nan, a.dtype)
    prediction = simulate(plan, Rates(1e9, 1e9, 1e8, 1e8))[0]
    with HostStreams(delays(n), pinned_arrays=direct, whole=(16, 16, 8)) as device:
        sources = {"a": ArraySource(a), "b": ArraySource(a.T)}
        streamed = stream_product(plan, sources, ArraySink(out), device, alpha=2, settings=SMALL)
        assert device.moved == {"copy_in": prediction.bytes_in, "copy_out": prediction.bytes_out}
    wide = a.astype("f8")
    np.testing.assert_array_equal(out, (2 * (wide @ wide.T)).astype(out.dtype))
    assert prediction.bytes_out == streamed.bytes_written == out.nbytes
    assert strategy != "resident-c" or prediction.bytes_in == a.nbytes
    assert streamed.tiles == plan.tiles
    computed = sum(plan.area(tile) for tile in plan.order())
    assert streamed.flop == prediction.flop == 2 * k * computed == 2 * k * plan.computed[0]
    computing = {one.stream for one in streamed.activity if one.stream.endswith("compute")}
    assert computing <= {*LANES[:lanes], MIRRORING, *(LAST if stairs else ())}


@pytest.mark.parametrize("stairs", [0, 16])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_strips_cover_the_triangle_once(dtype, stairs):
    plan = planned(700, 500, dtype, "resident-c", 300, 64, 3, depth=128, sums="float32", stairs=stairs)
    done, stored, converted = (np.zeros((700, 700), int) for _ in range(3))
    for op in operations(plan):
        if isinstance(op, Multiply):
            area = done[slice(*op.rows), slice(*op.cols)]
            needed = area.shape[1] if op.needed is None else np.array([op.needed.columns(r) for r in range(len(area))])
            area += (op.inner[1] - op.inner[0]) * (np.arange(area.shape[1]) < np.reshape(needed, (-1, 1)))
        elif isinstance(op, Convert):
            converted[slice(*op.rows), slice(*op.cols)] += 1
        elif isinstance(op, Reflect):
            assert (done[slice(*op.rows), slice(*op.cols)] == 500).all()
            assert not done[slice(*op.cols), slice(*op.rows)].any()
            done[slice(*op.cols), slice(*op.rows)] = done[slice(*op.rows), slice(*op.cols)].T
        elif isinstance(op, Mirror):
            done[slice(*op.cols), slice(*op.rows)] += done[slice(*op.rows), slice(*op.cols)].T
        elif isinstance(op, Store):
            assert (done[slice(*op.rows), slice(*op.cols)] == 500).all()
            stored[slice(*op.rows), slice(*op.cols)] += 1
    assert (stored == 1).all()
    assert (done == 500).all()
    assert (converted[done > 0].sum() >= plan.computed[0]) == (dtype == "bfloat16")
    assert plan.computed[0] < (0.52 if stairs else 0.62) * 700 * 700
    if not stairs:
        assert converted.sum() == (plan.computed[0] if dtype == "bfloat16" else 0)
        assert plan.computed[1] == sum(isinstance(op, Multiply) for op in operations(plan)) / plan.grid[2]


@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize("stairs", [0, 8])
@pytest.mark.parametrize("strategy", ["c-stationary", "resident-c"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nothing_is_overwritten_before_it_was_used(lanes, stairs, strategy, dtype):
    """Whatever two operations touch, one of them writing, happens one after the other: by streams and events alone."""
    plan = planned(400, 300, dtype, strategy, 110, 32, lanes, depth=64, strips=1, sums="float32", stairs=stairs)
    ops = list(operations(plan))
    before: list[int] = []
    last: dict[str, int] = {}
    for op in ops:
        # What an operation comes after, as bits.
        came = [*op.after, *([last[op.stream]] if op.stream in last else [])]
        bits = 0
        for number in came:
            bits |= before[number] | 1 << number
        before.append(bits)
        last[op.stream] = op.number
    touched = [list(_touched(plan, op)) for op in ops]
    for later, earlier in ((one, other) for one in ops for other in ops[: one.number]):
        if before[later.number] >> earlier.number & 1:
            continue
        for (place, rows, cols, writes), (other, others, more, wrote) in itertools.product(
            touched[later.number], touched[earlier.number]
        ):
            apart = rows[0] >= others[1] or others[0] >= rows[1] or cols[0] >= more[1] or more[0] >= cols[1]
            assert place != other or apart or not (writes or wrote), (earlier, later)


def _touched(plan, op):
    """Yield the parts of buffers that an operation reads or writes, in rows and columns of the result."""
    whole = (0, 1), (0, 1)
    sums, results = "sum", "out" if plan.converts_results else "sum"
    if isinstance(op, Load):
        yield (op.operand, op.slot), *whole, True
    elif isinstance(op, Multiply):
        yield ("a", op.a.slot), *whole, False
        yield ("a", op.b.slot), *whole, False
        yield (sums, op.target), *_within(plan, op, op.rows, op.cols), True
    elif isinstance(op, Convert):
        yield (sums, op.source), *_within(plan, op, op.rows, op.cols), False
        yield (results, op.target), *_within(plan, op, op.rows, op.cols), True
    elif isinstance(op, Reflect):
        yield (results, op.buffer), *_within(plan, op, op.rows, op.cols), False
        yield (results, op.buffer), *_within(plan, op, op.cols, op.rows), True
    elif isinstance(op, Mirror):
        yield (results, op.source), *_within(plan, op, op.rows, op.cols), False
        yield ("mirror", op.target), *whole, True
    elif op.mirrored:
        yield ("mirror", op.source), *whole, False
    else:
        yield (results, op.source), *_within(plan, op, op.rows, op.cols), False


def _within(plan, op, rows, cols):
    top, left = plan.rows(op.tile[0]).start, plan.cols(op.tile[1]).start
    return (rows[0] - top, rows[1] - top), (cols[0] - left, cols[1] - left)


@pytest.mark.parametrize("strategy", ["c-stationary", "resident-c"])
def test_a_large_one_is_planned_in_strips(strategy):
    wide = Product(20480, 20480, 20480, Operand(F4, "F"), Operand(F4), Operand(F4))
    rates = Rates(52e12, 51e12, 51e9, 49e9, half=16, side=16384, depth=4096, waves=(128, 256, 132))
    chosen = choose_plan(wide, F4, 8 << 30, rates, symmetric=True, strategy=strategy)
    plan = chosen.plan
    assert plan.cut
    assert plan.lanes > 1
    assert chosen.prediction.flop < 1.1 * 20480**3
    assert list(plan.order())[-1] == (plan.grid[0] - 1,) * 2
    assert strategy == "c-stationary" or chosen.prediction.bytes_in == 20480 * 20480 * 4
    slower = simulate(planned(20480, 20480, "float32", "resident-c", 4096, 0, 1, order="F", depth=8192), rates)[0]
    assert chosen.prediction.seconds < 0.9 * slower.seconds


def test_streams_that_compute_share_the_processor():
    plan = planned(4096, 4096, "float32", "resident-c", 4096, 1024, 2, depth=1024)
    prediction, ran = simulate(plan, Rates(50e12, 50e12, 1e12, 1e12))
    spans = sorted((one.start, one.end) for one in ran if one.op.stream in (*LANES, MIRRORING))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert {one.op.stream for one in ran if isinstance(one.op, Multiply)} == set(LANES[:2])
    assert prediction.compute_s == pytest.approx(sum(end - start for start, end in spans))


def test_what_runs_at_once_counts_once():
    """Nothing computed is what no stream computed in."""
    plan = planned(128, 64, "float32", "resident-c", 128, 32, 4, depth=64)
    a, out = whole_numbers((128, 64), "f4", 0), np.empty((128, 128), "f4")
    with HostStreams(lambda kind, _: 0.02 * (kind == "multiply")) as device:
        began = time.perf_counter()
        streamed = stream_product(plan, {"a": ArraySource(a), "b": ArraySource(a.T)}, ArraySink(out), device)
        assert 0.02 <= streamed.compute_s <= streamed.device_seconds <= time.perf_counter() - began
    assert (
        sum(one.duration_ns for one in streamed.activity if one.stream in (*LANES, MIRRORING)) / 1e9
        > streamed.compute_s
    )


def test_nothing_begins_before_it_is_queued():
    plan = planned(4096, 4096, "float32", "resident-c", 4096, 512, 4, depth=1024)
    fast = Rates(1e16, 1e16, 1e15, 1e15, launch=0)
    slow = Rates(1e16, 1e16, 1e15, 1e15, launch=0, issue=1e-3)
    count = len(list(operations(plan)))
    assert simulate(plan, fast)[0].seconds < 0.1 * count * 1e-3
    assert simulate(plan, slow)[0].seconds == pytest.approx((count - 1) * 1e-3, rel=0.01)


def test_strips_take_the_kernel_of_the_whole_tile():
    class Noting(HostStreams):
        def __init__(self):
            super().__init__(whole=(16, 16, 8))
            self.likes = set()

        def multiply(self, stream, product):
            self.likes.add((product.d.rows, product.like))
            super().multiply(stream, product)

    plan = planned(160, 64, "float32", "c-stationary", 80, 16, 2)
    a, out = whole_numbers((160, 64), "f4", 0), np.empty((160, 160), "f4")
    with Noting() as device:
        stream_product(plan, {"a": ArraySource(a), "b": ArraySource(a.T)}, ArraySink(out), device)
    assert device.likes == {(16, (80, 80)), (80, None)}
    np.testing.assert_array_equal(out, a @ a.T)


def test_memory_is_allocated_when_something_first_fills_it():
    plan = planned(4096, 4096, "float32", "c-stationary", 1024, 512, 4, depth=1024)
    rates = Rates(1e12, 1e12, 1e10, 1e10)
    before = simulate(plan, rates)[0].seconds
    later, ran = simulate(plan, dataclasses.replace(rates, allocate=1e-10))
    slow, _ = simulate(plan, dataclasses.replace(rates, allocate=1e-7))
    first = plan.buffers["a"][1] + plan.buffers["sum"][1]
    assert min(one.start for one in ran) == pytest.approx(1e-10 * first)
    # A part of it hides behind what is computed; where it takes longest nothing does.
    assert before < later.seconds < before + 0.7e-10 * plan.device_bytes
    assert 1e-7 * plan.device_bytes < slow.seconds < 1e-7 * plan.device_bytes + 2 * before


@pytest.mark.parametrize(("cut", "stairs"), [(0, 0), (7, 0), (16, 0), (7, 8), (16, 256)])
@pytest.mark.parametrize(("n", "tile"), [(1, 1), (157, 157), (157, 200), (157, 80), (150, 50), (157, 1)])
def test_what_is_computed_is_counted_without_every_tile(monkeypatch, cut, stairs, n, tile):
    plan = planned(n, 30, "float32", "c-stationary", tile, cut, 2, depth=30, stairs=stairs)
    tiles = list(plan.order())
    strips = sum(1 if stairs or not cut or i != j else len(plan.diagonal(i)) for i, j in tiles)
    expected = sum(map(plan.area, tiles)), strips
    asked, area = [], DevicePlan.area
    monkeypatch.setattr(DevicePlan, "area", lambda plan, tile: asked.append(tile) or area(plan, tile))
    assert plan.computed == expected
    assert len(asked) <= 2
