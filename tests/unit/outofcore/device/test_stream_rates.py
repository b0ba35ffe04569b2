"""The model of a device: whole waves of CTAs, sums, lines that lie apart, disks; and plans that heed them."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import math

import numpy as np
import pytest

from gemmule.outofcore.calls.devices import usual_staging
from gemmule.outofcore.device.planner import disk_probe
from gemmule.outofcore.device.planner.choice import choose_plan
from gemmule.outofcore.device.planner.disk_probe import USUAL, Probe, read_rate, write_rate
from gemmule.outofcore.device.planner.operation import Load
from gemmule.outofcore.device.planner.plan import RAMPS, DevicePlan
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.device.planner.schedule import operations
from gemmule.outofcore.device.planner.shares import expected, predicted, shares
from gemmule.outofcore.tiles.plan import Operand, Product
from gemmule.runtime.link_probe import LINES
from support.outofcore.simulated_runs import simulate
from support.system_calls import failing

F4, F8 = np.dtype("f4"), np.dtype("f8")


def square(n, dtype=F4):
    operand = Operand(dtype)
    return Product(n, n, n, operand, operand, operand)


def test_products_take_whole_waves():
    rates = Rates(1e12, 1e12, 1e9, 1e9, waves=(128, 256, 132), side=16384)
    # 128 x 64 CTAs are 62.06 waves, which take as long as 63: that is in the rate that was measured.
    assert rates.seconds(16384, 16384, 100, added=False) == pytest.approx(2 * 16384**2 * 100 / 1e12)
    one = rates.seconds(11 * 128, 12 * 256, 1000, added=False)
    assert rates.seconds(128, 256, 1000, added=False) == one
    assert rates.seconds(11 * 128, 12 * 256 + 1, 1000, added=False) == pytest.approx(2 * one)


def test_adding_to_a_sum_costs_the_same_at_every_depth():
    rates = Rates(100e12, 80e12, 1e9, 1e9, depth=1000)
    more = [
        rates.seconds(64, 32, depth, added=True) - rates.seconds(64, 32, depth, added=False) for depth in (10, 1000)
    ]
    assert more[0] == pytest.approx(more[1])
    assert rates.seconds(64, 32, 1000, added=True) == pytest.approx(2 * 64 * 32 * 1000 / 80e12)
    without = dataclasses.replace(rates, depth=0)
    assert without.seconds(64, 32, 10, added=True) == pytest.approx(2 * 64 * 32 * 10 / 80e12)


def test_short_lines_are_slow():
    rates = Rates(1e12, 1e12, 10e9, 5e9, lines=((0, 0.25), (1000, 0.5), (9000, 1.0)), staged_line=4000)
    assert rates.arriving(10**9, math.inf) == pytest.approx(0.1)
    assert rates.arriving(10**9, 1000) == pytest.approx(0.2)
    assert rates.arriving(10**9, 999) == pytest.approx(0.4)
    assert rates.departing(10**9, 1000) == pytest.approx(0.4)
    assert rates.departing(10**9, 9000) == pytest.approx(0.2)
    disk = dataclasses.replace(rates, source=1e9, sink=4e9)
    # What is staged crosses the link in long lines.
    assert disk.arriving(10**9, 4000) == pytest.approx(2.0)
    assert disk.departing(10**9, 4000) == pytest.approx(0.5)


def test_a_disk_reads_or_writes():
    plan = DevicePlan(square(4000), "float32", "panels", 1000, 4000, 4000, 2, (2, 1), ramps=(1, 1, 1))
    rates = Rates(50e12, 50e12, 50e9, 50e9, source=1.5e9, sink=1e9)
    apart, one = (simulate(plan, dataclasses.replace(rates, files=files))[0].seconds for files in (False, True))
    assert one == pytest.approx(2 * 4000**2 * 4 / 1.5e9 + 4000**2 * 4 / 1e9, rel=0.05)
    assert apart < 0.8 * one


def test_files_are_read_and_written_in_long_lines():
    rates = Rates(50e12, 50e12, 50e9, 50e9, source=1.5e9, sink=1e9, files=True, staged_line=64 << 10)
    chosen = choose_plan(square(20_000), F4, 100 << 30, rates, strategy="panels")
    lines = [chosen.plan.host_lines[name] for name in ("a", "b", "out")]
    assert min(lines) >= 64 << 10
    assert chosen.prediction.bytes_in == 2 * 20_000**2 * 4


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_every_device_begins_with_parts_of_a_slice(devices):
    plan = DevicePlan(
        square(9000, F8), "float64", "c-stationary", 1500, 1500, 2048, 2, (2, 2), strips=8, devices=devices
    )
    every = set(plan.order())
    for share in shares(plan, devices):
        first = next(op for op in operations(plan, every - share) if isinstance(op, Load))
        assert first.cols == (0, 2048 // RAMPS[2])
    assert len(plan.first_tiles) == devices
    # Slices still go back and forth, from there on.
    by_tile = [list(steps) for _, steps in itertools.groupby(plan.steps(), lambda step: (step.i, step.j))]
    for before, after in itertools.pairwise(by_tile):
        if (after[0].i, after[0].j) not in plan.first_tiles:
            assert before[-1].inner == after[0].inner


def test_a_second_device_waits_no_longer_than_the_first():
    plan = DevicePlan(square(40_000, F8), "float64", "c-stationary", 20_096, 10_112, 8192, 2, (2, 2), strips=8)
    rates = Rates(48e12, 48e12, 50e9, 50e9)
    unknown, known = (predicted(dataclasses.replace(plan, devices=count), rates, 2).seconds for count in (1, 2))
    assert known < unknown - 0.01


def test_beginnings_are_chosen_with_the_lines():
    rates = Rates(700e12, 680e12, 53e9, 49e9, half=16, lines=LINES)
    chosen = choose_plan(square(65_536, np.dtype("f2")), F4, 12 << 30, rates, strategy="panels")
    assert chosen.prediction.exposed_share < 0.08
    # Lines of B are long from the first panel on.
    assert chosen.plan.col_edges[1] * 2 >= 32 << 10


def test_a_disk_is_timed_where_files_are_large(tmp_path):
    path = tmp_path / "a.npy"
    path.write_bytes(bytes(1 << 16))
    assert read_rate([str(path), None], 3) == USUAL
    assert write_rate(str(tmp_path), 1 << 16, 3) == USUAL
    probe = Probe(block=1 << 12, least=1)
    found = read_rate([str(path)], 3, probe)
    assert 0 < found.slow <= found.rate <= found.fast
    assert found != USUAL
    found = write_rate(str(tmp_path), 1, 3, probe)
    assert 0 < found.slow <= found.rate <= found.fast
    assert [one.name for one in tmp_path.iterdir()] == ["a.npy"]
    assert write_rate(str(tmp_path / "missing"), 1, 3, probe) == USUAL


@pytest.mark.parametrize("opening", [0, 1, 2])
@pytest.mark.parametrize("stationary", ["a", "b"])
def test_an_opening_leaves_no_tile_out(opening, stationary):
    slots = (3, 4) if stationary == "b" else (4, 3)
    plan = DevicePlan(
        square(9000), "float32", "panels", 1000, 1500, 9000, 2, slots, stationary, ramps=(4, 1, 1), opening=opening
    )
    order = list(plan.order())
    rows, cols, _ = plan.grid
    assert sorted(order) == sorted(itertools.product(range(rows), range(cols)))
    outer = [tile[stationary == "b"] for tile in order]
    others = rows if stationary == "b" else cols
    first = 3 if opening == 0 else opening
    # The panels that stay first meet all others before the next one comes.
    assert set(outer[: first * others]) == set(range(first))


def test_copies_hide_behind_an_opening():
    plan = DevicePlan(
        square(65_536, np.dtype("f2")),
        "float32",
        "panels",
        8192,
        16_384,
        65_536,
        2,
        (3, 4),
        "b",
        strips=8,
        ramps=(8, 1, 1),
    )  # fmt: skip
    rates = Rates(700e12, 680e12, 53e9, 49e9, lines=LINES)
    usual, opened = (simulate(dataclasses.replace(plan, opening=n), rates)[0] for n in (0, 1))
    assert opened.exposed_share < 0.08 < usual.exposed_share
    assert opened.seconds < 0.9 * usual.seconds


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("refusing", ["posix_fallocate", "pwrite"])
def test_a_disk_without_room_for_the_probe_is_taken_as_usual(refusing, number, tmp_path, monkeypatch):
    failing(monkeypatch, refusing, number)
    assert disk_probe.write_rate(str(tmp_path), 1 << 40, 2, Probe(4096)) == USUAL


def test_a_disk_that_fails_is_told(tmp_path, monkeypatch):
    failing(monkeypatch, "pwrite", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        disk_probe.write_rate(str(tmp_path), 1 << 40, 2, Probe(4096))


@pytest.mark.parametrize(
    ("dtype", "size", "memory", "predicted", "measured"),
    [
        (F4, 20_000, 100 << 30, 53.7e12, 51.7e12),
        (F4, 40_000, 8 << 30, 53.7e12, 51.7e12),
        (F8, 40_000, 8 << 30, 53.1e12, 48.9e12),
    ],
)
def test_plans_of_predicted_kernels_and_usual_staging_are_no_slower(dtype, size, memory, predicted, measured):
    """As on an H200, by records, whose hosts stage at up to 50 GB/s."""

    def rates(compute, source):
        found = Rates(compute, compute, 50e9, 50e9, half=64, launch=2e-4, lines=LINES, side=4096, depth=2048)
        return dataclasses.replace(usual_staging(found), source=source, sink=source)

    stated, true = rates(predicted, 42e9), rates(measured, 50e9)
    both = [choose_plan(square(size, dtype), dtype, memory, one).plan for one in (stated, true)]
    first, best = (expected(plan, true, 1).seconds for plan in both)
    assert first < 1.02 * best
