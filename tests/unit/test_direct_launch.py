"""Launches that are packed once: what the driver is handed at each call, without a driver."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time

import pytest

from gemmule.core.dtype import BFLOAT16, FLOAT32
from gemmule.core.errors import DriverError
from gemmule.core.launch import ExtentsParam, Launch, ScalarParam, TensorMapParam, TensorParam
from gemmule.runtime import direct

CONTEXT, FUNCTION = 0x7E57, 0xF00
OPERANDS = ("a", "b", "d")
LAUNCH = Launch(
    grid=(3, 2, 1),
    block=(128, 1, 1),
    params=(
        TensorParam("d", (5, 7), (7,)),
        TensorMapParam("a", BFLOAT16, (64, 64), (128,), (64, 64), 128),
        ScalarParam("alpha", FLOAT32, 2.5),
        ExtentsParam("a", (64, 64, 1)),
        TensorParam("b", (), ()),
    ),
)
# A configuration of 7 words; the stream is the fifth.
CONFIG = b"".join(word.to_bytes(8, "little") for word in (11, 12, 13, 14, 15, 16, 17))


def map_of(address):
    return address.to_bytes(8, "little") + bytes(range(120))


class FakeDriver:
    """The driver's functions: what they are handed is read from memory, after a while."""

    def __init__(self, context=CONTEXT, wait=0.0, status=0):
        self.context, self.wait, self.status = context, wait, status
        self.seen, self.replaced = [], []

    def launch(self, config, function, params, extra):
        time.sleep(self.wait)
        assert (function.value, extra) == (FUNCTION, None)
        addresses = (ctypes.c_uint64 * len(LAUNCH.params)).from_address(params.value)
        values = [
            ctypes.string_at(address, param.size) for address, param in zip(addresses, LAUNCH.params, strict=True)
        ]
        self.seen.append((ctypes.string_at(config.value, len(CONFIG)), values))
        return self.status

    def replace_address(self, place, address):
        assert place.value % 64 == 0, "the driver takes tensor maps at multiples of 64 bytes"
        self.replaced.append(address)
        ctypes.memmove(place.value, address.to_bytes(8, "little"), 8)
        return 0

    def current_context(self, place):
        ctypes.memmove(place.value, self.context.to_bytes(8, "little"), 8)
        return 0


def expected(addresses, stream):
    given = dict(zip(OPERANDS, addresses, strict=True))
    values = [
        map_of(given[param.operand]) if isinstance(param, TensorMapParam) else param.pack(given)
        for param in LAUNCH.params
    ]
    return CONFIG[:32] + stream.to_bytes(8, "little") + CONFIG[40:], values


@pytest.fixture
def made(monkeypatch):
    """Return what makes a launch for a driver."""
    monkeypatch.setattr(direct, "encoded", lambda param, address: map_of(address))

    def make(driver, first=(0x1000, 0x2000, 0x3000)):
        what = direct.packed("kernel", 0, FUNCTION, CONFIG, LAUNCH, OPERANDS, first)
        return direct.DirectLaunch(what, driver, CONTEXT)

    return make


def test_addresses_and_stream_of_every_call(made):
    driver = FakeDriver()
    launch = made(driver)
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
    assert driver.seen == [expected(*call) for call in calls]
    # A map is told an address only where that changed.
    assert driver.replaced == [0x1100, 0x1000, 2**48 - 64]


def test_threads_do_not_write_into_one_another(made):
    driver = FakeDriver(wait=0.001)
    launch = made(driver)
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
    assert sorted(driver.seen, key=key) == sorted((expected(*call) for call in calls for _ in range(20)), key=key)


def test_the_kernels_context_is_made_current_where_another_one_is(made, monkeypatch):
    entered = []

    @contextlib.contextmanager
    def current(ordinal):
        entered.append(ordinal)
        yield

    monkeypatch.setattr(direct, "current", current)
    made(FakeDriver())((1 << 12, 1 << 13, 1 << 14), 0)
    assert entered == []
    other = FakeDriver(context=CONTEXT + 1)
    made(other)((1 << 12, 1 << 13, 1 << 14), 0)
    assert entered == [0]
    assert other.seen == [expected((1 << 12, 1 << 13, 1 << 14), 0)]


def test_a_launch_that_the_driver_refuses(made, monkeypatch):
    def check(name, status):
        raise DriverError(name, str(status), "fake")

    monkeypatch.setattr(direct, "check", check)
    driver = FakeDriver(status=700)
    launch = made(driver)
    for _ in range(2):
        with pytest.raises(DriverError, match="cuLaunchKernelEx failed with 700"):
            launch((1 << 12, 1 << 13, 1 << 14), 0)
    driver.status = 0
    launch((1 << 12, 1 << 13, 1 << 14), 3)
    assert driver.seen[-1] == expected((1 << 12, 1 << 13, 1 << 14), 3)
