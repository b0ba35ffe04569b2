"""Calls to the CUDA driver, each checked."""

from __future__ import annotations

import ctypes
import functools
import os
from types import ModuleType
from typing import Any

from gemmule.core.errors import DeviceMemoryError, DriverError, UnsupportedError

_MORE_MEMORY = (
    "let go of arrays, and of what their library keeps of those that are gone (torch.cuda.empty_cache(), "
    "cupy.get_default_memory_pool().free_all_blocks()), or multiply in parts"
)


class _Process:
    """Return whether this process was forked after the driver's start, which works in the parent only."""

    forked = False

    @classmethod
    def watch(cls) -> None:
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=cls._lose)

    @classmethod
    def _lose(cls) -> None:
        cls.forked = True


def lost_by_fork() -> bool:
    """Return whether the driver was started before this process was forked, so that it cannot be used here."""
    return _Process.forked


@functools.cache
def driver_is_missing() -> bool:
    """Return whether no driver is installed; it is not initialised, after which processes could not be forked."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return True
    return False


@functools.cache
def driver_module() -> ModuleType | None:
    """Return NVIDIA's driver bindings with the driver initialised, or None where there is no driver or no GPU."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return None
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:
        # Importing this takes longer than the rest of a first call.
        from cuda.pathfinder import DynamicLibNotFoundError

        if isinstance(error, DynamicLibNotFoundError):
            return None
        raise
    if status in (driver.CUresult.CUDA_ERROR_NO_DEVICE, driver.CUresult.CUDA_ERROR_STUB_LIBRARY):
        return None
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DriverError(
            "cuInit",
            status.name,
            "the NVIDIA driver is installed but does not start; GEMMULE_EXECUTOR=cpu does without it",
        )
    _Process.watch()
    found: ModuleType = driver
    return found


def driver() -> ModuleType:
    """Return NVIDIA's driver bindings.

    Raises
    ------
    UnsupportedError
        If there is no driver or no GPU.
    """
    module = driver_module()
    if module is None:
        raise UnsupportedError("no NVIDIA GPU found; use executor='cpu', or leave it out")
    return module


def call(name: str, *arguments: Any) -> Any:
    """Call a driver function and return its result: None, a value, or a tuple of values.

    Raises
    ------
    DriverError
        If the driver reports an error; it names the function.
    """
    module = driver()
    status, *results = getattr(module, name)(*arguments)
    if status != module.CUresult.CUDA_SUCCESS:
        check(name, int(status))
    if not results:
        return None
    return results[0] if len(results) == 1 else tuple(results)


def check(name: str, status: int) -> None:
    """Raise if a driver function returned an error.

    Raises
    ------
    DriverError
        It names the function; a DeviceMemoryError where memory is what lacks.
    """
    if status:
        module = driver()
        known = module.CUresult(status)
        _, text = module.cuGetErrorString(known)
        detail = text.decode() if text else "no description"
        if known == module.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise DeviceMemoryError(name, known.name, f"{detail}; {_MORE_MEMORY}")
        raise DriverError(name, known.name, detail)
