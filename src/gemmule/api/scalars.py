"""alpha and beta as callers give them."""

from __future__ import annotations

import numbers
from typing import Any

from gemmule.core.errors import ArgumentError, GemmuleError
from gemmule.runtime.arrays import library_of


def said_beta(beta: Any, *, unread: bool) -> Any:
    """Return beta, which is 0 where the caller does not say it.

    Parameters
    ----------
    beta : number or None
        What the caller passed; None if nothing.
    unread : bool
        Whether there is a matrix c that nothing else reads.

    Raises
    ------
    ArgumentError
        If c would be left out although nobody said so.
    """
    if beta is None and unread:
        raise ArgumentError("c is given, but beta=0 unless it is said: c would not be read; give beta=1, or no c")
    return 0.0 if beta is None else beta


def number_in(name: str, value: Any) -> Any:
    """Return the number in an array without dimensions; what is none is returned as it is.

    Raises
    ------
    ArgumentError
        If the array is on a GPU, which would have to be waited for, or cannot be read now: it is traced, or requires
        grad.
    """
    if isinstance(value, numbers.Number) or getattr(value, "shape", None) != ():
        return value
    try:
        library = library_of(value, name)
        device = library.device_of(value, name)
        if device is None:
            host = library.view(value, None, name).host
            assert host is not None
            return host.item()
    except GemmuleError as error:
        raise ArgumentError(f"{name} cannot be read as a number ({error}); scale an operand by it instead") from None
    raise ArgumentError(f"{name} is on GPU {device}, and reading it would wait for the GPU; pass {name}.item()")


def scalar(name: str, value: Any, *, integer: bool, complex_allowed: bool) -> Any:
    """Return alpha or beta as a Python number.

    Parameters
    ----------
    name : str
        Name for messages.
    value : number
        What the caller passed.
    integer : bool
        Whether the result is one of integers: then the scalar must be an integer too.
    complex_allowed : bool
        Whether the product is complex.

    Raises
    ------
    ArgumentError
        If the value is not a number of that kind.
    """
    value = number_in(name, value)
    if isinstance(value, numbers.Integral) and integer:
        return int(value)
    if isinstance(value, numbers.Real):
        try:
            number = float(value)
        except OverflowError:
            raise ArgumentError(f"{name} does not fit into a float64; scale the operands instead") from None
        if not integer:
            return number
        if number.is_integer():
            return int(number)
        raise ArgumentError(
            f"{name}={value} must be an integer, since the result is one of integers; choose another out_dtype"
        )
    if isinstance(value, numbers.Complex):
        if complex_allowed:
            return complex(value)
        raise ArgumentError(f"{name}={value} is complex, but the product is real; convert the inputs")
    raise ArgumentError(
        f"{name} is a {type(value).__name__}, not a number; pass a number, or an array without dimensions"
    )
