"""Plans of products that pass through a device: what fits, what is counted, what is predicted."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from gemmule.core.errors import ArgumentError, MemoryLimitError
from gemmule.outofcore.device.planner.choice import choose_plan, least_memory
from gemmule.outofcore.device.planner.operation import COMPUTE, STREAMS, Convert, Load, Mirror, Multiply, Store
from gemmule.outofcore.device.planner.part_edges import edges, ramped
from gemmule.outofcore.device.planner.plan import DevicePlan
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.device.planner.schedule import operations
from gemmule.outofcore.tiles.memory_budget import GivenBytes
from gemmule.outofcore.tiles.plan import Operand, Product
from support.outofcore.simulated_runs import simulate

GIB = 1 << 30
F4, F8, F2 = (np.dtype(name) for name in ("f4", "f8", "f2"))
FP64 = Rates(60e12, 60e12, 55e9, 55e9)
FP32 = Rates(50e12, 50e12, 55e9, 55e9)
BF16 = Rates(750e12, 400e12, 55e9, 55e9)


def product(m, n, k, dtype=F4, orders="CC", c=None):
    a, b = (Operand(dtype, order) for order in orders)
    return Product(m, n, k, a, b, Operand(dtype), c and Operand(c))


def stationary(m, n, k, tile, depth, *, dtype=F8, c_tiles=2, strategy="c-stationary", strips=8):
    return DevicePlan(product(m, n, k, dtype), dtype.name, strategy, *tile, depth, c_tiles, (2, 2), strips=strips)


@pytest.mark.parametrize("tile", [4096, 8192, pytest.param(16384, marks=pytest.mark.slow)])
def test_traffic_and_time_are_those_of_the_formulae(tile):
    tiles = 12
    n = tiles * tile
    plan = stationary(n, n, n, (tile, tile), 512)
    prediction, _ = simulate(plan, FP64)
    # e M N K (1/bm + 1/bn), of which each turn of the serpentine saves the slices that are there, two of them.
    formula = 8 * n * n * tiles * 2
    saved = (tiles * tiles - 1) * 2 * tile * 512 * 8
    assert formula - saved <= prediction.bytes_in <= formula - saved // 2
    assert prediction.compute_s == pytest.approx(2 * n**3 / 60e12, rel=0.02)
    hidden = 2 / (1 / tile + 1 / tile) >= 8 * 60e12 / 55e9
    assert prediction.bottleneck == ("compute" if hidden else "H2D")
    if hidden:
        assert prediction.exposed_share < 0.01
    else:
        assert prediction.exposed_share == pytest.approx(1 - tile / (8 * 60e12 / 55e9), abs=0.02)


@pytest.mark.parametrize(("rates", "dtype", "one", "two"), [(FP64, F8, 0.042, 0.002), (FP32, F4, 0.018, 0.001)])
def test_a_second_tile_leaves_the_last_drain_only(rates, dtype, one, two):
    n, tile = 60_000, 20_000
    single, double = (
        simulate(stationary(n, n, 100_000, (tile, tile), 2048, dtype=dtype, c_tiles=count), rates)[0].exposed_share
        for count in (1, 2)
    )
    # One resident tile exposes c R / (2 K W) of every tile.
    assert single == pytest.approx(dtype.itemsize * rates.compute / (2 * 100_000 * 55e9), rel=0.2)
    assert single == pytest.approx(one, rel=0.25)
    assert double < 2 * two


def test_results_hide_where_the_depth_is_enough():
    # Device-to-host is hidden when K >= c R / (2 W): 4364 for float64.
    for depth, bottleneck in ((8000, "compute"), (2000, "D2H")):
        prediction, _ = simulate(stationary(60_000, 60_000, depth, (20_000, 20_000), 1000), FP64)
        assert prediction.bottleneck == bottleneck


@pytest.mark.parametrize(
    ("rates", "dtype", "memory", "n", "most"), [(FP64, F8, 8, 40_000, 0.02), (FP32, F4, 8, 40_000, 0.02)]
)
def test_the_bars_are_within_reach(rates, dtype, memory, n, most):
    chosen = choose_plan(product(n, n, n, dtype), dtype, memory * GIB, rates)
    assert chosen.prediction.exposed_share < most
    assert chosen.plan.device_bytes <= memory * GIB
    paper = choose_plan(product(n, n, n, dtype), dtype, memory * GIB, rates, strategy="five-buffers")
    assert paper.prediction.seconds > 1.01 * chosen.prediction.seconds


def test_sixteen_bits_keep_the_whole_depth():
    chosen = choose_plan(product(65536, 65536, 65536, F2), F4, 12 * GIB, BF16)
    # Slices would be summed in float32, which takes another kernel.
    assert chosen.plan.strategy == "panels"
    assert chosen.prediction.exposed_share < 0.08
    assert [name for name, _ in chosen.others] == ["c-stationary"]


def test_a_matrix_times_its_transpose_is_loaded_once():
    m, k = 16_000, 100_000
    chosen = choose_plan(product(m, m, k, F8, "FC"), F8, 8 * GIB, FP64, symmetric=True)
    assert chosen.plan.strategy == "resident-c"
    assert chosen.prediction.bytes_in == 8 * k * m
    assert chosen.prediction.flop < 0.6 * 2 * m * m * k


def test_thin_products_take_panels_or_wide_tiles():
    chosen = choose_plan(product(100_000, 100_000, 500, F4), F4, 4 * GIB, FP32)
    assert chosen.prediction.bottleneck == "D2H"
    assert chosen.prediction.seconds < 1.05 * chosen.prediction.best_s


SHAPES = [(1, 1, 1), (70, 50, 90), (1, 300, 50), (300, 1, 50), (40, 40, 500)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("strategy", "symmetric"), [(None, False), ("five-buffers", False), ("panels", False), (None, True)]
)
def test_the_least_memory_is_the_least(shape, strategy, symmetric):
    m, n, k = shape
    wanted = product(m, m if symmetric else n, k)
    least = least_memory(wanted, F4, symmetric=symmetric, strategy=strategy)
    chosen = choose_plan(wanted, F4, least, FP32, symmetric=symmetric, strategy=strategy)
    assert chosen.plan.device_bytes <= least
    with pytest.raises(MemoryLimitError, match=f"at least {least} bytes"):
        choose_plan(wanted, F4, GivenBytes(least - 1), FP32, symmetric=symmetric, strategy=strategy)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("strategy", ["five-buffers", "c-stationary", "panels"])
def test_more_memory_is_never_slower(shape, strategy):
    least = least_memory(product(*shape), F4, strategy=strategy)
    times = [
        choose_plan(product(*shape), F4, memory, FP32, strategy=strategy).prediction.seconds
        for memory in (least, 4 * least, 64 * least)
    ]
    assert times[0] * 1.05 >= times[1]
    assert times[1] * 1.05 >= times[2]


@pytest.mark.parametrize("shape", [*SHAPES, (0, 5, 3), (5, 0, 3), (5, 3, 0)])
@pytest.mark.parametrize("strategy", ["five-buffers", "c-stationary", "panels", "resident-c"])
@pytest.mark.parametrize("apart", [False, True])
def test_operations_cover_the_product_once(shape, strategy, apart):
    m, n, k = shape
    symmetric = strategy == "resident-c"
    n = m if symmetric else n
    dtype = F2 if apart else F4
    wanted = product(m, n, k, dtype, c=None if symmetric else F4)
    memory = 3 * least_memory(wanted, F4, symmetric=symmetric, strategy=strategy)
    plan = choose_plan(wanted, F4, memory, FP32, symmetric=symmetric, strategy=strategy).plan
    done, stored, there = np.zeros((m, n), int), np.zeros((m, n), int), {}
    added = np.zeros((m, n), int)
    for number, op in enumerate(operations(plan)):
        assert op.number == number
        assert op.stream in STREAMS
        assert all(before < number for before in op.after)
        if isinstance(op, Load):
            there[op.operand, op.slot] = op
            added[slice(*op.rows), slice(*op.cols)] += op.operand == "c"
        elif isinstance(op, Multiply):
            done[slice(*op.rows), slice(*op.cols)] += op.inner[1] - op.inner[0]
            if k:
                a = there["a", op.a.slot]
                b = there["a" if symmetric else "b", op.b.slot]
                assert (a.rows, a.cols) == (op.a.outer, op.inner)
                assert (b.rows, b.cols) == ((op.b.outer, op.inner) if symmetric else (op.inner, op.b.outer))
        elif isinstance(op, Store):
            part = slice(*op.rows), slice(*op.cols)
            assert ((done.T if op.mirrored else done)[part] == k).all()
            stored[part] += 1
        elif isinstance(op, Mirror):
            assert symmetric
        else:
            assert isinstance(op, Convert)
            assert plan.converts_results
    assert (stored == 1).all()
    if wanted.c:
        assert (added == 1).all()


@pytest.mark.parametrize("strategy", ["five-buffers", "c-stationary", "panels", "resident-c"])
def test_what_is_overwritten_has_been_used(strategy):
    symmetric = strategy == "resident-c"
    wanted = product(200, 200, 300, F2, c=None if symmetric else F4)
    memory = 6 * least_memory(wanted, F4, symmetric=symmetric, strategy=strategy)
    plan = choose_plan(wanted, F4, memory, FP32, symmetric=symmetric, strategy=strategy).plan
    ran = simulate(plan, Rates(1e12, 1e12, 1e9, 1e9))[1]
    uses: dict[tuple[str, int], list[tuple[float, float]]] = {}
    loads: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for one in ran:
        if isinstance(one.op, Load):
            loads.setdefault((one.op.operand, one.op.slot), []).append((one.start, one.end))
        elif isinstance(one.op, Multiply):
            for operand, held in (("a", one.op.a), ("a" if symmetric else "b", one.op.b)):
                uses.setdefault((operand, held.slot), []).append((one.start, one.end))
    for key, spans in loads.items():
        for load, use in itertools.product(spans, uses.get(key, [])):
            assert load[1] <= use[0] + 1e-12 or use[1] <= load[0] + 1e-12, key


@pytest.mark.parametrize("strategy", ["c-stationary", "resident-c"])
@pytest.mark.parametrize("dtype", [F4, F2])
@pytest.mark.parametrize("link", [1e7, 1e15])
def test_a_transpose_leaves_before_the_next_one_comes(strategy, dtype, link):
    n, c_tiles = 400, 15 if strategy == "resident-c" else 2
    plan = DevicePlan(
        product(n, n, 300, dtype, "CF"), "float32", strategy, 80, 80, 64, c_tiles, (10, 0), symmetric=True, strips=4
    )
    # Either everything waits for copies, or they for what they copy.
    ran = simulate(plan, Rates(1e12, 1e12, link, link))[1]
    made = [one for one in ran if isinstance(one.op, Mirror)]
    left = {(one.op.cols, one.op.rows): one for one in ran if isinstance(one.op, Store) and one.op.mirrored}
    assert len(made) == len(left) == 10
    for place, one in enumerate(made):
        leaves = left[one.op.rows, one.op.cols]
        assert one.end <= leaves.start
        assert leaves.op.final
        later = [other.start for other in made[place + 1 :] if other.op.target == one.op.target]
        assert all(leaves.end <= start for start in later)
    assert {one.op.target for one in made} == set(range(plan.buffers["mirror"][0]))


def test_ramps_double_and_end_where_slices_do():
    assert edges(10, 4) == (0, 4, 8, 10)
    assert edges(0, 4) == (0,)
    assert ramped(edges(5000, 2048), 16) == (0, 128, 256, 512, 1024, 2048, 4096, 5000)
    assert ramped(edges(500, 100), 16) == edges(500, 100)
    plan = stationary(9000, 9000, 9000, (4500, 4500), 2048)
    first = [step.inner for step in plan.steps() if (step.i, step.j) == (0, 0)]
    assert first[0] == (0, 128)
    flat = dataclasses.replace(plan, strategy="five-buffers")
    assert next(flat.steps()).inner == (0, 2048)


def test_the_last_tile_leaves_in_strips():
    plan = stationary(9000, 9000, 2048, (4500, 4500), 2048)
    last = list(plan.order())[-1]
    stores = [op for op in operations(plan) if isinstance(op, Store)]
    assert [op.tile for op in stores].count(last) == 6
    assert len(stores) == 3 + 6
    assert [op.final for op in stores[-6:]] == [False] * 5 + [True]
    slow = dataclasses.replace(FP64, compute=6e12, accumulate=6e12)
    whole = simulate(dataclasses.replace(plan, strips=1), slow)[0].seconds
    assert simulate(plan, slow)[0].seconds < whole - 0.5 * 4500 * 4500 * 8 / 55e9


def test_tiles_that_are_there_are_left_out():
    plan = stationary(900, 900, 300, (300, 300), 100)
    left = {op.tile for op in operations(plan, {(0, 0), (1, 2)}) if isinstance(op, Multiply)}
    assert left == set(plan.order()) - {(0, 0), (1, 2)}
    assert list(operations(plan, set(plan.order()))) == []


def test_a_stream_runs_one_operation_at_a_time():
    _, ran = simulate(stationary(9000, 9000, 9000, (4500, 4500), 2048), FP64)
    for name in STREAMS:
        spans = sorted((one.start, one.end) for one in ran if one.op.stream == name)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    total = sum(one.end - one.start for one in ran if one.op.stream == COMPUTE)
    assert total == pytest.approx(2 * 9000**3 / 60e12, rel=0.05)


def test_strategies_that_are_not_for_the_product_are_refused():
    with pytest.raises(ArgumentError, match="'best' is not known; choose one of 'five-buffers'"):
        choose_plan(product(5, 5, 5), F4, GIB, FP32, strategy="best")
    with pytest.raises(ArgumentError, match="its own transpose"):
        choose_plan(product(5, 5, 5), F4, GIB, FP32, strategy="resident-c")


def test_a_third_tile_comes_while_one_leaves():
    wanted = product(32_768, 32_768, 4096, F4, c=F4)
    rates = dataclasses.replace(FP32, h2d=50e9, d2h=49e9)
    chosen = choose_plan(wanted, F4, 8 * GIB, rates)
    assert chosen.plan.c_tiles == 3
    two = simulate(dataclasses.replace(chosen.plan, c_tiles=2), rates)[0]
    assert chosen.prediction.seconds < 0.97 * two.seconds
    assert chosen.prediction.exposed_share < 0.12
