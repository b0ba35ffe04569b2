"""Which library an array comes from."""

from __future__ import annotations

import sys
from typing import Any

import array_api_compat
import numpy as np

from gemmule.core.errors import ArgumentError

from .array_specs import is_spec, no_memory
from .cupy_arrays import CupyLibrary
from .descriptions import CallArrays
from .dlpack_arrays import DlpackLibrary
from .jax_arrays import JaxLibrary
from .numpy_arrays import NumpyLibrary
from .torch_arrays import TorchLibrary
from .view import ArrayLibrary

_NUMPY, _TORCH, _CUPY, _JAX, _DLPACK = NumpyLibrary(), TorchLibrary(), CupyLibrary(), JaxLibrary(), DlpackLibrary()


def _remedy(x: Any, role: str) -> str:
    """Return how to convert an object to an array: a copy, which the caller should request explicitly."""
    if hasattr(x, "toarray"):
        # SciPy's sparse matrices, of which numpy.asarray makes an array of one object.
        return f"convert it with {role}.toarray(), or pass"
    named = isinstance(x, list | tuple) or hasattr(x, "__array__") or hasattr(x, "__array_interface__")
    return "convert it with numpy.asarray, or pass" if named or _has_buffer(x) else "pass"


def _has_buffer(x: Any) -> bool:
    """Return whether an object exports a buffer of numbers, as `array.array` does."""
    if isinstance(x, bytes | bytearray):
        return False
    try:
        memoryview(x)
    except TypeError:
        return False
    return True


def library_of(x: Any, role: str) -> ArrayLibrary:
    """Return the library that an array comes from.

    Parameters
    ----------
    x : array
        Argument of the caller.
    role : str
        Its name in messages.

    Raises
    ------
    ArgumentError
        If it is not an array.
    """
    if isinstance(x, type):
        raise ArgumentError(f"{role} is the class {x.__name__}, not an array; pass an array")
    if array_api_compat.is_numpy_array(x):
        return _NUMPY
    if array_api_compat.is_torch_array(x):
        return _TORCH
    if array_api_compat.is_cupy_array(x):
        return _CUPY
    if array_api_compat.is_jax_array(x):
        return _JAX
    if hasattr(x, "__dlpack__") or hasattr(x, "__cuda_array_interface__"):
        return _DLPACK
    if is_spec(x):
        raise no_memory(role, f"a {type(x).__name__}")
    raise ArgumentError(
        f"{role} is of type {type(x).__name__}, not an array; {_remedy(x, role)} an array of NumPy, PyTorch, CuPy, JAX "
        "or another library that supports DLPack"
    )


def call_arrays_of(kind: type) -> CallArrays | None:
    """Return the describer of arrays of a type in repeated calls; None where such calls are planned each time."""
    if kind is np.ndarray:
        return _NUMPY.call_arrays()
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    # Subclasses may mean something else by their methods.
    if torch is not None and kind in (torch.Tensor, torch.nn.Parameter):
        return _TORCH.call_arrays()
    return _CUPY.call_arrays() if cupy is not None and kind is cupy.ndarray else None
