"""A stand-in for the driver that writes down launches and tensor maps."""

from __future__ import annotations

import contextlib
import ctypes
import time
import types

import pytest

from gemmule.core.dtype import BFLOAT16, FLOAT32
from gemmule.core.launch import ExtentsParam, Launch, ScalarParam, TensorMapParam, TensorParam
from gemmule.runtime import direct
from support.fakes.cuda import Constants, FakeCuda, Result, installed

FUNCTION = 0xF00


OPERANDS = ("a", "b", "d")


LAUNCH = Launch(
    grid=(3, 2, 1),
    block=(128, 1, 1),
    params=(
        TensorParam("d", (5, 7), (7,)),
        TensorMapParam("a", BFLOAT16, (64, 64), (128,), (64, 64), 128, offset=48),
        ScalarParam("alpha", FLOAT32, 2.5),
        ExtentsParam("a", (64, 64, 1)),
        TensorParam("b", (), ()),
    ),
)


def map_of(address, derived=False):
    """Return a tensor map, which has something that derives from the address if so said."""
    return address.to_bytes(8, "little") + bytes(range(112)) + (address >> 4 if derived else 0).to_bytes(8, "little")


class FakeDriver(FakeCuda):
    """The driver's functions: what they are handed is read from memory, after a while."""

    CUtensorMapDataType = CUtensorMapInterleave = CUtensorMapSwizzle = Constants()
    CUtensorMapL2promotion = CUtensorMapFloatOOBfill = Constants()
    cuuint64_t = cuuint32_t = int

    def __init__(self, wait=0.0, statuses=(), derived=False):
        super().__init__()
        self.wait, self.statuses, self.derived = wait, list(statuses), derived
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

    def CUtensorMap(self, place):
        assert place % 64 == 0, "the driver takes tensor maps at multiples of 64 bytes"
        return place

    def cuTensorMapEncodeTiled(self, kind, rank, address, *description):
        described = ctypes.create_string_buffer(map_of(address, self.derived), 128)
        return Result.CUDA_SUCCESS, types.SimpleNamespace(getPtr=lambda: ctypes.addressof(described))

    def cuTensorMapReplaceAddress(self, tensor_map, address):
        if not self.context:
            return (Result.CUDA_ERROR_INVALID_CONTEXT,)
        self.replaced.append(address)
        ctypes.memmove(tensor_map, map_of(address, self.derived), 128)
        return (Result.CUDA_SUCCESS,)


def expected(addresses, stream, derived=False):
    given = dict(zip(OPERANDS, addresses, strict=True))
    values = [
        map_of(given[param.operand] + param.offset, derived) if isinstance(param, TensorMapParam) else param.pack(given)
        for param in LAUNCH.params
    ]
    return stream, values


@pytest.fixture
def made():
    """Return what makes a launch for a driver."""
    with contextlib.ExitStack() as stack:

        def make(fake, first=(0x1000, 0x2000, 0x3000)):
            stack.enter_context(installed(fake))
            config = types.SimpleNamespace
            return direct.DirectLaunch(direct.packed("kernel", 0, FUNCTION, config, LAUNCH, OPERANDS, first)).queue

        yield make
