"""Launches that are packed once: what the driver is handed at each call, without a driver."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import threading
import time
import types

import pytest

from gemmule.core.dtype import BFLOAT16, FLOAT32
from gemmule.core.errors import DriverError
from gemmule.core.launch import ExtentsParam, Launch, ScalarParam, TensorMapParam, TensorParam
from gemmule.runtime import direct, driver

FUNCTION = 0xF00
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


def map_of(address):
    return address.to_bytes(8, "little") + bytes(range(120))


class Result(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_LAUNCH_FAILED = 719


class FakeDriver:
    """The driver's functions: what they are handed is read from memory, after a while."""

    CUresult = Result

    def __init__(self, wait=0.0, statuses=()):
        self.wait, self.statuses = wait, list(statuses)
        self.seen, self.replaced = [], []

    def cuLaunchKernelEx(self, config, function, params, extra):
        time.sleep(self.wait)
        assert (function, extra) == (FUNCTION, 0)
        addresses = (ctypes.c_uint64 * len(LAUNCH.params)).from_address(params)
        values = [
            ctypes.string_at(address, param.size) for address, param in zip(addresses, LAUNCH.params, strict=True)
        ]
        self.seen.append((config.hStream, values))
        return (self.statuses.pop(0) if self.statuses else Result.CUDA_SUCCESS,)

    def cuGetErrorString(self, status):
        return Result.CUDA_SUCCESS, b"fake"

    def map_at(self, place):
        assert place % 64 == 0, "the driver takes tensor maps at multiples of 64 bytes"
        return place

    def move(self, tensor_map, address):
        self.replaced.append(address)
        ctypes.memmove(tensor_map, address.to_bytes(8, "little"), 8)


def expected(addresses, stream):
    given = dict(zip(OPERANDS, addresses, strict=True))
    values = [
        map_of(given[param.operand]) if isinstance(param, TensorMapParam) else param.pack(given)
        for param in LAUNCH.params
    ]
    return stream, values


@pytest.fixture
def made(monkeypatch):
    """Return what makes a launch for a driver."""
    monkeypatch.setattr(direct, "encoded", lambda param, address: map_of(address))

    def make(fake, first=(0x1000, 0x2000, 0x3000)):
        monkeypatch.setattr(direct, "driver", lambda: fake)
        monkeypatch.setattr(driver, "driver", lambda: fake)
        monkeypatch.setattr(direct, "map_at", fake.map_at)
        monkeypatch.setattr(direct, "move", fake.move)
        config = types.SimpleNamespace
        return direct.DirectLaunch(direct.packed("kernel", 0, FUNCTION, config, LAUNCH, OPERANDS, first)).queue

    return make


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


@pytest.fixture
def entered(monkeypatch):
    """The contexts that were made current."""
    entered = []

    @contextlib.contextmanager
    def current(ordinal):
        entered.append(ordinal)
        yield

    monkeypatch.setattr(direct, "current", current)
    return entered


AT = (1 << 12, 1 << 13, 1 << 14)


@pytest.mark.parametrize("status", [Result.CUDA_ERROR_INVALID_CONTEXT, Result.CUDA_ERROR_INVALID_HANDLE])
def test_the_kernels_context_is_made_current_where_another_one_is(made, entered, status):
    fake = FakeDriver(statuses=[status])
    launch = made(fake)
    launch(AT, 4)
    assert entered == [0]
    assert fake.seen == [expected(AT, 4)] * 2
    launch(AT, 5)
    assert entered == [0]
    fake.statuses = [status] * 2
    with pytest.raises(DriverError, match=f"cuLaunchKernelEx failed with {status.name}: fake"):
        launch(AT, 6)


def test_a_launch_that_the_driver_refuses(made, entered):
    fake = FakeDriver(statuses=[Result.CUDA_ERROR_LAUNCH_FAILED] * 2)
    launch = made(fake)
    for _ in range(2):
        with pytest.raises(DriverError, match="cuLaunchKernelEx failed with CUDA_ERROR_LAUNCH_FAILED: fake"):
            launch(AT, 0)
    launch(AT, 3)
    assert fake.seen[-1] == expected(AT, 3)
    assert len(fake.seen) == 3
    assert not entered
