"""A product shared by several devices: every tile once, the same bits, and all stop when one fails."""

from __future__ import annotations

import contextlib
import dataclasses
import threading

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.errors import ArgumentError
from gemmule.host.streams import HostStreams
from gemmule.outofcore.calls import device_engine, session
from gemmule.outofcore.device.engine import multi_gpu
from gemmule.outofcore.device.engine.multi_gpu import shares, stream_on_devices
from gemmule.outofcore.device.engine.streaming import Tracking, stream_product
from gemmule.outofcore.device.planner.choice import Scope, choose_plan
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.device.planner.shares import largest_share
from gemmule.outofcore.stores.arrays import ArraySink, ArraySource
from gemmule.outofcore.tiles.plan import Operand, Product
from support.outofcore.stream_plans import RATES, SMALL, STRATEGIES, matrix, planned, shuffled


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_tile_belongs_to_one_device(strategy, count):
    plan = planned((300, 280, 70), "f4", strategy).plan
    done = set(list(plan.order())[::5])
    parts = shares(plan, count, done)
    assert len(parts) == count
    assert sum(map(len, parts)) == len(set().union(*parts)) == plan.tiles - len(done)
    assert set().union(*parts) == set(plan.order()) - done


def test_shares_are_as_even_as_tiles_allow():
    plan = planned((1000, 900, 10), "f4", "c-stationary", memory=2).plan
    areas = [
        sum((plan.rows(i).stop - plan.rows(i).start) * (plan.cols(j).stop - plan.cols(j).start) for i, j in share)
        for share in shares(plan, 3)
    ]
    assert max(areas) - min(areas) <= 2 * plan.tile_m * plan.tile_n
    assert sum(areas) == 900_000


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("count", [2, 3])
def test_the_same_bits_as_from_one_device(strategy, direct, count):
    chosen = planned((197, 161, 103), "f4", strategy, c="f4")
    rng = np.random.default_rng()
    a, b, c = (rng.standard_normal(shape).astype("f4") for shape in ((197, 103), (103, 161), (197, 161)))
    results = []
    for number in (1, count):
        out = np.full((197, 161), np.nan, "f4")
        sources = {"a": ArraySource(a), "b": ArraySource(b), "c": ArraySource(c)}
        far = []
        with contextlib.ExitStack() as stack:
            devices = [
                stack.enter_context(HostStreams(shuffled(n), pinned_arrays=direct, whole=(32, 16, 24)))
                for n in range(number)
            ]
            ran = stream_on_devices(
                chosen.plan,
                sources,
                ArraySink(out),
                devices,
                alpha=3,
                beta=-2,
                settings=SMALL,
                tracking=Tracking(progress=far.append),
            )
            assert sum(device.moved["copy_out"] for device in devices) == out.nbytes == ran.bytes_out
            assert sum(device.moved["copy_in"] for device in devices) == ran.bytes_in
            if chosen.plan.tiles >= number:
                assert all(device.moved["copy_out"] for device in devices)
        assert ran.tiles == chosen.plan.tiles
        assert ran.flop == 2 * 197 * 161 * 103
        assert (far[-1].flop_done, far[-1].flop) == (ran.flop, ran.flop)
        assert far[-1].tiles == chosen.plan.tiles
        results.append(out)
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(results[0], 3.0 * a.astype("f8") @ b - 2.0 * c, rtol=0, atol=1e-3)


def test_a_matrix_times_its_own_transpose():
    chosen = planned((150, 150, 60), "f4", "c-stationary", symmetric=True, orders="CF")
    a, out = matrix((150, 60), "f4", 3), np.full((150, 150), np.nan, "f4")
    with HostStreams(shuffled()) as first, HostStreams(shuffled(1)) as second:
        sources = {"a": ArraySource(a), "b": ArraySource(a.T)}
        stream_on_devices(chosen.plan, sources, ArraySink(out), [first, second], settings=SMALL)
    np.testing.assert_array_equal(out, a @ a.T)


def test_a_device_without_tiles_is_left_alone():
    chosen = planned((16, 16, 8), "f4", "c-stationary")
    a, b, out = matrix((16, 8), "f4", 0), matrix((8, 16), "f4", 1), np.full((16, 16), np.nan, "f4")
    with HostStreams() as first, HostStreams() as second:
        sources = {"a": ArraySource(a), "b": ArraySource(b)}
        done = set(chosen.plan.order())
        stream_on_devices(
            chosen.plan, sources, ArraySink(out), [first, second], settings=SMALL, tracking=Tracking(done)
        )
        assert first.moved == second.moved == {"copy_in": 0, "copy_out": 0}


class Broken(HostStreams):
    """A device that fails at its third product."""

    count = 0

    def multiply(self, *arguments, **named):
        self.count += 1
        if self.count == 3:
            raise RuntimeError("the second device is broken")
        super().multiply(*arguments, **named)


@pytest.mark.parametrize("direct", [True, False])
def test_when_a_device_fails_the_others_stop(direct):
    chosen = planned((400, 400, 40), "f4", "c-stationary", memory=2)
    a, b = matrix((400, 40), "f4", 0), matrix((40, 400), "f4", 1)
    out = np.full((400, 400), np.nan, "f4")
    threads = threading.active_count()
    with HostStreams(lambda *_: 2e-3, pinned_arrays=direct) as first, Broken(pinned_arrays=direct) as second:
        with pytest.raises(RuntimeError, match="the second device is broken"):
            stream_on_devices(
                chosen.plan, {"a": ArraySource(a), "b": ArraySource(b)}, ArraySink(out), [first, second], settings=SMALL
            )
        moved = first.moved["copy_out"]
    assert moved < 400 * 400 * 4 / 2
    assert threading.active_count() == threads


def test_what_failed_first_is_told(monkeypatch):
    """Of two devices that fail, whichever comes first in the list."""
    chosen = planned((400, 400, 40), "f4", "c-stationary", memory=2)
    a, b = matrix((400, 40), "f4", 0), matrix((40, 400), "f4", 1)
    second_failed, failed = threading.Event(), multi_gpu._JointProgress.failed

    class First(HostStreams):
        def multiply(self, *arguments, **named):
            assert second_failed.wait(60)
            raise RuntimeError("the first device is broken too")

    def noted(self, error):
        failed(self, error)
        second_failed.set()

    monkeypatch.setattr(multi_gpu._JointProgress, "failed", noted)
    sources = {"a": ArraySource(a), "b": ArraySource(b)}
    with First() as first, Broken() as second, pytest.raises(RuntimeError, match="the second device is broken"):
        stream_on_devices(chosen.plan, sources, ArraySink(np.empty((400, 400), "f4")), [first, second], settings=SMALL)


@pytest.mark.parametrize("strategy", [None, "panels"])
@pytest.mark.parametrize("count", [2, 3])
def test_what_is_predicted_is_what_moves(strategy, count):
    product = planned((300, 200, 100), "f4", "c-stationary").plan.product
    chosen = choose_plan(product, np.dtype("f4"), 80_000, RATES, strategy=strategy, scope=Scope(count))
    assert chosen.plan.product == product
    assert chosen.plan.device_bytes <= 80_000
    a, b, out = matrix((300, 100), "f4", 0), matrix((100, 200), "f4", 1), np.full((300, 200), np.nan, "f4")
    with contextlib.ExitStack() as stack:
        devices = [stack.enter_context(HostStreams()) for _ in range(count)]
        sources = {"a": ArraySource(a), "b": ArraySource(b)}
        ran = stream_on_devices(chosen.plan, sources, ArraySink(out), devices, settings=SMALL)
        assert all(device.allocated <= 80_000 for device in devices)
    told = chosen.prediction
    assert (ran.bytes_in, ran.bytes_out, ran.flop) == (told.bytes_in, told.bytes_out, told.flop)
    np.testing.assert_array_equal(out, a @ b)


def test_two_devices_are_expected_to_take_half_the_time():
    product = planned((1024, 1024, 1024), "f4", "five-buffers", memory=400).plan.product
    one, two = (choose_plan(product, np.dtype("f4"), 8_000_000, RATES, scope=Scope(count)) for count in (1, 2))
    assert one.prediction == choose_plan(product, np.dtype("f4"), 8_000_000, RATES).prediction
    assert 0.45 < two.prediction.seconds / one.prediction.seconds < 0.6


@pytest.fixture
def two_gpus(monkeypatch):
    """Two GPUs that are made of host memory and threads."""
    opened = []

    @contextlib.contextmanager
    def open_streams(name, precision, ordinal=0):
        with HostStreams() as device:
            opened.append(ordinal)
            yield device

    monkeypatch.setattr(device_engine, "open_streams", open_streams)
    monkeypatch.setattr(device_engine, "device_memory", lambda name, ordinals: 100_000)
    monkeypatch.setattr(device_engine, "accumulator_dtype", lambda name, a, b, out: out)
    monkeypatch.setattr(device_engine, "measured_rates", lambda *_: RATES)
    monkeypatch.setattr(session, "host_arrays_executor", lambda *_: ("gpu", "executor='gpu' is set"))
    monkeypatch.setattr("gemmule.runtime.device.device_count", lambda: 2)
    return opened


def test_files_through_two_gpus(two_gpus, tmp_path):
    a, b = matrix((300, 100), "f4", 0), matrix((100, 200), "f4", 1)
    np.save(tmp_path / "a.npy", a), np.save(tmp_path / "b.npy", b)
    names = [str(tmp_path / name) for name in ("a.npy", "b.npy", "c.npy")]
    report = gm.outofcore.matmul(*names, devices=[1, 0], verify=True)
    np.testing.assert_array_equal(np.load(names[2]), a @ b)
    assert report.device.startswith("2 x ")
    assert set(two_gpus) == {0, 1}


@pytest.mark.parametrize(
    ("devices", "rule"),
    [
        ([], "are no numbers of GPUs"),
        *(([*some], "must be numbers of GPUs from 0 to 1, each once") for some in ((0, 0), (2,), (-1, 0))),
    ],
)
def test_gpus_that_are_not_there(two_gpus, devices, rule):
    a = np.ones((4, 4), "f4")
    with pytest.raises(ArgumentError, match=rule):
        gm.outofcore.matmul(a, a, np.empty((4, 4), "f4"), devices=devices)


def test_gpus_of_two_kinds(two_gpus, monkeypatch):
    names = iter(["NVIDIA A", "NVIDIA B"])
    monkeypatch.setattr(HostStreams, "describe", lambda self: next(names))
    a = np.ones((4, 4), "f4")
    with pytest.raises(ArgumentError, match="device 0 is NVIDIA A and device 1 is NVIDIA B"):
        gm.outofcore.matmul(a, a, np.empty((4, 4), "f4"), devices=[0, 1])


def test_the_host_has_no_devices():
    a = np.ones((4, 4), "f4")
    with pytest.raises(ArgumentError, match=r"devices=\[0\] names GPUs, and this product runs on the CPU"):
        gm.outofcore.matmul(a, a, np.empty((4, 4), "f4"), devices=[0], executor="cpu")


def test_one_device_is_as_without(monkeypatch):
    """The engine of one device is called as it is: nothing is told that nobody asked for."""
    chosen = planned((64, 64, 64), "f4", "c-stationary")
    a, b = matrix((64, 64), "f4", 0), matrix((64, 64), "f4", 1)
    sources = {"a": ArraySource(a), "b": ArraySource(b)}
    both = []
    for stream in (
        lambda device, out: stream_product(chosen.plan, sources, ArraySink(out), device),
        lambda device, out: stream_on_devices(chosen.plan, sources, ArraySink(out), [device]),
    ):
        out = np.full((64, 64), np.nan, "f4")
        with HostStreams() as device:
            ran = stream(device, out)
        both.append({transfer.stream for transfer in ran.activity})
        np.testing.assert_array_equal(out, a @ b)
    assert both[0] == both[1]
    assert dataclasses.is_dataclass(ran)


@pytest.mark.parametrize(
    ("count", "share"),
    [
        pytest.param(2, 0.51, marks=pytest.mark.slow),
        pytest.param(3, 0.35, marks=pytest.mark.slow),
        pytest.param(4, 0.26, marks=pytest.mark.slow),
    ],
)
def test_several_devices_have_equal_shares(count, share):
    rates = Rates(47e12, 47e12, 50e9, 50e9)
    whole = Operand(np.dtype("f8"))
    wanted = Product(40_000, 40_000, 40_000, whole, whole, whole)
    chosen = choose_plan(wanted, np.dtype("f8"), 8 << 30, rates, scope=Scope(count))
    assert 1 / count <= largest_share(chosen.plan, count) < share
    assert chosen.prediction.seconds < 1.04 * 2 * 40_000**3 / 47e12 / count
