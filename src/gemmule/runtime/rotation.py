"""Buffer sets that a measurement walks round, so that no call finds its operands in the cache."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, Problem

from .device import current
from .driver import call
from .memory import Array, DeviceBuffer
from .workspaces import Workspaces

#: Bytes that every operand's address is a multiple of: what cuBLASLt takes as the best case.
ALIGNMENT = 256
#: An alignment of fewer bytes says that a matrix begins so many behind such an address.
_WHOLE = 16


def lead_of(matrix: StridedMatrix) -> int:
    """Return the bytes by which a matrix begins behind a multiple of `ALIGNMENT`."""
    return matrix.alignment if matrix.alignment < _WHOLE else 0


class Rotation:
    """Calls on one buffer set each; calling it queues the next one.

    Parameters
    ----------
    calls : sequence of callable
        One for each buffer set.
    keep : object
        Objects that must outlive the calls.
    """

    def __init__(self, calls: Sequence[Callable[[], None]], keep: object = None) -> None:
        self._calls, self._keep = itertools.cycle(calls), keep

    def __call__(self) -> None:
        next(self._calls)()


class OperandSets:
    """The operands of a problem in device memory, several times, with the same values in every set.

    Parameters
    ----------
    problem : GemmProblem or TransposeProblem
        The problem, its matrices compact, those of a batch contiguous; D is row-major.
    inputs : mapping of str to ndarray
        ``a``, ``b`` and, where the problem has one, ``c``, each as its elements lie in memory.
    sets : int
        Number of sets.
    stream : int
        The driver's handle of the stream that everything is ordered in.
    """

    def __init__(self, problem: Problem, inputs: Mapping[str, Array], sets: int, ordinal: int, stream: int) -> None:
        self.sets = sets
        self._problem, self._ordinal, self._stream = problem, ordinal, stream
        self._offsets: dict[str, int] = {}
        self._count = math.prod(problem.batch)
        end = 0
        for name, matrix in problem.operands().items():
            if name == "b" and isinstance(problem, GemmProblem) and problem.own_transpose:
                self._offsets[name] = self._offsets["a"]
                continue
            self._offsets[name] = end + lead_of(matrix)
            end = (
                -(-(self._offsets[name] + self._count * matrix.rows * matrix.cols * matrix.dtype.itemsize) // ALIGNMENT)
                * ALIGNMENT
            )
        self._set_bytes = end
        self._buffer = DeviceBuffer(end * sets, ordinal, stream)
        #: Workspaces of the kernels, shared by all sets.
        self.workspaces = Workspaces(ordinal, stream)
        with current(ordinal):
            for name, array in inputs.items():
                assert array.flags.c_contiguous
                call("cuMemcpyHtoDAsync", self.addresses(0)[name], array.ctypes.data, array.nbytes, stream)
            for index in range(1, sets):
                for name, array in inputs.items():
                    source, target = self.addresses(0)[name], self.addresses(index)[name]
                    call("cuMemcpyDtoDAsync", target, source, array.nbytes, stream)
            call("cuStreamSynchronize", stream)

    @property
    def bytes(self) -> int:
        return self._set_bytes * self.sets

    def addresses(self, index: int) -> dict[str, int]:
        """Return the operands' addresses in a set."""
        start = self._buffer.address + index * self._set_bytes
        return {name: start + offset for name, offset in self._offsets.items()}

    def poison(self, byte: int) -> None:
        """Fill every set's output with a byte."""
        d = self._problem.operands()["d"]
        with current(self._ordinal):
            for index in range(self.sets):
                size = self._count * d.rows * d.cols * d.dtype.itemsize
                call("cuMemsetD8Async", self.addresses(index)["d"], byte, size, self._stream)

    def output(self, index: int) -> Array:
        """Return a set's output once the work queued so far is done."""
        d = self._problem.operands()["d"]
        array: Array = np.empty((*self._problem.batch, d.rows, d.cols), d.dtype.numpy())
        with current(self._ordinal):
            call("cuMemcpyDtoHAsync", array.ctypes.data, self.addresses(index)["d"], array.nbytes, self._stream)
            call("cuStreamSynchronize", self._stream)
        return array

    def close(self) -> None:
        """Give the memory back."""
        self.workspaces.free()
        self._buffer.free()
