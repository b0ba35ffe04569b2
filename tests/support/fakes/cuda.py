"""A stand-in for `cuda.bindings.driver`: the runtime's own functions run, down to what they ask the driver."""

from __future__ import annotations

import contextlib
import enum
import types

from gemmule.runtime import device, driver, tensor_maps

from .modules import replaced

#: The primary context of GPU 0; that of GPU n is n more.
CONTEXT = 0xC0


class Result(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_STUB_LIBRARY = 34
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_LAUNCH_FAILED = 719


class Constants:
    """An enumeration of the driver, each of whose constants is its own name."""

    def __getattr__(self, name):
        return name


class FakeCuda:
    """Two GPUs of a capability, whose contexts are numbers; subclasses answer what else a test asks.

    `context` is the current one, and `entered` has the GPU of each that was made current in its place.
    """

    CUresult = Result
    CUdevice_attribute = CUpointer_attribute = Constants()

    def __init__(self, capability=(9, 0)):
        # By the last words of their names; memory is ample.
        self.attributes = {"MAJOR": capability[0], "MINOR": capability[1], "COUNT": 132}
        self.context, self.entered, self._before = CONTEXT, [], []

    def cuInit(self, flags):
        return (Result.CUDA_SUCCESS,)

    def cuDeviceGetCount(self):
        return Result.CUDA_SUCCESS, 2

    def cuDeviceGet(self, ordinal):
        return Result.CUDA_SUCCESS, ordinal

    def cuDeviceGetAttribute(self, attribute, ordinal):
        return Result.CUDA_SUCCESS, self.attributes.get(attribute.rpartition("_")[2], 1 << 20)

    def cuDeviceGetName(self, length, ordinal):
        return Result.CUDA_SUCCESS, b"NVIDIA H100 80GB HBM3\0"

    def cuDeviceTotalMem(self, ordinal):
        return Result.CUDA_SUCCESS, 1 << 30

    def cuDeviceGetPCIBusId(self, length, ordinal):
        return Result.CUDA_SUCCESS, b"0000:00:00.0\0"

    def cuDeviceGetUuid(self, ordinal):
        return Result.CUDA_SUCCESS, types.SimpleNamespace(bytes=bytes([ordinal] * 16))

    def cuDriverGetVersion(self):
        return Result.CUDA_SUCCESS, 13000

    def cuDevicePrimaryCtxRetain(self, ordinal):
        return Result.CUDA_SUCCESS, CONTEXT + ordinal

    def cuCtxGetCurrent(self):
        return Result.CUDA_SUCCESS, self.context

    def cuCtxPushCurrent(self, context):
        self._before.append(self.context)
        self.context = context
        self.entered.append(context - CONTEXT)
        return (Result.CUDA_SUCCESS,)

    def cuCtxPopCurrent(self):
        self.context = self._before.pop()
        return Result.CUDA_SUCCESS, self.context

    def cuGetErrorString(self, status):
        return Result.CUDA_SUCCESS, b"fake"


def _forget():
    for cached in (
        driver.driver_module, device.device_count, device.get_device, device.primary_context,
        tensor_maps.encoded, tensor_maps.address_word,
    ):  # fmt: skip
        cached.cache_clear()


@contextlib.contextmanager
def installed(fake):
    """Let `cuda.bindings.driver` be a stand-in while the block runs; None for bindings that are not installed."""
    bindings = None if fake is None else types.SimpleNamespace(driver=fake)
    modules = {"cuda": types.ModuleType("cuda"), "cuda.bindings": bindings, "cuda.bindings.driver": fake}
    with replaced(modules):
        _forget()
        try:
            yield fake
        finally:
            _forget()
