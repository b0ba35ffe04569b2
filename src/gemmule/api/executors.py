"""Which executor takes a call."""

from __future__ import annotations

import os

from gemmule.core.errors import ArgumentError, UnsupportedError
from gemmule.runtime.device import device_count

_KNOWN = ("gpu", "host")

#: Operations in one matrix product from which host arrays are worth the way to the GPU and back.
HOST_TO_GPU_FLOP = 2**33


def wanted_executor(executor: str | None) -> str | None:
    """Return the executor that the caller asks for, by argument or by ``GEMMULE_EXECUTOR``; None leaves the choice.

    Raises
    ------
    ArgumentError
        If there is no such executor.
    """
    origin = "executor"
    if executor is None:
        executor, origin = os.environ.get("GEMMULE_EXECUTOR") or None, "GEMMULE_EXECUTOR"
    if executor is not None and executor not in _KNOWN:
        raise ArgumentError(
            f"{origin}={executor!r} is not known; choose one of {', '.join(map(repr, _KNOWN))}, or none"
        )
    return executor


def check_device_arrays(executor: str | None) -> str:
    """Return why CUDA arrays run on the GPU.

    Raises
    ------
    ArgumentError
        If the caller asks for another executor.
    """
    if executor == "host":
        raise ArgumentError("executor='host' takes host arrays, but these are on a GPU; copy them to the host first")
    return "the arrays are on this GPU"


def host_arrays_executor(executor: str | None, flop_per_matrix: int, why_no_kernel: str | None) -> tuple[str, str]:
    """Return the executor for host arrays, and why.

    Parameters
    ----------
    executor : str or None
        What the caller asks for.
    flop_per_matrix : int
        Operations of one product of the batch.
    why_no_kernel : str or None
        Why the GPU cannot take the problem, None where it can.

    Raises
    ------
    UnsupportedError
        If the caller asks for the GPU and there is none, or it cannot take the problem.
    """
    if executor == "host":
        return "host", "asked for"
    if executor == "gpu":
        if device_count() == 0:
            raise UnsupportedError("executor='gpu' needs an NVIDIA GPU and its driver, and none is to be had here")
        if why_no_kernel is not None:
            raise UnsupportedError(f"executor='gpu' cannot take this: {why_no_kernel}")
        return "gpu", "asked for"
    if device_count() == 0:
        return "host", "no NVIDIA GPU here"
    if why_no_kernel is not None:
        return "host", f"the GPU cannot take it: {why_no_kernel}"
    if flop_per_matrix < HOST_TO_GPU_FLOP:
        return "host", f"host arrays and fewer than 2**{HOST_TO_GPU_FLOP.bit_length() - 1} operations a matrix"
    return "gpu", "host arrays with enough operations to pay for the copies"

