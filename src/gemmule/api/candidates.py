"""The next kernel, where the compiler refuses the one that was chosen."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Callable

from gemmule.core.errors import KernelFailedError, UnsupportedError
from gemmule.core.problem import Problem
from gemmule.core.spec import Choice, KernelSpec
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.runtime.device import Device

from .packs import take_table_of_named_pack


class CompileWarning(UserWarning):
    """A kernel does not compile, and another one, which may be slower, is used instead."""


class _Compiling:
    """The kernels and configs that this process has not seen the compiler refuse, by architecture."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[KernelSpec, ...]] = {}
        self._lock = threading.Lock()

    def specs(self, device: Device) -> tuple[KernelSpec, ...]:
        return self._left.get(device.arch.name, REGISTRY)

    def leave_out(self, choice: Choice, device: Device) -> None:
        with self._lock:
            left, sms = [], device.multiprocessors
            for spec in self.specs(device):
                if spec.name != choice.spec.name:
                    left.append(spec)
                elif configs := tuple(config for config in spec.configs if config.on(sms) != choice.config):
                    left.append(dataclasses.replace(spec, configs=configs))
            self._left[device.arch.name] = tuple(left)


_COMPILING = _Compiling()


def choose_compiling(problem: Problem, device: Device) -> Choice:
    """Return the kernel for a problem among those that the compiler did not refuse in this process."""
    take_table_of_named_pack()
    specs = _COMPILING.specs(device)
    # A tuned config may be the one that was refused.
    tuned = specs is REGISTRY
    return choose(problem, device.arch, specs, multiprocessors=device.multiprocessors, chip=device.name, tuned=tuned)


def run_first_that_compiles(problem: Problem, choice: Choice, device: Device, run: Callable[[Choice], None]) -> Choice:
    """Run a chosen kernel, or the next one that compiles, with a warning; return which.

    Parameters
    ----------
    problem : GemmProblem or TransposeProblem
        What is to be computed.
    choice : Choice
        The kernel.
    device : Device
        The GPU.
    run : callable
        Runs a choice; it fails before anything is queued if that does not compile.

    Raises
    ------
    KernelFailedError
        If none compiles.
    """
    while True:
        try:
            run(choice)
            return choice
        except KernelFailedError as error:
            _COMPILING.leave_out(choice, device)
            try:
                following = choose_compiling(problem, device)
            except UnsupportedError:
                raise error from None
            warnings.warn(
                f"{error}; {following.spec.name} ({following.config}) is used instead", CompileWarning, stacklevel=2
            )
            choice = following
