"""The GPU of an address, as the driver itself tells it."""

from __future__ import annotations

import ctypes
import types

import pytest

from gemmule.core.errors import DriverError
from gemmule.runtime.device import ordinal_of_address
from support.fakes.cuda import FakeCuda, Result, installed

#: An address that 32 bits do not hold.
ADDRESS = 0x7F12_3456_7800


class TwoGpus(FakeCuda):
    CUpointer_attribute = types.SimpleNamespace(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL=9)


def ask(found, attribute, address):
    """Answer as libcuda does: through the pointer, if it knows the address."""
    assert attribute == 9
    if address.value != ADDRESS:
        return Result.CUDA_ERROR_INVALID_VALUE
    ctypes.cast(found, ctypes.POINTER(ctypes.c_int))[0] = 1
    return Result.CUDA_SUCCESS


def test_the_driver_is_asked_itself(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: types.SimpleNamespace(cuPointerGetAttribute=ask))
    with installed(TwoGpus()):
        assert ordinal_of_address(ADDRESS) == 1
        with pytest.raises(DriverError, match="cuPointerGetAttribute"):
            ordinal_of_address(64)
