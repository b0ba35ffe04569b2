"""The streams that a plan is given are those that its operations run on, and fewer than a GPU has queues."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.host.streams import HostStreams
from gemmule.outofcore.device.engine.streaming import Settings, stream_product
from gemmule.outofcore.device.planner.candidates import candidates
from gemmule.outofcore.device.planner.operation import C_IN, LAST, MIRRORING
from gemmule.outofcore.device.planner.plan import DevicePlan
from gemmule.outofcore.device.planner.queues import streams
from gemmule.outofcore.device.planner.schedule import operations
from gemmule.outofcore.stores.arrays import ArraySink, ArraySource
from gemmule.outofcore.tiles.plan import Operand, Product

F4 = np.dtype("f4")
#: Queues for streams of a GPU, but for the one of the default stream.
QUEUES = 7


def product(m, n, k, *, added=False, symmetric=False):
    return Product(
        m, n, k, Operand(F4), Operand(F4, "F" if symmetric else "C"), Operand(F4), Operand(F4) if added else None
    )


def gram(n, tile, strategy, lanes, stairs, *, k=90, cut=16):
    tiles = -(-n // tile)
    stay = strategy == "resident-c"
    held, slots = (tiles * (tiles + 1) // 2, 2 * tiles) if stay else (min(2, tiles), 4)
    return DevicePlan(
        product(n, n, k, symmetric=True), "float32", strategy, tile, tile, 40, held, (slots, 0), symmetric=True,
        cut=cut, lanes=lanes, stairs=stairs,
    )  # fmt: skip


PLANS = {
    "product": DevicePlan(product(150, 130, 90), "float32", "c-stationary", 64, 64, 40, 2, (2, 2)),
    "five-buffers": DevicePlan(product(150, 130, 90), "float32", "five-buffers", 64, 64, 40, 1, (2, 2)),
    "panels": DevicePlan(product(150, 130, 90), "float32", "panels", 64, 64, 90, 2, (2, 2), "a"),
    "added": DevicePlan(product(150, 130, 90, added=True), "float32", "c-stationary", 64, 64, 40, 3, (2, 2)),
    "strips": gram(150, 64, "c-stationary", 4, 0),
    "strips that stay": gram(150, 64, "resident-c", 4, 0),
    "stairs": gram(150, 64, "c-stationary", 2, 8),
    "stairs that stay": gram(150, 64, "resident-c", 2, 8),
    "one tile with stairs": gram(150, 150, "c-stationary", 2, 8),
    "one tile that stays with stairs": gram(150, 150, "resident-c", 1, 8),
    "one slice with stairs": gram(150, 64, "c-stationary", 2, 8, k=40),
}


class Noting(HostStreams):
    """Notes the streams that are made, with their ranks."""

    def __init__(self, **options):
        super().__init__(whole=(16, 16, 8), **options)
        self.ranks = []

    def stream(self, *, rank=0):
        self.ranks.append(rank)
        return super().stream(rank=rank)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("name", PLANS)
def test_streams_are_what_operations_run_on(name, direct):
    plan = PLANS[name]
    given = streams(plan)
    assert set(given) == {op.stream for op in operations(plan)}
    assert len(given) <= QUEUES
    assert (C_IN in given) == (plan.product.c is not None)
    assert {name: rank for name, rank in given.items() if rank} == (
        ({MIRRORING: 1} if plan.symmetric else {}) | (dict.fromkeys(LAST, -1) if plan.stairs else {})
    )
    rng, p = np.random.default_rng(), plan.product
    a, b, c = (rng.integers(-2, 3, shape).astype("f4") for shape in ((p.m, p.k), (p.k, p.n), (p.m, p.n)))
    b = a.T if plan.symmetric else b
    sources = {"a": ArraySource(a), "b": ArraySource(b)} | ({"c": ArraySource(c)} if p.c else {})
    out = np.full((p.m, p.n), np.nan, "f4")
    with Noting(pinned_arrays=direct) as device:
        ran = stream_product(
            plan, sources, ArraySink(out), device, beta=1 if p.c else 0, settings=Settings(pinned=48 << 10, threads=2)
        )
        assert device.ranks == list(given.values())
    assert {one.stream for one in ran.activity} == set(given)
    np.testing.assert_array_equal(out, a @ b + (c if p.c else 0))


@pytest.mark.parametrize("stairs", [0, 256])
@pytest.mark.parametrize("strategy", ["c-stationary", "resident-c"])
def test_every_plan_that_is_tried_has_a_queue_for_each_stream(strategy, stairs):
    wide = product(20480, 20480, 20480, symmetric=True)
    tried = list(candidates(strategy, wide, F4, 8 << 30, symmetric=True, stairs=stairs))
    assert len(tried) > 10
    assert max(len(streams(plan)) for plan in tried) == QUEUES


@pytest.mark.parametrize("tiles", [(0,), (0, 1, 2), (5,)])
@pytest.mark.parametrize("name", ["stairs", "strips", "stairs that stay"])
def test_a_share_of_the_tiles_runs_on_streams_of_the_plan(name, tiles):
    """What is left of a product, or what one of several devices computes."""
    plan = dataclasses.replace(PLANS[name], devices=2)
    done = {tile for number, tile in enumerate(plan.order()) if number not in tiles}
    assert {op.stream for op in operations(plan, done)} <= set(streams(plan))


@pytest.mark.parametrize("strategy", ["c-stationary", "resident-c"])
@pytest.mark.parametrize(("n", "k"), [(20480, 20480), (30000, 8000), (12000, 40000)])
def test_large_tiles_cut_the_result_evenly(strategy, n, k):
    """A last tile of half the side came after a tile that takes as long as all others to come, and to leave."""
    tried = candidates(strategy, product(n, n, k, symmetric=True), F4, 8 << 30, symmetric=True, stairs=256)
    large = [plan for plan in tried if n / 5 <= plan.tile_m < n]
    assert large
    assert all(n - (plan.grid[0] - 1) * plan.tile_m > 0.6 * plan.tile_m for plan in large)
