"""A device with transposes for tests of the laboratory: NumPy computes, and the clock is scripted."""

from __future__ import annotations

import contextlib

import numpy as np

from gemmule.lab.transposes import is_copy
from support.fakes.bench import FakeDevice, FakeWork


class Operands:
    """Buffer sets on the host; `poisons` counts how often they were filled."""

    def __init__(self, problem, inputs, sets):
        self.problem, self.sets, self.a = problem, sets, inputs["a"]
        self.outputs = [np.zeros((*problem.batch, problem.rows, problem.cols), self.a.dtype) for _ in range(sets)]

    @property
    def bytes(self):
        return self.sets * self.problem.bytes_min

    def poison(self, byte):
        for output in self.outputs:
            output.view(np.uint8)[...] = byte

    def output(self, index):
        return self.outputs[index].copy()


class Work(FakeWork):
    """Writes the transpose, or the copy, into the next buffer set, or transposes what is there."""

    def __init__(self, name, operands, seconds, spoil=None, copies=False, in_place=False):
        super().__init__(name, operands, seconds, spoil)
        self.copies, self.in_place = copies, in_place

    def sample(self, calls):
        self.calls += calls

    def __call__(self):
        index = self.calls % self.operands.sets
        target, source = self.operands.outputs[index], self.operands.a
        self.calls += 1
        if self.in_place:
            target[...] = target.swapaxes(-1, -2).copy()
        elif self.copies:
            target.reshape(source.shape)[...] = source
        else:
            target[...] = source.swapaxes(-1, -2)
        if self.spoil is not None:
            self.spoil(target, index)


class Device(FakeDevice):
    multiprocessors = 132

    @contextlib.contextmanager
    def operands(self, problem, inputs, sets):
        self.sets.append(sets)
        yield Operands(problem, inputs, sets)

    def kernel(self, problem, choice, operands):
        error = self.spoil.get(choice.spec.name)
        if isinstance(error, Exception):
            raise error
        return Work(choice.spec.name, operands, self.clock(choice.spec.name), error, is_copy(problem), problem.in_place)

    def transposes(self):
        return self

    def copy(self, problem, operands):
        return Work("copy", operands, self.clock("copy"), copies=True)

    def part_copy(self, problem, operands):
        """Half of the bytes, where the device is told how long it takes for them."""
        if "part" not in self.seconds:
            return None
        return Work("part", operands, self.clock("part"), copies=True), problem.bytes_min // 4

    def peers(self, problem, operands):
        yield "torch", Work("torch", operands, self.clock("torch"), self.spoil.get("torch"))


SECONDS = {"transpose_tiled": 1.25e-3, "t01_copy_row": 2e-3, "t04_naive_col": 4e-3, "copy": 1e-3, "torch": 5e-3}
