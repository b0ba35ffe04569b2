"""A stand-in for the driver whose device memory is the host's: copies are made as they are queued, or later."""

from __future__ import annotations

import ctypes
import threading

import numpy as np

from .cuda import FakeCuda, Result


class FakeMemory(FakeCuda):
    """Copies wait in their stream until an event or the stream is waited for, as on a GPU that is slow.

    `free` is what cuMemGetInfo says, `held` the blocks by address, `copies` counts copies by direction, `moved` their
    bytes, and `pinned` has the addresses that the driver is to call pinned.
    """

    def __init__(self, free=1 << 30):
        super().__init__()
        self.free, self.held, self.pinned = free, {}, set()
        self.copies, self.moved = {"in": 0, "out": 0}, {"in": 0, "out": 0}
        self._queued, self._events, self._stepping = [], 0, threading.Lock()
        self.CUstream_flags = self.CUevent_flags = _Numbers()
        self.CUmemorytype = _Numbers()

    def cuMemGetInfo(self):
        return Result.CUDA_SUCCESS, self.free, 1 << 40

    def _allocated(self, nbytes):
        memory = np.full(nbytes + 256, 0xAA, np.uint8)
        address = -(-memory.ctypes.data // 256) * 256
        self.held[address] = memory
        return Result.CUDA_SUCCESS, address

    def cuMemAllocAsync(self, nbytes, stream):
        return self._allocated(nbytes)

    def cuMemAllocHost(self, nbytes):
        return self._allocated(nbytes)

    def cuMemFreeAsync(self, address, stream):
        self._queued.append(lambda: self.held.pop(address))
        return (Result.CUDA_SUCCESS,)

    def cuMemFreeHost(self, address):
        del self.held[address]
        return (Result.CUDA_SUCCESS,)

    def cuStreamCreate(self, flags):
        return Result.CUDA_SUCCESS, 0x51

    def cuEventCreate(self, flags):
        self._events += 1
        return Result.CUDA_SUCCESS, self._events

    def cuEventDestroy(self, event):
        return (Result.CUDA_SUCCESS,)

    def cuEventRecord(self, event, stream):
        self._queued.append(event)
        return (Result.CUDA_SUCCESS,)

    def queue(self, work):
        """Queue what a kernel does."""
        self._queued.append(work)

    def _copied(self, direction, target, source, nbytes):
        self.copies[direction] += 1
        self.moved[direction] += nbytes
        self._queued.append(lambda: ctypes.memmove(target, source, nbytes))
        return (Result.CUDA_SUCCESS,)

    def cuMemcpyHtoDAsync(self, target, source, nbytes, stream):
        return self._copied("in", target, source, nbytes)

    def cuMemcpyDtoHAsync(self, target, source, nbytes, stream):
        return self._copied("out", target, source, nbytes)

    def cuEventSynchronize(self, event):
        with self._stepping:
            while event in self._queued:
                self._step()
        return (Result.CUDA_SUCCESS,)

    def cuStreamSynchronize(self, stream):
        with self._stepping:
            while self._queued:
                self._step()
        return (Result.CUDA_SUCCESS,)

    def _step(self):
        work = self._queued.pop(0)
        if callable(work):
            work()

    def cuPointerGetAttribute(self, attribute, address):
        return Result.CUDA_SUCCESS, int(any(0 <= address - begin < size for begin, size in self.pinned))


class _Numbers:
    def __getattr__(self, name):
        return 1
