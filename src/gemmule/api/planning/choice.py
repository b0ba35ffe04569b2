"""Choice of the executor of a call and of its kernel."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gemmule.core.arch import Arch
from gemmule.core.chip import Chip
from gemmule.core.errors import ArgumentError, KernelFailedError, NoKernelError, UnsupportedError, shown
from gemmule.core.gpu_rates import H200_RATES
from gemmule.core.name_suggestions import remedy_for
from gemmule.core.problem import GemmProblem, Problem, TransposeProblem
from gemmule.core.quantities import duration
from gemmule.core.spec import Choice, KernelSpec
from gemmule.dispatch import registry
from gemmule.dispatch.select import choose, why_not_through_gpu
from gemmule.runtime.device import Device, device_count, get_device
from gemmule.runtime.driver import lost_by_fork

from ..packs import take_table_of_named_pack

if TYPE_CHECKING:
    from .host_rates import HostWork
    from .plan import Execution

_KNOWN = ("gpu", "cpu", "vgpu")
NO_GPU = "no NVIDIA GPU found"
#: How a kernel was chosen without a comparison where its name is given.
_NAMED = "the kernel that kernel= names"

#: Operations of a call below which host arrays stay on the host, and the driver is not started.
LEAST_GPU_FLOP = 2**24
TOO_FEW_FLOP = f"host arrays; fewer than 2**{LEAST_GPU_FLOP.bit_length() - 1} FLOP do not repay copies to a GPU"
#: Share of the host's expected time below which the GPU's has to be: a few percent do not repay what else may be busy.
_CLEARLY_FASTER = 0.92


def wanted_executor(executor: Any) -> str | None:
    """Return the executor requested by argument or by ``GEMMULE_EXECUTOR``; None leaves the choice.

    Raises
    ------
    ArgumentError
        If there is no such executor.
    """
    origin = "executor"
    if executor is None:
        executor, origin = os.environ.get("GEMMULE_EXECUTOR") or None, "GEMMULE_EXECUTOR"
    if executor is not None and not (isinstance(executor, str) and executor in _KNOWN):
        raise ArgumentError(f"{origin}={shown(executor)} is not known; {remedy_for(executor, _KNOWN, ', or omit it')}")
    return None if executor is None else str(executor)


def check_device_arrays(executor: str | None) -> str:
    """Return why CUDA arrays run on the GPU.

    Raises
    ------
    ArgumentError
        If another executor is requested.
    """
    if executor in ("cpu", "vgpu"):
        raise ArgumentError(
            f"executor={executor!r} takes host arrays, but these are on a GPU; copy them to the host first"
        )
    return "the arrays are on this GPU"


def host_arrays_executor(
    executor: str | None, dtypes: tuple[str, str, str], c_dtype: str | None, work: HostWork | None
) -> tuple[str, str]:
    """Return the executor for host arrays, and why.

    Parameters
    ----------
    executor : str or None
        Executor requested by the caller.
    dtypes : tuple of str
        Types of A, B and the result.
    c_dtype : str or None
        Type of the matrix to add, None if there is none.
    work : HostWork or None
        The product; None if the GPU is to be preferred whatever it is.

    Raises
    ------
    UnsupportedError
        If the GPU is requested and there is none, or it cannot take the problem.
    """
    if executor in ("cpu", "vgpu"):
        # The driver is not called: this bypasses a driver that does not work.
        return executor, f"executor={executor!r} is set"
    if executor is None and work is not None and work.flop < LEAST_GPU_FLOP:
        # The driver is not started for small things.
        return "cpu", TOO_FEW_FLOP
    why_not = _why_no_gpu(dtypes, c_dtype)
    if executor == "gpu":
        if why_not is not None:
            raise not_on_gpu(why_not)
        return "gpu", "executor='gpu' is set"
    if why_not is not None:
        return "cpu", why_not
    if work is None:
        return "gpu", "host arrays pass through the GPU"
    # BLAS's threads would spin beside copies that are timed.
    on_gpu = work.gpu_seconds()
    on_host = work.host_seconds()
    times = f"{duration(on_host)} on the host, {duration(on_gpu)} through the GPU"
    executor = "gpu" if on_gpu < _CLEARLY_FASTER * on_host else "cpu"
    return executor, f"host arrays; by rates measured on this machine {times}"


def not_on_gpu(why_not: str) -> UnsupportedError:
    """Return the error of a call with `executor="gpu"` whose host arrays a GPU cannot take."""
    remedy = "executor='cpu'" if device_count() else "executor='cpu', or executor='vgpu', a virtual GPU"
    return UnsupportedError(f"executor='gpu' cannot take this: {why_not}; give {remedy}")


def only_on_host(what: str) -> UnsupportedError:
    """Return the error of a call with ``executor='gpu'`` whose host arrays pass through no GPU; `what` is a clause."""
    if not device_count():
        return not_on_gpu(NO_GPU)
    return UnsupportedError(f"executor='gpu' cannot take this: {what} on the host; copy them to a GPU first")


def _why_no_gpu(dtypes: tuple[str, str, str], c_dtype: str | None) -> str | None:
    if device_count() == 0:
        return NO_GPU
    if lost_by_fork():
        return "this process was forked from one that used the GPU, which only processes that are spawned can"
    try:
        arch = get_device(0).arch
    except UnsupportedError as error:
        return str(error)
    return why_not_through_gpu((*dtypes, c_dtype) if c_dtype is not None else dtypes, arch)


def only_kernel(word: str | None, operation: str, *, named: bool) -> tuple[KernelSpec, ...] | None:
    """Return the kernels that a plan may choose from: the one that is named, or None for all.

    Parameters
    ----------
    word : str or None
        A name, which may carry a config: its number, or some of its fields, as in ``simt_gemm[tile_m=128]``.
    operation : str
        ``gemm`` or ``transpose``.
    named : bool
        Whether the plan may name its kernel: on the virtual GPU, and for a chip by its name.

    Raises
    ------
    ArgumentError
        If there is no such kernel or config, more than one kernel, or the plan may not name it.
    """
    if word is None:
        return None
    if not isinstance(word, str):
        raise ArgumentError(f"kernel={shown(word)} is not a name; give one, as kernel='simt_gemm'")
    if not named:
        raise ArgumentError(
            f"kernel={word!r} is for plans of the virtual GPU or of a chip by its name; give executor='vgpu' or "
            "chip='h100', or leave kernel out, for the fastest"
        )
    from gemmule.dispatch.kernel_names import named_configs

    spec, configs = named_configs(word, registry.kernels_of(operation))
    # The best of several configs, or of all, is chosen.
    return (dataclasses.replace(spec, configs=configs) if configs else spec,)


def choose_virtual(problem: Problem, registry: Sequence[KernelSpec] | None, chip: Chip | None = None) -> Choice:
    """Return the choice on the virtual GPU: of `only_kernel`'s, or of all; as on a chip, if one is named.

    Without a chip the first kernel that takes it is chosen, but the config of a named one by the rates of an H200.

    Raises
    ------
    ArgumentError
        If the virtual GPU has another architecture than the chip.
    NoKernelError
        If none takes the problem.
    """
    if chip is None:
        from gemmule.vgpu.arch import virtual_arch

        if registry is None:
            return choose(problem, virtual_arch())
        with with_remedy(registry):
            choice = choose(problem, virtual_arch(), registry, multiprocessors=H200_RATES.multiprocessors)
        by_rates = "by the rates of an H200; chip='h100' chooses as on an H100"
        return _by_name(choice if choice.chosen_by == "single" else dataclasses.replace(choice, source=by_rates))
    return _as_on(chip, lambda: choose_for_chip(problem, chip, registry))


def _by_name(choice: Choice) -> Choice:
    """Return the choice of a kernel that is named, which says so where nothing was compared."""
    if choice.chosen_by != "single":
        return choice
    return dataclasses.replace(choice, source=choice.source or _NAMED)


def _as_on(chip: Chip, choose_on: Callable[[], Choice]) -> Choice:
    """Return the choice of the virtual GPU as on a chip.

    Raises
    ------
    ArgumentError
        If it has another architecture than the chip.
    """
    from gemmule.vgpu.arch import virtual_arch

    arch, of_chip = virtual_arch(), Arch.for_device(*chip.capability)
    if arch != of_chip:
        raise ArgumentError(
            f"{chip.name} is {of_chip}, but the virtual GPU is {arch}; set GEMMULE_VGPU_ARCH={of_chip}, or leave chip "
            "or executor out"
        )
    choice = choose_on()
    return dataclasses.replace(choice, source=choice.source or f"as on {chip.name}")


def choose_for_chip(problem: Problem, chip: Chip, registry: Sequence[KernelSpec] | None) -> Choice:
    """Return the choice on a chip: of `only_kernel`'s, or of all.

    Raises
    ------
    NoKernelError
        If none takes the problem.
    """
    arch = Arch.for_device(*chip.capability)
    # A tuned config may be none of those that are named.
    tuned = registry is None or all(map(_is_whole, registry))
    with with_remedy(registry):
        choice = choose(problem, arch, registry, multiprocessors=chip.sms, chip=chip.driver_name, tuned=tuned)
    return choice if registry is None else _by_name(choice)


def _is_whole(spec: KernelSpec) -> bool:
    """Return whether a kernel has all of its configs."""
    return spec in registry.REGISTRY


@contextlib.contextmanager
def with_remedy(registry: Sequence[KernelSpec] | None) -> Iterator[None]:
    """Add the remedy to the error of a problem that the kernel of `only_kernel` does not take.

    Raises
    ------
    NoKernelError
        In place of one without the remedy.
    """
    try:
        yield
    except NoKernelError as error:
        if registry is None:
            raise
        remedy = "name another kernel or config, leave kernel out, or give operands that it takes"
        raise NoKernelError((name, f"{reason}; {remedy}") for name, reason in error.refused) from None


def choice_on(choose: Callable[..., Choice], problem: Any, device: Device) -> Choice:
    """Return the kernel of a problem on a GPU."""
    return choose(problem, device.arch, multiprocessors=device.multiprocessors, chip=device.name)


def choice_on_chip(choose: Callable[..., Choice], problem: Any, chip: Chip) -> Choice:
    """Return the kernel of a problem on a chip, which need not be there."""
    arch = Arch.for_device(*chip.capability)
    return choose(problem, arch, multiprocessors=chip.sms, chip=chip.driver_name)


def virtual_choice(choose: Callable[..., Choice], problem: Any, chip: Chip | None) -> Choice:
    """Return the kernel of a problem on the virtual GPU; as on a chip, if one is named.

    Raises
    ------
    ArgumentError
        If the virtual GPU has another architecture than the chip.
    """
    if chip is None:
        from gemmule.vgpu.arch import virtual_arch

        return choose(problem, virtual_arch())
    return _as_on(chip, lambda: choice_on_chip(choose, problem, chip))


class CompileWarning(UserWarning):
    """A kernel does not compile, and another one, which may be slower, is used instead."""


class _Compiling:
    """The kernels and configs that this process has not seen the compiler refuse, by architecture."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[KernelSpec, ...]] = {}
        self._lock = threading.Lock()

    def specs(self, device: Device) -> tuple[KernelSpec, ...] | None:
        """Return the kernels that are left; None if that is all."""
        return self._left.get(device.arch.name)

    def leave_out(self, choice: Choice, device: Device) -> None:
        with self._lock:
            left, sms = [], device.multiprocessors
            for spec in self._left.get(device.arch.name, registry.REGISTRY):
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
    tuned = specs is None
    return choose(problem, device.arch, specs, multiprocessors=device.multiprocessors, chip=device.name, tuned=tuned)


def run_first_that_compiles(problem: Problem, choice: Choice, device: Device, run: Callable[[Choice], None]) -> Choice:
    """Run a chosen kernel, or the next one that compiles, with a warning; return which.

    Parameters
    ----------
    choice : Choice
        The kernel.
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


def execute(
    problem: GemmProblem | TransposeProblem,
    choice: Choice,
    device: Device,
    pointers: Mapping[str, int],
    stream: int,
    execution: Execution,
) -> None:
    """Queue a problem by its launches, which are packed the first time and left in `execution`.

    Parameters
    ----------
    problem, choice, device
        As of `run_first_that_compiles`.
    pointers : mapping of str to int
        Addresses of the operands, the output's last.
    stream : int
        The driver's handle of the stream.
    execution : Execution
        State left by earlier executions.
    """
    if execution.queue is not None:
        execution.queue(tuple(pointers.values()), stream)
        return
    from gemmule.runtime.repeated import run_packed

    def run(chosen: Choice) -> None:
        execution.queue = run_packed(problem, chosen, pointers, device.ordinal, stream)

    run_first_that_compiles(problem, choice, device, run)
