"""A stand-in for the driver that writes down launches and tensor maps."""

from __future__ import annotations

import ctypes
import enum
import time
import types

import pytest

from gemmule.core.dtype import BFLOAT16, FLOAT32
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
