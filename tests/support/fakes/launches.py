"""Kernels that are neither compiled nor loaded: their launches, and what the driver is asked around them."""

from __future__ import annotations

import dataclasses
import types

import pytest

from gemmule.runtime import execute, repeated

from .cuda import FakeCuda, Result, installed


@dataclasses.dataclass
class Memory:
    """Memory that was allocated in the order of a stream."""

    nbytes: int
    stream: int
    address: int
    open: bool = True


class FakeLaunches(FakeCuda):
    """Has every launch, allocation and filling in order.

    Attributes
    ----------
    made : list of (str, dict, int)
        Launches: the kernel, addresses by the names of its recipe, and the stream.
    memory : list of Memory
        Allocations.
    packed : list of str
        Kernels of launches that are kept for later calls.
    while_packing : callable
        Is called meanwhile.
    queue : list of tuple
        ``("launch", addresses, stream)``, ``("fill", address, byte, nbytes, stream)``, ``("free", nbytes)``.
    """

    def __init__(self, capability=(9, 0)):
        super().__init__(capability)
        self.made, self.memory, self.queue = [], [], []
        self.packed, self.while_packing = [], lambda: None

    def cuMemAllocAsync(self, nbytes, stream):
        self.memory.append(Memory(nbytes, stream, 0x7000000 + 0x100000 * len(self.memory)))
        return Result.CUDA_SUCCESS, self.memory[-1].address

    def cuMemFreeAsync(self, address, stream):
        (freed,) = (one for one in self.memory if one.address == address)
        assert freed.stream == stream
        freed.open = False
        self.queue.append(("free", freed.nbytes))
        return (Result.CUDA_SUCCESS,)

    def cuMemsetD8Async(self, address, byte, nbytes, stream):
        self.queue.append(("fill", address, byte, nbytes, stream))
        return (Result.CUDA_SUCCESS,)

    def launch(self, kernel, addresses, stream):
        self.made.append((kernel, addresses, stream))
        self.queue.append(("launch", addresses, stream))

    def direct_launch(self, kernel, launch, operands, first):
        self.packed.append(kernel.name)
        self.while_packing()

        def queue(given, stream):
            self.launch(kernel.name, dict(zip(operands, given, strict=True)), stream)

        queue.first = dict(zip(operands, first, strict=True))
        return types.SimpleNamespace(queue=queue)

    def loaded_kernel(self, artifact, ordinal):
        def prepare(launch, pointers, stream):
            return lambda: self.launch(artifact.name, pointers, stream)

        return types.SimpleNamespace(name=artifact.name, prepare=prepare)


@pytest.fixture
def launched(monkeypatch):
    """Return the launches that are made."""
    with installed(FakeLaunches()) as fake:
        monkeypatch.setattr(
            execute,
            "artifact_for",
            lambda spec, *what: types.SimpleNamespace(check_launch=lambda launch: None, name=spec.name),
        )
        monkeypatch.setattr(execute, "loaded_kernel", fake.loaded_kernel)
        monkeypatch.setattr(repeated, "direct_launch", fake.direct_launch)
        yield fake
