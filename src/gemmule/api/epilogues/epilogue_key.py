"""The epilogue key, for a product whose epilogue function is traced at every call.

The meaning of a function may depend on more than the function, such as a captured number.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..validation.product import ABSMAX, ProductArguments
from .ending import Ending, ending_of
from .gated import SECOND, storage_of


@dataclasses.dataclass(frozen=True, slots=True)
class Traced:
    """An epilogue that was traced.

    Attributes
    ----------
    made : tuple of (Ending, dict of str to array)
        Result of `ending_of`.
    inputs : dict of str to array
        The call's arrays besides A, B and the output, by role; C, which comes first, may be None, and that for the
        absolute maximum comes last.
    does : tuple
        Key of the traced formula.
    """

    made: tuple[Ending, dict[str, Any]]
    inputs: dict[str, Any]
    does: tuple[Any, ...]


def traced_epilogue(call: ProductArguments) -> Traced:
    """Trace the epilogue of a call, which has one or keeps the maximum.

    Raises
    ------
    ArgumentError
        As of `ending_of`, and if there is none.
    """
    gated, absmax = call.gated, call.absmax
    storage = storage_of(call.epilogue, gated)
    ending, arrays = ending_of(
        call.epilogue, call.bias, call.c, call.epilogue_args, gated=storage is not None, absmax=absmax is not None
    )
    # Without an epilogue, its arguments and what is gated have been refused.
    assert ending is not None
    inputs = {"c": call.c, **arrays}
    if gated is not None and not isinstance(gated, str):
        inputs[SECOND] = gated
    if absmax is not None:
        inputs[ABSMAX] = absmax
    # Numbers by their digits: 0.0 equals -0.0, and NaN nothing.
    numbers = tuple(map(float.hex, ending.numbers))
    does = (storage, *inputs, ending.expression, ending.roles, numbers, ending.gated, ending.absmax, ending.blocks)
    return Traced((ending, arrays), inputs, does)
