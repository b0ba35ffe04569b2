"""The launches of these tests repeated on an NVIDIA GPU: memory must hold the same bytes afterwards.

pytest tests/vgpu --twin --record benchmarks/results
"""

from __future__ import annotations

import collections
import dataclasses
import re

import numpy as np

from gemmule.runtime.device import get_device
from gemmule.runtime.driver import call
from gemmule.runtime.launch import LoadedKernel
from gemmule.runtime.memory import DeviceBuffer
from gemmule.vgpu import execute, launcher
from gemmule.vgpu.memory import ALIGNMENT, GLOBAL_BASE


@dataclasses.dataclass(frozen=True)
class Text:
    """PTX for the driver to compile, where there is no artifact with machine code."""

    kernel: str
    entry: str
    cubin: bytes


def memory_after(kernel, recipe, before, addresses):
    """Return the virtual GPU's memory as a launch on the hardware leaves it."""
    with DeviceBuffer(before.nbytes + ALIGNMENT, 0, 0) as buffer:
        base = -(-buffer.address // ALIGNMENT) * ALIGNMENT
        call("cuMemcpyHtoD", base, before.ctypes.data, before.nbytes)
        pointers = {name: base + address - GLOBAL_BASE for name, address in addresses.items()}
        kernel.launch(recipe, pointers, 0)
        call("cuStreamSynchronize", 0)
        after = np.empty_like(before)
        call("cuMemcpyDtoH", after.ctypes.data, base, after.nbytes)
    return after


@dataclasses.dataclass
class Tally:
    """Launches of one test: those with equal memory, those without, and the bytes compared."""

    equal: int = 0
    different: int = 0
    compared: int = 0


class Twin:
    """Repeats on the hardware what `launcher.run` does.

    What the virtual GPU stops does not reach the hardware, where it would break the process's context.
    """

    def __init__(self):
        self._run, self._artifact_for = launcher.run, execute.artifact_for
        self._artifacts, self._loaded = {}, {}
        self.tallies = collections.defaultdict(Tally)
        self.failures = []
        self.test, self.nan = "", None

    def install(self, monkeypatch):
        self.failures = []
        for module in (launcher, execute):
            monkeypatch.setattr(module, "run", self.run)
        monkeypatch.setattr(execute, "artifact_for", self.artifact_for)

    def artifact_for(self, *what, **how):
        artifact = self._artifact_for(*what, **how)
        self._artifacts[artifact.ptx] = artifact
        return artifact

    def run(self, program, recipe, memory, addresses, options, observers=(), ctas=None):
        before = memory.data.copy()
        self._run(program, recipe, memory, addresses, options, observers, ctas)
        if ctas is not None:
            return  # the hardware runs whole grids
        virtual = memory.data.copy()
        if re.search(r"\bw?g?mma\.", program.ptx) and options.mma != "hopper":
            # The mode that was asked for is no model of the hardware.
            memory.data[:] = before
            self._run(program, recipe, memory, addresses, dataclasses.replace(options, mma="hopper"))
            memory.data[:], virtual = virtual, memory.data.copy()
        hardware = memory_after(self._kernel(program), recipe, before, addresses)
        tally = self.tallies[self.test]
        tally.compared += sum(allocation.end - allocation.start for allocation in memory.allocations)
        where = np.flatnonzero(self._differ(virtual, hardware))
        if len(where):
            tally.different += 1
            place = int(where[0])
            word = slice(place // 4 * 4, place // 4 * 4 + 4)
            self.failures.append(
                f"{len(where)} bytes differ, first at {memory.describe(place)}: virtual "
                f"{virtual[word][::-1].tobytes().hex()}, hardware {hardware[word][::-1].tobytes().hex()}"
            )
        else:
            tally.equal += 1

    def _differ(self, virtual, hardware):
        """Return a mask of bytes; where which NaN results is open, all are one."""
        if self.nan is None:
            return virtual != hardware
        kind = self.nan.removesuffix("x2")
        size, infinity = {"f16": (2, 0x7C00), "bf16": (2, 0x7F80), "f32": (4, 0x7F800000), "f64": (8, 0x7FF << 52)}[
            kind
        ]
        words = [x.view(f"u{size}") for x in (virtual, hardware)]
        nan = [(x & ((1 << 8 * size - 1) - 1)) > infinity for x in words]
        return np.repeat((words[0] != words[1]) & ~(nan[0] & nan[1]), size)

    def _kernel(self, program):
        kernel = self._loaded.get(program.ptx)
        if kernel is None:
            name = program.kernel.name
            code = self._artifacts.get(program.ptx)
            if code is None or code.arch != str(get_device(0).arch):
                # The driver compiles the text.
                code = Text(name, name, program.ptx.encode() + b"\0")
            kernel = self._loaded[program.ptx] = LoadedKernel(code, 0)
        return kernel

    def records(self):
        return [
            {
                "record": "check",
                "what": f"virtual = hardware, bit for bit: {test}",
                "passed": tally.equal,
                "failed": tally.different,
                "bytes": tally.compared,
            }
            for test, tally in sorted(self.tallies.items())
        ]
