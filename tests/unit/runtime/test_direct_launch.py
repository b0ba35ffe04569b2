"""Launches that are packed once: what the driver is handed at each call, without a driver."""

from __future__ import annotations

import dataclasses
import gc
import threading
import types

import pytest

from gemmule.core.errors import DriverError
from gemmule.runtime import direct
from support.fakes.cuda import Result
from support.fakes.driver import FUNCTION, LAUNCH, OPERANDS, FakeDriver, expected, made

__all__ = ["made"]


def test_addresses_and_stream_of_every_call(made):
    fake = FakeDriver()
    launch = made(fake)
    calls = [
        ((0x1000, 0x2000, 0x3000), 5),
        ((0x1000, 0x2000, 0x3000), 6),
        ((0x1100, 0x2000, 0x3000), 0),
        ((0x1100, 0x2200, 0x3300), 2**63 + 1),
        ((0x1000, 0x2000, 0x3000), 5),
        ((2**48 - 64, 2**48 - 32, 2**48 - 16), 1),
    ]
    for addresses, stream in calls:
        launch(addresses, stream)
    assert fake.seen == [expected(*call) for call in calls]
    # A map is told an address only where that changed.
    assert fake.replaced == [0x1100, 0x1000, 2**48 - 64]


def test_addresses_that_come_again_move_no_map(made, monkeypatch):
    monkeypatch.setattr(direct, "MOST_FRAMES", 6)
    fake = FakeDriver()
    launch = made(fake)
    # The frame in use, and the first call's.
    layers = [((0x1000 * layer, 0x20000 * layer, 0x300000), 7) for layer in range(2, 8)]
    for _ in range(3):
        for call in layers:
            launch(*call)
    assert fake.seen == [expected(*call) for call in 3 * layers]
    # Each has a frame of its own once it comes again, the last one that of the first pass.
    assert fake.replaced == (2 * [call[0][0] for call in layers])[:-1]
    # With one more there is one that moves at a time; the others stay.
    layers.append(((0x99000, 0x20000, 0x300000), 7))
    before = len(fake.replaced)
    for _ in range(4):
        for call in layers:
            launch(*call)
    assert fake.seen[-len(layers) :] == [expected(*call) for call in layers]
    assert len(fake.replaced) - before <= 2 * 4


def test_launches_that_are_gone_make_room_for_frames_of_others(made, monkeypatch):
    monkeypatch.setattr(direct, "MOST_IN_ALL", direct.FRAMES_KEPT[0] + 2)
    for _ in range(3):
        fake = FakeDriver()
        launch = made(fake)
        for _ in range(3):
            for layer in range(2, 5):
                launch((0x1000 * layer, 0x20000, 0x300000), 7)
        # The frame in use, and two others, since they came again.
        assert len(fake.replaced) == 2 * 3 - 1
        del launch, fake
        gc.collect()


def test_addresses_that_do_not_come_again_make_room(made, monkeypatch):
    monkeypatch.setattr(direct, "MOST_FRAMES", 6)
    fake = FakeDriver()
    launch = made(fake)
    # As of a warm-up, whose activations are gone.
    for passing in range(2, 20):
        launch((0x1000 * passing, 0x20000, 0x300000), 7)
    layers = [((0x1000 * layer, 0x20000, 0x300000), 7) for layer in range(0x100, 0x104)]
    for _ in range(4 * direct.MISSES_PER_EVICTION):
        for call in layers:
            launch(*call)
    before = len(fake.replaced)
    for _ in range(3):
        for call in layers:
            launch(*call)
    assert len(fake.replaced) == before
    assert fake.seen[-4:] == [expected(*call) for call in layers]


def test_frames_of_launches_that_are_idle_make_room_for_others(made, monkeypatch):
    gc.collect()
    monkeypatch.setattr(direct, "MOST_IN_ALL", direct.FRAMES_KEPT[0] + 8)
    idle, fake = made(FakeDriver()), FakeDriver()
    for _ in range(2):
        for passing in range(2, 20):
            idle((0x1000 * passing, 0x20000, 0x300000), 7)
    layers = [((0x1000 * layer, 0x20000, 0x300000), 7) for layer in range(2, 6)]
    kept, launch = direct.FRAMES_KEPT[0], made(fake)
    for _ in range(4 * direct.MISSES_PER_EVICTION):
        for call in layers:
            launch(*call)
    before = len(fake.replaced)
    for call in layers:
        launch(*call)
    assert len(fake.replaced) == before
    assert direct.FRAMES_KEPT[0] == kept


def test_addresses_that_never_come_again_are_given_no_frame(made, monkeypatch):
    """As of training beside other work: each step's activations and gradients lie elsewhere."""
    gc.collect()
    monkeypatch.setattr(direct, "MOST_SEEN", 8)
    before, fake = direct.FRAMES_KEPT[0], FakeDriver()
    launch = made(fake)
    calls = [((0x1000 * passing, 0x20000, 0x300000), 7) for passing in range(2, 40)]
    for call in calls:
        launch(*call)
    assert fake.seen == [expected(*call) for call in calls]
    assert direct.FRAMES_KEPT[0] == before
    assert len(launch.direct._seen) <= 8


def test_frames_are_counted_once(made):
    gc.collect()
    before = direct.FRAMES_KEPT[0]
    launch = made(FakeDriver())
    for _ in range(3):
        for layer in range(2, 5):
            launch((0x1000 * layer, 0x20000, 0x300000), 7)
            assert direct.FRAMES_KEPT[0] - before <= 2
    # All but the one in use.
    assert direct.FRAMES_KEPT[0] - before == 2
    # Two calls at the same time have a frame each, with the same addresses.
    both = launch.direct.take(), launch.direct.frame()
    for frame, at in zip(both, (0x5000, 0x6000), strict=True):
        direct.point(frame, (0x7000, 0x20000, 0x300000))
        launch.direct._comes_again((at, 0x20000, 0x300000))
        launch.direct.give(launch.direct.pointed(frame, (at, 0x20000, 0x300000)))
    assert direct.FRAMES_KEPT[0] - before == 3
    del launch, both, frame
    gc.collect()
    assert direct.FRAMES_KEPT[0] == before


def test_threads_do_not_write_into_one_another(made):
    fake = FakeDriver(wait=0.001)
    launch = made(fake)
    calls = [((0x1000 * i, 0x200000 * i, 0x30000000 * i), i) for i in range(1, 9)]

    def repeat(call):
        for _ in range(20):
            launch(*call)

    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    key = str
    assert sorted(fake.seen, key=key) == sorted((expected(*call) for call in calls for _ in range(20)), key=key)


AT = (1 << 12, 1 << 13, 1 << 14)


@pytest.mark.parametrize("status", [Result.CUDA_ERROR_INVALID_CONTEXT, Result.CUDA_ERROR_INVALID_HANDLE])
def test_the_kernels_context_is_made_current_where_another_one_is(made, status):
    fake = FakeDriver(statuses=[status])
    fake.context = 0
    launch = made(fake)
    launch(AT, 4)
    assert fake.entered == [0]
    assert fake.seen == [expected(AT, 4)] * 2
    launch(AT, 5)
    assert fake.entered == [0]
    fake.statuses = [status] * 2
    with pytest.raises(DriverError, match=f"cuLaunchKernelEx failed with {status.name}: fake"):
        launch(AT, 6)


def test_maps_move_in_a_thread_without_a_context(made):
    """As in a backward of PyTorch's, whose thread has called nothing of CUDA yet."""
    fake, moved = FakeDriver(), (1 << 15, 1 << 13, 1 << 14)
    launch = made(fake)
    fake.context = 0
    launch(moved, 4)
    assert fake.entered == [0]
    assert fake.replaced == [moved[0]]
    assert fake.seen == [expected(moved, 4)]


def test_a_launch_that_the_driver_refuses(made):
    fake = FakeDriver(statuses=[Result.CUDA_ERROR_LAUNCH_FAILED] * 2)
    launch = made(fake)
    for _ in range(2):
        with pytest.raises(DriverError, match="cuLaunchKernelEx failed with CUDA_ERROR_LAUNCH_FAILED: fake"):
            launch(AT, 0)
    launch(AT, 3)
    assert fake.seen[-1] == expected(AT, 3)
    assert len(fake.seen) == 3
    assert not fake.entered


def test_a_serial_launch_is_the_same_without_pdl(made):
    fake = FakeDriver()
    made(fake)
    kernel = types.SimpleNamespace(
        ordinal=0, function=FUNCTION, allow=lambda _: None, artifact=types.SimpleNamespace(kernel="kernel"),
        config=lambda launch, stream: types.SimpleNamespace(overlaps=launch.overlaps, hStream=stream),
    )  # fmt: skip
    addresses = (0x1000, 0x2000, 0x3000)
    dependent = dataclasses.replace(LAUNCH, overlaps=True)
    launches = [direct.direct_launch(kernel, launch, OPERANDS, addresses) for launch in (dependent, LAUNCH)]
    serial = direct.serial_queue(launches[0].queue)
    for queue, overlaps in ((launches[0].queue, True), (serial, False), (launches[1].queue, False)):
        frame = queue.direct.take()
        assert frame.config.overlaps is overlaps
        queue.direct.give(frame)
        queue(addresses, 5)
    assert fake.seen == [expected(addresses, 5)] * 3
    # One that is serial as it is, and what is no single launch.
    assert direct.serial_queue(launches[1].queue) is launches[1].queue
    assert direct.serial_queue(print) is print
