"""Which element type a product has."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmule.core.dtype import numpy_dtype
from gemmule.core.errors import DTypeError


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype given as a string or as a dtype of NumPy, ml_dtypes, PyTorch, CuPy or JAX.

    Raises
    ------
    DTypeError
        If it is none of these.
    """
    text = str(dtype)
    if isinstance(dtype, str) or text.startswith("torch."):
        return numpy_dtype(text.removeprefix("torch.")).name
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        raise DTypeError(f"{dtype!r} is not a dtype; pass a name such as 'float32', or a dtype") from None


def promoted(a: str, b: str) -> str:
    """Return the type that the array API standard promotes `a` and `b` to.

    Raises
    ------
    DTypeError
        If they have no common type.
    """
    if a == b:
        return a
    try:
        return str(np.promote_types(numpy_dtype(a), numpy_dtype(b)).name)
    except TypeError:
        raise DTypeError(f"{a} and {b} have no common type; pass out_dtype, or convert one of them") from None


def is_integer(name: str) -> bool:
    """Return whether a type is an integer or boolean."""
    return numpy_dtype(name).kind in "iub"


def check_output_kind(inputs: tuple[str, ...], output: str) -> None:
    """Refuse an output type that cannot hold what the inputs give.

    Raises
    ------
    DTypeError
        If integers meet a floating-point output, or the other way round, or complex numbers a real one.
    """
    all_integer = all(is_integer(name) for name in inputs)
    if all_integer != is_integer(output):
        kind = "an integer" if all_integer else "a floating-point"
        raise DTypeError(
            f"{' x '.join(inputs)} is summed exactly as {kind} number and cannot be written as {output}; choose {kind} "
            "out_dtype, or convert the inputs"
        )
    if any(numpy_dtype(name).kind == "c" for name in inputs) and numpy_dtype(output).kind != "c":
        raise DTypeError(
            f"{' x '.join(inputs)} is complex and cannot be written as {output}; choose a complex out_dtype"
        )
