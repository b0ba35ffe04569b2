"""What a product with an epilogue is known by: what its function does, for which it is traced at every call.

What a function means may depend on more than the function, such as a number from outside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .absolute_maximum import ROLE as ABSMAX
from .epilogues import Ending, ending_of
from .gated import SECOND, storage_of


@dataclasses.dataclass(frozen=True, slots=True)
class Traced:
    """An epilogue that was traced.

    Attributes
    ----------
    made : tuple of (Ending, dict of str to array)
        What `ending_of` has made of it.
    inputs : dict of str to array
        The call's arrays beside A, B and the output, by role; C, which comes first, may be None, and that for the
        absolute maximum comes last.
    does : tuple
        What tells it from others.
    """

    made: tuple[Ending, dict[str, Any]]
    inputs: dict[str, Any]
    does: tuple[Any, ...]


def traced_epilogue(
    c: Any, bias: Any, epilogue: Any, epilogue_args: Mapping[str, Any] | None, gated: Any, absmax: Any
) -> Traced:
    """Trace the epilogue of a call, which has one or keeps the maximum. The parameters are those of `gemm`.

    Raises
    ------
    ArgumentError
        As of `ending_of`, and if there is none.
    """
    storage = storage_of(epilogue, gated)
    ending, arrays = ending_of(epilogue, bias, c, epilogue_args, gated=storage is not None, absmax=absmax is not None)
    # Without an epilogue, its arguments and what is gated have been refused.
    assert ending is not None
    inputs = {"c": c, **arrays}
    if gated is not None and not isinstance(gated, str):
        inputs[SECOND] = gated
    if absmax is not None:
        inputs[ABSMAX] = absmax
    # Of numbers their digits, for 0.0 equals -0.0, and NaN nothing.
    numbers = tuple(map(float.hex, ending.numbers))
    does = (storage, *inputs, ending.expression, ending.roles, numbers, ending.gated, ending.absmax)
    return Traced((ending, arrays), inputs, does)
