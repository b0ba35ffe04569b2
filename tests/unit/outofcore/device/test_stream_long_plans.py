"""Plans of very many operations: counted exactly, simulated in part, found quickly."""

from __future__ import annotations

import cProfile
import dataclasses
import itertools
import pstats

import numpy as np
import pytest

from gemmule.outofcore.device.planner import traffic
from gemmule.outofcore.device.planner.budgets import Budgets, Staging, choose_within
from gemmule.outofcore.device.planner.long_plans import extrapolated, is_long, operation_count
from gemmule.outofcore.device.planner.operation import Load, Multiply, Store
from gemmule.outofcore.device.planner.plan import DevicePlan
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.device.planner.schedule import operations
from gemmule.outofcore.device.planner.shares import expected, predicted, shares
from gemmule.outofcore.device.planner.simulation import Model, simulated
from gemmule.outofcore.tiles.plan import Operand, Product

F4, F8 = np.dtype("f4"), np.dtype("f8")


def product(m, n, k, c=None):
    operand = Operand(F4)
    return Product(m, n, k, operand, operand, operand, c)


def stationary(shape, tile, strategy="c-stationary", c_tiles=2, **more):
    return DevicePlan(product(*shape), "float32", strategy, *tile, c_tiles, (2, 2), **more)


def symmetric(m, k, side, depth, **more):
    alone = side >= m
    slots, c_tiles = (2 if alone else 4, 0), 1 if alone else 2
    return DevicePlan(
        product(m, m, k), "float32", "c-stationary", side, side, depth, c_tiles, slots, symmetric=True, **more
    )


def resident(m, k, side, depth):
    count = -(-m // side)
    return DevicePlan(
        product(m, m, k), "float32", "resident-c", side, side, depth, count * (count + 1) // 2, (2 * count, 0),
        symmetric=True,
    )  # fmt: skip


def panels(shape, tile, slots, stationary="a", **more):
    return DevicePlan(product(*shape), "float32", "panels", *tile, shape[2], 2, slots, stationary, **more)


PLANS = [
    stationary((257, 130, 333), (20, 16, 25)),
    stationary((257, 130, 40), (3, 50, 64), ramps=(1, 1, 4)),
    stationary((257, 130, 100), (16, 4, 50), c_tiles=1, devices=3),
    stationary((100, 48, 1000), (64, 50, 3), "five-buffers", 1),
    stationary((100, 48, 0), (64, 50, 1)),
    dataclasses.replace(stationary((150, 48, 90), (16, 16, 9)), product=product(150, 48, 90, Operand(F8))),
    symmetric(257, 333, 20, 16),
    symmetric(100, 40, 16, 64, cut=4),
    symmetric(64, 333, 64, 16),
    resident(100, 333, 16, 25),
    panels((257, 130, 40), (16, 4), (3, 4)),
    panels((257, 130, 40), (16, 4), (5, 1), "b", opening=2),
    panels((1200, 130, 40), (300, 4), (2, 3), "b", ramps=(4, 1, 1), opening=1),
    panels((64, 48, 40), (16, 16), (1, 1)),
]


@pytest.mark.parametrize("number", range(len(PLANS)))
def test_what_moves_is_counted_without_the_operations(number):
    plan = PLANS[number]
    every = set(plan.order())
    some = {tile for place, tile in enumerate(plan.order()) if place % 3 == 1}
    for done in ((), some, *(every - share for share in shares(plan, 3))):
        ops = list(operations(plan, done))
        assert traffic.bytes_in(plan, done) == sum(op.nbytes for op in ops if isinstance(op, Load))
        assert traffic.bytes_out(plan, done) == sum(op.nbytes for op in ops if isinstance(op, Store))
        assert traffic.flop(plan, done) == sum(op.flop for op in ops if isinstance(op, Multiply))
    assert traffic.roughly_in(plan) >= traffic.bytes_in(dataclasses.replace(plan, devices=1))


@pytest.mark.parametrize("files", [False, True])
@pytest.mark.parametrize(
    "plan",
    [
        stationary((2049, 1000, 4097), (160, 144, 128)),
        stationary((1000, 2049, 2049), (144, 144, 64), "five-buffers", 1),
        symmetric(1000, 2049, 112, 64),
        panels((2049, 4097, 500), (64, 64), (3, 29), "b"),
    ],
)
def test_a_part_tells_the_time_of_the_whole(plan, files):
    assert is_long(plan)
    for rates in (
        Rates(1e12, 0.95e12, 20e9, 18e9, source=10e9, sink=8e9, launch=2e-4, files=files),
        Rates(1e11, 1e11, 5e9, 5e9, source=1e9, sink=5e9, half=64, files=files),
    ):
        part, whole = extrapolated(plan, rates), simulated(plan, rates)
        assert part.seconds == pytest.approx(whole.seconds, rel=0.06)
        assert part.compute_s == pytest.approx(whole.compute_s, rel=0.01)
        found = expected(plan, rates, 1, 0)
        assert found.seconds == part.seconds
        assert (found.bytes_in, found.bytes_out, found.flop) == (whole.bytes_in, whole.bytes_out, whole.flop)
        assert (found.h2d_s, found.source_s) == pytest.approx((whole.h2d_s, whole.source_s))


def test_several_devices_move_what_is_counted():
    plan = stationary((1025, 600, 4097), (64, 64, 64), devices=2)
    rates = Rates(1e12, 1e12, 20e9, 20e9)
    assert is_long(plan, 2)
    every = set(plan.order())
    parts = [simulated(plan, rates, every - share) for share in shares(plan, 2)]
    found = expected(plan, rates, 2, 0)
    assert found.seconds == predicted(plan, rates, 2).seconds
    assert found.bytes_in == sum(one.bytes_in for one in parts)
    assert found.seconds == pytest.approx(max(one.seconds for one in parts), rel=0.06)


def test_a_longer_plan_that_is_chosen_is_simulated_whole():
    plan = stationary((2049, 1000, 4097), (160, 144, 128))
    rates = Rates(1e12, 0.95e12, 20e9, 18e9, issue=2e-4)
    assert is_long(plan)
    assert not is_long(plan, most=12_000)
    assert expected(plan, rates, 1) == simulated(plan, rates)


def test_part_of_a_plan_is_its_beginning():
    plan = stationary((300, 200, 90), (64, 64, 32))
    tiles = list(plan.order())[:3]
    whole = [op for op in operations(plan) if isinstance(op, Multiply) and op.tile in tiles]
    assert [op for op in operations(plan, most=3) if isinstance(op, Multiply)] == whole


@pytest.mark.parametrize("symmetric", [False, True])
def test_few_operations_are_simulated_however_small_the_budgets(symmetric, monkeypatch):
    simulations, run = itertools.count(), Model.run

    def counting(model, op):
        next(simulations)
        return run(model, op)

    monkeypatch.setattr(Model, "run", counting)
    rates = Rates(
        50e12, 45e12, 50e9, 50e9, source=3e9, sink=2e9, half=64, launch=2e-4, files=True, staged_line=65536,
        waves=(128, 256, 132), side=4096, depth=2048,
    )  # fmt: skip
    budgets = Budgets(1 << 20, 64 << 10, 16 << 20)
    found = choose_within(
        1, product(4097, 4097, 4097), F4, budgets, Staging(("a", "b", "out"), 14), rates, symmetric=symmetric
    )
    assert operation_count(found.plan) > 3000
    found.binding()
    assert next(simulations) < 60_000
    ops = list(operations(found.plan))
    assert found.prediction.bytes_in == sum(op.nbytes for op in ops if isinstance(op, Load))
    assert found.prediction.bytes_out == sum(op.nbytes for op in ops if isinstance(op, Store))


@pytest.mark.parametrize("plan", [plan for plan in PLANS if plan.strategy == "c-stationary"])
@pytest.mark.parametrize("devices", [1, 2, 3, 40])
def test_the_first_tiles_are_those_of_the_shares(plan, devices):
    plan = dataclasses.replace(plan, devices=devices)
    assert plan.first_tiles == {share[0] for share in plan.shares(devices) if share}


@pytest.mark.parametrize(
    ("devices", "symmetric"),
    [(2, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, False), (1, True), (2, False)))],
)
def test_planning_takes_few_calls_however_many_the_tiles(devices, symmetric):
    rates = Rates(50e12, 45e12, 50e9, 50e9, source=3e9, sink=2e9, half=64, launch=2e-4, files=True, staged_line=65536)
    budgets, staging = Budgets(16 << 10, 48 << 10, 16 << 20), Staging(("a", "b", "out"), 14)
    profile = cProfile.Profile()
    found = profile.runcall(
        choose_within, devices, product(9000, 9000, 9000), F4, budgets, staging, rates, symmetric=symmetric
    )
    assert found.plan.tiles > 50_000
    assert pstats.Stats(profile).total_calls < 6_000_000
