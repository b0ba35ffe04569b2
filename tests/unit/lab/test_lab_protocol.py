"""The arithmetic of the protocol, and its use: buffers, calls, rounds, turns, ratios."""

from __future__ import annotations

import math
import statistics

import pytest

from gemmule.lab import protocol
from gemmule.lab.timing import load, measure
from support.fakes.bench import FakeDevice, FakeWork

MIB = 1 << 20


@pytest.mark.parametrize(
    ("set_bytes", "sets"),
    [(150 * MIB, 1), (151 * MIB, 1), (149 * MIB, 2), (50 * MIB, 3), (1 * MIB, 150), (1000, protocol.MAX_SETS)],
)
def test_buffers_hold_three_caches_unless_one_set_does(set_bytes, sets):
    assert protocol.buffer_sets(set_bytes, 50 * MIB) == sets


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("sets", [1, 3, 150, 2048])
@pytest.mark.parametrize("seconds", [0.0, 2e-6, 7e-5, 299e-6, 4e-3, 1.3])
def test_a_sample_is_long_enough_and_a_graph_goes_round_all_buffers(seconds, sets, graph):
    calls = protocol.calls_for(seconds, sets, graph=graph)
    if graph:
        assert calls >= sets
        assert calls % sets == 0
    long_enough = calls * seconds >= protocol.SAMPLE_SECONDS
    assert long_enough or calls >= protocol.MAX_CALLS
    if seconds > protocol.SAMPLE_SECONDS and not graph:
        assert calls == 1


def test_rounds_stay_within_the_budget_but_there_are_enough():
    assert protocol.rounds_for(0.02, 1.0) == protocol.MAX_ROUNDS
    assert protocol.rounds_for(0.1, 1.0) == 10
    assert protocol.rounds_for(5.0, 1.0) == protocol.MIN_ROUNDS
    assert 2 * protocol.MIN_ROUNDS >= 3  # samples of each work


def test_turns_are_a_b_b_a():
    assert protocol.turns(2) == [0, 1, 1, 0]
    assert protocol.turns(3) == [0, 1, 2, 2, 1, 0]


def test_ratios_are_paired_and_have_a_spread():
    ours, theirs = [1.0, 2.0, 4.0, 1.0, 2.0], [1.0, 2.0, 4.0, 2.0, 1.0]
    ratios = protocol.paired_ratios(ours, theirs)
    assert ratios.median == 1.0
    assert (ratios.low, ratios.high) == pytest.approx((0.7, 1.6))
    drifting = [1.0 + 0.1 * step for step in range(10)]
    same = protocol.paired_ratios(drifting, [0.9 * value for value in drifting])
    assert (same.low, same.high) == pytest.approx((0.9, 0.9))  # a drift that meets both does not show


class Nothing:
    """Operands that nobody reads."""

    sets, outputs = 4, [[]] * 4

    def product(self):
        return []


def work(name, device):
    return FakeWork(name, Nothing(), device.clock(name), lambda *_: None)


def test_samples_are_taken_in_turns_in_whole_rounds():
    device = FakeDevice({"a": 1e-3, "b": 2e-3})
    timing = measure(device, [work("a", device), work("b", device)], sets=4, budget=1.0)
    assert timing.method == "events"
    assert timing.calls == (5, 3)
    assert [len(samples) for samples in timing.samples] == [2 * protocol.MAX_ROUNDS] * 2
    rounds = [name for name, _, _ in device.log][-4 * protocol.MAX_ROUNDS :]
    assert rounds == ["a", "b", "b", "a"] * protocol.MAX_ROUNDS
    assert timing.readings["clock_mhz"] == 1700


def test_short_work_is_timed_as_graphs_and_so_is_what_it_is_compared_with():
    device = FakeDevice({"a": 20e-6, "b": 2e-3})
    timing = measure(device, [work("a", device), work("b", device)], sets=7, budget=0.5)
    assert timing.method == "graph"
    assert timing.calls == (math.ceil(250 / 7) * 7, 7)
    assert all(graph for name, calls, graph in device.log if calls > 1)


def test_slow_work_takes_its_fewest_rounds_and_no_more():
    device = FakeDevice({"naive": 1.2, "best": 8e-3})
    timing = measure(device, [work("naive", device), work("best", device)], sets=1, budget=1.0)
    assert [len(samples) for samples in timing.samples] == [4, 4]
    assert statistics.median(timing.samples[0]) == 1.2
    # One to estimate it, one to warm up, four samples.
    assert sum(name == "naive" for name, _, _ in device.log) == 6


def test_a_drifting_clock_does_not_change_paired_ratios():
    now = [0.0]

    def slower(base):
        def seconds():
            now[0] += 1
            return base * (1 + 0.002 * now[0])

        return seconds

    device = FakeDevice({"a": slower(1e-3), "b": slower(2e-3)})
    timing = measure(device, [work("a", device), work("b", device)], sets=1, budget=1.0)
    ratios = protocol.paired_ratios(*timing.samples)
    assert ratios.median == pytest.approx(2.0, rel=3e-3)
    assert statistics.median(timing.samples[0]) > 1.05e-3


def test_load_lasts_as_long_as_asked():
    device = FakeDevice({"a": 1e-3})
    load(device, [work("a", device)], 3.0)
    spent = sum(calls * 1e-3 for _, calls, _ in device.log)
    assert 3.0 <= spent < 3.1
