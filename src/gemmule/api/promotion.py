"""Which element type a product has."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from gemmule.core.dtype import EXTENSION_FLOATS, numpy_dtype
from gemmule.core.errors import DTypeError, shown


def dtype_name(dtype: Any, argument: str) -> str:
    """Return the name of a dtype given as a string or as a dtype of an array library; `argument` is for messages.

    Raises
    ------
    DTypeError
        If it is none of these.
    """
    found = _dtype(dtype, argument)
    if found.kind not in _KINDS and found.name not in EXTENSION_FLOATS:
        raise DTypeError(
            f"{argument}={shown(dtype)} is none that gemmule multiplies; name one such as float32, bfloat16, "
            "float8_e4m3fn or int8"
        )
    return found.name


def _dtype(dtype: Any, argument: str) -> np.dtype[Any]:
    text = str(dtype)
    if isinstance(dtype, str) or text.startswith("torch."):
        try:
            return numpy_dtype(text.removeprefix("torch."))
        except DTypeError as error:
            raise DTypeError(f"{argument}: {error}") from None
    try:
        found: np.dtype[Any] = np.dtype(dtype)
        return found
    except (TypeError, ValueError):
        # Of other libraries the last part of what they print is the standard's name.
        library, _, name = text.rpartition(".")
        if library and name.isidentifier():
            with contextlib.suppress(DTypeError):
                return numpy_dtype(name)
        raise DTypeError(
            f"{argument}={shown(dtype)} is not a dtype; pass a name such as 'float32', or a dtype"
        ) from None


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
    return _kind(name) in "iub"


def check_output_kind(inputs: tuple[str, ...], output: str) -> None:
    """Refuse an output type of a lesser kind than what the inputs give: complex, floating point, integer.

    Raises
    ------
    DTypeError
        If, say, a floating-point product is to be written as integers.
    """
    kinds = {name: _KINDS[_kind(name)] for name in (*inputs, output)}
    greatest = max(inputs, key=lambda name: kinds[name])
    if kinds[greatest] > kinds[output]:
        raise DTypeError(
            f"a product of {' and '.join(inputs)} cannot be written as {output}; choose an out_dtype of the kind of "
            f"{greatest}, or convert the inputs"
        )


_KINDS = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


def _kind(name: str) -> str:
    # Some floats of ml_dtypes have NumPy's kind of raw bytes.
    return "f" if name in EXTENSION_FLOATS else numpy_dtype(name).kind
