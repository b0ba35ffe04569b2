"""Launches that are packed once: what the driver is handed at each call, without a driver."""

from __future__ import annotations

import dataclasses
import threading
import types

import pytest

from gemmule.core.errors import DriverError
from gemmule.runtime import direct
from support.fakes.cuda import Result
from support.fakes.driver import FUNCTION, LAUNCH, OPERANDS, FakeDriver, expected, made

__all__ = ["made"]


@pytest.mark.parametrize("derived", [False, True])
def test_addresses_and_stream_of_every_call(made, derived):
    fake = FakeDriver(derived=derived)
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
    assert fake.seen == [expected(*call, derived) for call in calls]
    # The driver is asked where more than a word depends on the address, and only where that changed.
    assert fake.replaced == ([0x1130, 0x1030, 2**48 - 16] if derived else [])


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
    fake, moved = FakeDriver(derived=True), (1 << 15, 1 << 13, 1 << 14)
    launch = made(fake)
    fake.context = 0
    launch(moved, 4)
    assert fake.entered == [0]
    assert fake.replaced == [moved[0] + 48]
    assert fake.seen == [expected(moved, 4, derived=True)]


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
