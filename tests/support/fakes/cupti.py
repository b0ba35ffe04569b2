"""A stand-in for cupti.cupti: a program that is scripted, and the records that CUPTI would give of it."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import threading
import types
from unittest import mock

import numpy as np

from support.fakes import cuda
from support.fakes.bench import FakeDevice, FakeOperands, FakeWork
from support.fakes.cuda import FakeCuda, Result
from support.fakes.modules import replaced

#: Functions of the driver and of the runtime, by their numbers here.
CALLS = ("", "cuLaunchKernelEx", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize",
         "cuMemsetD8Async")  # fmt: skip
RUNTIME_CALLS = ("", "cudaMalloc_v3020", "cudaLaunchKernel_ptsz_v7000")


class CuptiError(Exception):
    def __init__(self, status):
        super().__init__(f"{FakeCupti.Result(status).name} ({int(status)})")
        self.status = int(status)


class FakeCupti(types.ModuleType):
    """`refusals` gives the status that a function refuses with, by its name; `lost` records have no room."""

    ActivityKind = enum.IntEnum(
        "ActivityKind", {"MEMCPY": 1, "MEMSET": 2, "DRIVER": 4, "RUNTIME": 5, "CONCURRENT_KERNEL": 10, "OVERHEAD": 17}
    )
    ActivityMemcpyKind = enum.IntEnum("ActivityMemcpyKind", {"HTOD": 1, "DTOH": 2, "HTOA": 3, "DTOD": 8})
    ActivityThreadIdType = enum.IntEnum("ActivityThreadIdType", {"DEFAULT": 0, "SYSTEM": 1})
    CallbackDomain = enum.IntEnum("CallbackDomain", {"DRIVER_API": 1, "RUNTIME_API": 2})
    Result = enum.IntEnum(
        "Result",
        {"ERROR_MAX_LIMIT_REACHED": 12, "ERROR_NOT_COMPATIBLE": 14, "ERROR_NOT_INITIALIZED": 15,
         "ERROR_INSUFFICIENT_PRIVILEGES": 35, "ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED": 39,
         "ERROR_MIG_DEVICE_NOT_SUPPORTED": 43, "ERROR_UNKNOWN": 999},
    )  # fmt: skip
    cuptiError = CuptiError

    def __init__(self, refusals=None, lost=0):
        super().__init__("cupti.cupti")
        self.refusals, self.lost = refusals or {}, lost
        self.now = 10**15
        self.log, self.pending, self.enabled = [], [], set()
        self.correlation = 0

    def _said(self, name, *arguments):
        self.log.append((name, *arguments))
        if name in self.refusals:
            refusal = self.refusals[name]
            raise refusal if isinstance(refusal, Exception) else CuptiError(refusal)

    def tick(self, nanoseconds=10):
        self.now += nanoseconds
        return self.now

    # What is called of CUPTI.

    def get_timestamp(self):
        self._said("get_timestamp")
        return self.tick()

    def subscribe(self, callback, userdata):
        self._said("subscribe")
        return 77

    def unsubscribe(self, subscriber):
        self._said("unsubscribe", subscriber)

    def set_thread_id_type(self, kind):
        self._said("set_thread_id_type", int(kind))

    def activity_register_callbacks(self, requested, completed):
        self._said("activity_register_callbacks")
        assert requested()[0] > 1 << 20
        self.completed = completed

    def activity_enable(self, kind):
        self._said("activity_enable", kind)
        self.enabled.add(kind)

    def activity_disable(self, kind):
        self._said("activity_disable", kind)
        self.enabled.discard(kind)

    def activity_flush_all(self, flag):
        self._said("activity_flush_all", flag)
        # Full buffers come from a thread of CUPTI's.
        full = threading.Thread(target=self.completed, args=(self.pending[::2],))
        full.start()
        full.join()
        self.completed(self.pending[1::2])
        self.pending.clear()

    def activity_get_num_dropped_records(self, context, stream, address):
        self._said("activity_get_num_dropped_records", context, stream)
        ctypes.c_size_t.from_address(address).value = self.lost

    def get_callback_name(self, domain, number):
        return (CALLS if domain == self.CallbackDomain.DRIVER_API else RUNTIME_CALLS)[number]

    # What the program does.

    def _record(self, kind, nanoseconds, **fields):
        start = self.tick()
        record = types.SimpleNamespace(kind=int(kind), start=start, end=self.tick(nanoseconds), **fields)
        if kind in self.enabled:
            self.pending.append(record)
        return record

    def call(self, name, nanoseconds=300, runtime=False):
        self.correlation += 1
        kind = self.ActivityKind.RUNTIME if runtime else self.ActivityKind.DRIVER
        number = (RUNTIME_CALLS if runtime else CALLS).index(name)
        return self._record(
            kind, nanoseconds, cbid=number, thread_id=threading.get_native_id(), correlation_id=self.correlation
        )

    def _place(self):
        return {"device_id": 0, "stream_id": 13, "correlation_id": self.correlation}

    def copy(self, way, size, nanoseconds):
        return self._record(
            self.ActivityKind.MEMCPY, nanoseconds, **self._place(), bytes=size, copy_kind=self.ActivityMemcpyKind[way]
        )

    def memset(self, size, nanoseconds):
        return self._record(self.ActivityKind.MEMSET, nanoseconds, **self._place(), bytes=size)

    def kernel(self, name, nanoseconds, grid=(4, 2, 1), block=(256, 1, 1)):
        axes = {f"{what}_{axis}": size for what, sizes in (("grid", grid), ("block", block))
                for axis, size in zip("xyz", sizes, strict=True)}  # fmt: skip
        return self._record(
            self.ActivityKind.CONCURRENT_KERNEL, nanoseconds, name=name, **self._place(), **axes,
            registers_per_thread=96, static_shared_memory=1024, dynamic_shared_memory=2048,
        )  # fmt: skip


class _Driver(FakeCuda):
    def cuDriverGetVersion(self):
        return Result.CUDA_SUCCESS, 13000


@contextlib.contextmanager
def installed(fake):
    """Put a stand-in where cupti.cupti is imported from, while the block runs."""
    from gemmule.runtime import profiling

    modules = {"cupti": types.ModuleType("cupti"), "cupti.cupti": fake}
    version = mock.patch.object(profiling, "cupti_version", return_value="13.0.1")
    with cuda.installed(_Driver()), replaced(modules), version:
        yield fake


@contextlib.contextmanager
def installed_nvtx(module):
    """Let the package nvtx be a stand-in while the block runs; None for one that is not installed."""
    from gemmule.runtime import profiling_ranges

    with replaced({"nvtx": module}):
        profiling_ranges._nvtx.cache_clear()
        try:
            yield
        finally:
            profiling_ranges._nvtx.cache_clear()


class _Operands(FakeOperands):
    def __init__(self, cupti, problem, inputs, sets):
        super().__init__(problem, inputs, sets)
        self.cupti = cupti
        for array in inputs.values():
            cupti.call("cuMemcpyHtoDAsync_v2")
            cupti.copy("HTOD", array.nbytes, array.nbytes // 20 + 1)

    def poison(self, byte):
        self.cupti.call("cuMemsetD8Async")
        self.cupti.memset(self.outputs[0].nbytes, 500)
        super().poison(byte)

    def output(self, index):
        self.cupti.call("cuMemcpyDtoHAsync_v2")
        self.cupti.copy("DTOH", self.outputs[index].nbytes, 700)
        return super().output(index)


class ProfiledFakeDevice(FakeDevice):
    """A device that NumPy computes for, and whose records CUPTI's stand-in gets."""

    def __init__(self, cupti, **options):
        super().__init__(**options)
        self.cupti = cupti

    def operands(self, problem, inputs, sets):
        self.sets.append(sets)
        return contextlib.nullcontext(_Operands(self.cupti, problem, inputs, sets))

    def kernel(self, problem, choice, operands):
        name = choice.spec.name
        work = FakeWork(name, operands, self.clock(name), self.spoil.get(name))

        def queue():
            self.cupti.call("cuLaunchKernelEx")
            self.cupti.kernel(f"{name}_0", int(self.clock(name)() * 1e9))
            work()

        return queue

    def wait(self):
        self.cupti.call("cuStreamSynchronize", 2000)


def as_bytes(problem):
    """Return the bytes of A and B together, and of the result."""
    sizes = [np.dtype(getattr(problem, name).dtype.numpy()).itemsize for name in "abd"]
    m, n, k = problem.m, problem.n, problem.k
    return m * k * sizes[0] + k * n * sizes[1], m * n * sizes[2]
