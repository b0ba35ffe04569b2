"""Signature of a fused epilogue: its expression, and the layouts of the matrices that it reads."""

from __future__ import annotations

from typing import Any

from cutlass import Float32

from gemmule.core.epilogue import ABSMAX, Expression

from .absolute_maximum import fake_absmax
from .tensors import marked_tensor


class EpilogueInputs:
    """An expression and its inputs.

    Parameters
    ----------
    types : dict
        ``epilogue``, the expression's text, ``inputs``, for each matrix its type and the marks of its strides, and
        ``absmax``, where that is wanted.
    """

    def __init__(self, types: dict[str, str]) -> None:
        self.expression = Expression.parse(types["epilogue"])
        self.has_absmax = ABSMAX in types
        self.inputs = tuple((name, marks) for name, _, marks in (one.partition(":") for one in types["inputs"].split()))

    def fake_args(self) -> tuple[Any, ...] | None:
        """Return fake launch parameters: matrices, then numbers, and the absolute maximum last."""
        tensors = (marked_tensor(name, marks) for name, marks in self.inputs)
        last = (fake_absmax(),) if self.has_absmax else ()
        return (*tensors, *(Float32(1),) * self.expression.numbers, *last) or None
