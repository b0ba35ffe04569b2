"""Which executor takes a call."""

from __future__ import annotations

import os
from typing import Any

from gemmule.core.errors import ArgumentError, UnsupportedError, shown
from gemmule.core.name_suggestions import remedy_for
from gemmule.dispatch.select import why_no_gemm
from gemmule.runtime.device import device_count, get_device

_KNOWN = ("gpu", "cpu", "vgpu")

#: Operations in one matrix product from which host arrays are worth the way to the GPU and back.
HOST_TO_GPU_FLOP = 2**33


def wanted_executor(executor: Any) -> str | None:
    """Return the executor that the caller asks for, by argument or by ``GEMMULE_EXECUTOR``; None leaves the choice.

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
        If the caller asks for another executor.
    """
    if executor in ("cpu", "vgpu"):
        raise ArgumentError(
            f"executor={executor!r} takes host arrays, but these are on a GPU; copy them to the host first"
        )
    return "the arrays are on this GPU"


def host_arrays_executor(
    executor: str | None, flop_per_matrix: int | None, dtypes: tuple[str, str, str], c_dtype: str | None
) -> tuple[str, str]:
    """Return the executor for host arrays, and why.

    Parameters
    ----------
    executor : str or None
        What the caller asks for.
    flop_per_matrix : int or None
        Operations of one product of the batch; None if the GPU is to be preferred for any number.
    dtypes : tuple of str
        Types of A, B and the result.
    c_dtype : str or None
        Type of the matrix to add, None if there is none.

    Raises
    ------
    UnsupportedError
        If the caller asks for the GPU and there is none, or it cannot take the problem.
    """
    if executor in ("cpu", "vgpu"):
        # The driver is not even asked: this is the way around one that does not work.
        return executor, f"executor={executor!r} is set"
    if executor is None and flop_per_matrix is not None and flop_per_matrix < HOST_TO_GPU_FLOP:
        # The driver is not started for small things.
        return (
            "cpu",
            f"host arrays; fewer than 2**{HOST_TO_GPU_FLOP.bit_length() - 1} FLOP a matrix do not repay copies",
        )
    why_not = _why_no_gpu(dtypes, c_dtype)
    if executor == "gpu":
        if why_not is not None:
            remedy = "executor='cpu'" if device_count() else "executor='cpu', or executor='vgpu', a virtual GPU"
            raise UnsupportedError(f"executor='gpu' cannot take this: {why_not}; give {remedy}")
        return "gpu", "executor='gpu' is set"
    if why_not is not None:
        return "cpu", why_not
    return "gpu", "host arrays with enough FLOP to repay copies"


def _why_no_gpu(dtypes: tuple[str, str, str], c_dtype: str | None) -> str | None:
    if device_count() == 0:
        return "no NVIDIA GPU found"
    try:
        arch = get_device(0).arch
    except UnsupportedError as error:
        return str(error)
    return why_no_gemm((*dtypes, c_dtype) if c_dtype is not None else dtypes, arch)
