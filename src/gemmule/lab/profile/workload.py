"""The profiled workload: matrices from the host to the GPU, kernels that multiply them, and the results back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Protocol

from gemmule.core.dtype import Kind
from gemmule.core.errors import WrongResultError
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice

from ..accuracy import accuracy, reference, sampled_rows
from ..device import BenchDevice
from ..kernel_labels import labels, name_of
from ..products import Array

#: Names of the ranges round the copies; those round the launches are called as the kernels are.
COPY_IN, COPY_OUT = "copy in", "copy out"
# Bytes that an output is filled with: NaN in every float, and no likely value in integers.
_NAN, _UNLIKELY = 0xFF, 0x55

#: Opens a range of that name.
OpenRange = Callable[[str], contextlib.AbstractContextManager[None]]


class ProfiledDevice(BenchDevice, Protocol):
    """A device whose work can be waited for."""

    def wait(self) -> None:
        """Wait for all that was queued."""


def named(choices: tuple[Choice, ...]) -> dict[str, Choice]:
    """Return kernels by the names that tables, ranges and records give them."""
    records = [{"record": "gemm", "kernel": one.spec.name, "config": one.config.as_dict()} for one in choices]
    names = labels(records)
    return {name_of(record, names): one for record, one in zip(records, choices, strict=True)}


def check(
    device: ProfiledDevice, problem: GemmProblem, kernels: Mapping[str, Choice], inputs: dict[str, Array], seed: int
) -> None:
    """Run every kernel once, so that it is compiled, loaded and verified.

    Raises
    ------
    WrongResultError
        If one is wrong.
    """
    expected = reference(problem, inputs, sampled_rows(problem.m, seed))
    with device.operands(problem, inputs, 1) as operands:
        for name, choice in kernels.items():
            operands.poison(_NAN if problem.d.dtype.kind is not Kind.INTEGER else _UNLIKELY)
            device.kernel(problem, choice, operands)()
            failure = accuracy(expected, operands.output(0)).failure
            if failure is not None:
                raise WrongResultError(f"{name} is wrong and was not profiled: {failure}")


def run(
    device: ProfiledDevice,
    problem: GemmProblem,
    kernels: Mapping[str, Choice],
    inputs: dict[str, Array],
    repeat: int,
    open_range: OpenRange,
) -> None:
    """Copy A and B to the device, run a kernel `repeat` times, copy the result back; all that for every kernel."""
    for name, choice in kernels.items():
        with contextlib.ExitStack() as stack:
            with open_range(COPY_IN):
                operands = stack.enter_context(device.operands(problem, inputs, 1))
            work = device.kernel(problem, choice, operands)
            with open_range(name):
                for _ in range(repeat):
                    work()
                # The range is to enclose the work on a host's clock too.
                device.wait()
            with open_range(COPY_OUT):
                operands.output(0)
