"""What brings and takes matrices, as measured and as plans are told: staging, pinning, splitting, a disk's range."""

from __future__ import annotations

import dataclasses
import math
import threading
import tracemalloc

import numpy as np
import pytest

from gemmule.host.streams import HostStreams
from gemmule.outofcore.calls import devices
from gemmule.outofcore.device.engine import staging_probe
from gemmule.outofcore.device.engine.staging_probe import Sample, Staged, staged_by
from gemmule.outofcore.device.planner.choice import choose_plan
from gemmule.outofcore.device.planner.disk_probe import DiskRate
from gemmule.outofcore.device.planner.plan import DevicePlan
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.device.planner.rings import cut_rings, pinned_bytes, staged_rates, without_handing
from gemmule.outofcore.device.planner.shares import predicted
from gemmule.outofcore.tiles.plan import Operand, Product
from support.outofcore.simulated_runs import simulate

F4 = np.dtype("f4")
#: A matrix of one piece.
SMALL = Sample(1 << 20, 1 << 20)
RATES = Rates(1e12, 1e12, 50e9, 50e9, source=20e9, sink=10e9)


def square(n):
    operand = Operand(F4)
    return Product(n, n, n, operand, operand, operand)


PLAN = DevicePlan(square(4000), "float32", "panels", 1000, 4000, 4000, 2, (2, 1), ramps=(1, 1, 1))


class Counting(HostStreams):
    """A device on the host that counts what is copied, and pinned."""

    def __init__(self):
        super().__init__(pinned_arrays=False)
        self.copied = {"in": 0, "out": 0, "pinned": 0}

    def pinned(self, nbytes):
        self.copied["pinned"] += nbytes
        return super().pinned(nbytes)

    def copy_in(self, stream, target, source):
        self.copied["in"] += source.nbytes
        super().copy_in(stream, target, source)

    def copy_out(self, stream, target, source):
        self.copied["out"] += target.nbytes
        super().copy_out(stream, target, source)


def test_staging_is_measured_with_the_buffers_of_a_product():
    with Counting() as device:
        found = staged_by(device, 1 << 20, 3, Sample(3 << 20, 4 << 20))
    # Both once to begin with, each alone, and both twice.
    assert device.copied == {"in": 4 * (3 << 20), "out": 4 * (3 << 20), "pinned": pinned_bytes(found.rings)}
    assert found.rings == cut_rings(("a", "out"), 1 << 20, 3, 1 << 16)
    assert min(found.source, found.sink, *found.duplex, found.pin) > 0


def test_what_fails_while_staging_is_measured_is_told():
    class Broken(Counting):
        def copy_out(self, stream, target, source):
            raise OSError("broken link")

    with Broken() as device, pytest.raises(OSError, match="broken link"):
        staged_by(device, 1 << 18, 2, SMALL)


def test_what_is_measured_keeps_within_budgets():
    assert staging_probe.pinned_within(256 << 20, 8 << 30) == 256 << 20
    sample = Sample(2 << 20, 8 << 20)
    budget = 12 << 20
    pinned = staging_probe.pinned_within(4 << 20, budget, sample)

    class OnTheHost(Counting):
        def allocate(self, nbytes):
            self.copied["device"] = self.copied.get("device", 0) + nbytes
            return super().allocate(nbytes)

    tracemalloc.start()
    try:
        with OnTheHost() as device:
            found = staged_by(device, pinned, 2, sample)
            peak = tracemalloc.get_traced_memory()[1] - device.copied["device"]
    finally:
        tracemalloc.stop()
    assert pinned_bytes(found.rings) <= pinned
    # Threads and their queues take some, too.
    assert budget // 2 < peak <= budget + (1 << 19)
    assert staging_probe.pinned_within(4 << 20, 5 << 20, sample) == 1 << 20
    assert staging_probe.pinned_within(4 << 20, (5 << 20) - 5, sample) == 0
    assert staging_probe.pinned_within((1 << 20) - 1, budget, sample) == 0


def test_buffers_that_hold_less_than_a_line():
    with Counting() as device:
        found = staged_by(device, 1 << 18, 2, SMALL)
    assert found.rings["A, B in"][1] < staging_probe._LINE
    assert device.copied["in"] == device.copied["out"] == 4 << 20


def test_no_thread_is_left_where_there_is_no_memory():
    class Full(Counting):
        def allocate(self, nbytes):
            raise MemoryError

    with Full() as device, pytest.raises(MemoryError):
        staged_by(device, 1 << 18, 2)
    assert not [one for one in threading.enumerate() if one.name.startswith("gemmule-fill")]


def test_rates_that_were_measured_with_a_ring_come_out_of_it_again():
    rings = cut_rings(("a", "out"), 256 << 20, 12, 1)
    measured = Staged(30e9, 20e9, (15e9, 18e9), 3e-10, rings)
    told = measured.applied_to(RATES)
    through = staged_rates(told, rings, 12, 12)
    assert (through.source, through.sink) == pytest.approx((30e9, 20e9))
    assert told.duplex_shares == (0.5, 0.9)
    # Smaller buffers are handed over more often.
    assert staged_rates(told, cut_rings(("a", "out"), 1 << 20, 12, 1), 12, 12).source < 5e9
    assert 0 < without_handing(1e13, (1, 4096)) < math.inf


def test_pinning_goes_before_everything():
    rings = cut_rings(("a", "out"), 256 << 20, 4, 1)
    rates = staged_rates(dataclasses.replace(RATES, pin=4e-10), rings, 4, 4)
    assert rates.ready == pytest.approx(4e-10 * pinned_bytes(rings))
    first = simulate(PLAN, rates)[1][0]
    assert first.start == rates.ready


def test_what_comes_while_results_leave_comes_more_slowly():
    slower = dataclasses.replace(RATES, duplex_shares=(0.5, 0.5))
    # 10 GB leave in 2 s, in which 20 of 40 GB come; the others come alone.
    duplex = slower.duplex(40 * 10**9, 10**10)
    assert duplex.source == pytest.approx(40e9 / 3)
    assert duplex.sink == pytest.approx(5e9)
    assert slower.duplex(10**10, 0) == dataclasses.replace(slower, sink=10e9)
    assert RATES.duplex(10**10, 10**10) == RATES
    # A disk gives and takes in turn, which the model knows.
    disk = dataclasses.replace(slower, files=True)
    assert disk.duplex(10**10, 10**10) == disk
    slower, faster = (predicted(PLAN, dataclasses.replace(rates, compute=1e15), 1).seconds for rates in (slower, RATES))
    assert slower > 1.2 * faster


def test_factors_that_are_split_favour_large_tiles():
    rates = Rates(115e12, 110e12, 50e9, 50e9, half=16)
    split = dataclasses.replace(rates, split=2.5e-12)
    one = split.seconds(2048, 1024, 40_000, added=False)
    assert one == pytest.approx(rates.seconds(2048, 1024, 40_000, added=False) + 2.5e-12 * 3072 * 40_000)
    plain, larger = (
        choose_plan(square(40_000), F4, 3 << 30, each, strategy="c-stationary").plan for each in (rates, split)
    )
    assert 1 / larger.tile_m + 1 / larger.tile_n <= 1 / plain.tile_m + 1 / plain.tile_n


def test_results_that_are_joined_favour_deep_tiles():
    rates = Rates(115e12, 110e12, 50e9, 50e9, half=16)
    joined = dataclasses.replace(rates, join=1e-11)
    assert joined.seconds(2048, 1024, 512, added=True) == pytest.approx(
        rates.seconds(2048, 1024, 512, added=True) + 1e-11 * 2048 * 1024
    )
    plain, deeper = (
        choose_plan(square(40_000), F4, 3 << 30, each, strategy="c-stationary").plan for each in (rates, joined)
    )
    assert deeper.tile_k > plain.tile_k


def test_a_disk_that_varies_gives_a_range():
    disk = DiskRate(1e9, 0.8e9, 1.25e9)
    rates = devices._with_disk(RATES, disk, DiskRate(2e9, 2e9, 2e9))
    assert (rates.source, rates.sink, rates.files) == (1e9, 2e9, True)
    assert (rates.slow, rates.fast) == ((0.8, 1.0), (1.25, 1.0))
    chosen = choose_plan(square(8000), F4, 8 << 30, dataclasses.replace(rates, compute=1e14, accumulate=1e14))
    fast, slow = chosen.between
    assert chosen.prediction.bottleneck == "disk read"
    assert 1.1 < slow / chosen.prediction.seconds < 1.25
    assert 0.8 < fast / chosen.prediction.seconds < 0.95
    steady = choose_plan(square(2000), F4, 1 << 30, RATES)
    assert steady.between == (steady.prediction.seconds,) * 2
    # Arrays are not read from the disk that their product is written to.
    written = devices._with_disk(RATES, None, disk)
    assert (written.source, written.sink, written.slow) == (20e9, 1e9, (1.0, 0.8))
