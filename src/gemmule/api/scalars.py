"""alpha and beta as callers give them."""

from __future__ import annotations

import math
import numbers
from typing import Any

from gemmule.core.errors import ArgumentError


def scalar(name: str, value: Any, *, integer: bool, complex_allowed: bool) -> Any:
    """Return alpha or beta as a Python number.

    Parameters
    ----------
    name : str
        Name for messages.
    value : number
        What the caller passed.
    integer : bool
        Whether the product is one of integers: then the scalar must be an integer too.
    complex_allowed : bool
        Whether the product is complex.

    Raises
    ------
    ArgumentError
        If the value is not a number of that kind.
    """
    if not isinstance(value, numbers.Number):
        raise ArgumentError(f"{name} is a {type(value).__name__}, not a number; pass a Python or NumPy number")
    if isinstance(value, numbers.Real):
        number = float(value)
        if not integer:
            return number
        if math.isfinite(number) and number == math.floor(number):
            return math.floor(value)
        raise ArgumentError(
            f"{name}={value} must be an integer, since the product is one of integers; convert the inputs"
        )
    if complex_allowed:
        return complex(value)  # type: ignore[call-overload]
    raise ArgumentError(f"{name}={value} is complex, but the product is real; convert the inputs")
