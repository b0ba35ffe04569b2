"""Kinds of products: those that every kernel refuses alike, so that a choice knows who takes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from .dtype import Precision
from .problem import GemmProblem, Problem

Result = TypeVar("Result")
#: Extents of products that have a kind, from 2 on, elements of their results, and elements from one line, or matrix, to
#: the next: no kernel refuses so few.
_MOST_EXTENT, _MOST_OUTPUTS, _MOST_STRIDE = (1 << 16) - 1, 1 << 32, 1 << 32
#: Bytes that decide what TMA and vectors load.
_WHOLE = 16
#: Other precisions are refused by extents too.
_PRECISIONS = (Precision.IEEE, Precision.TF32, Precision.BF16X6, Precision.FLOAT8)
_MOST_KINDS = 4096

#: For each cached function its last second argument, and the result.
_Known = dict[object, tuple[Any, Any]]
_kinds: dict[tuple[object, ...], _Known] = {}
#: The last problem, and the cache of its kind. Replaced as a whole, for other threads.
_last: list[tuple[Problem | None, _Known | None]] = [(None, None)]


def _known_of(problem: Problem) -> _Known | None:
    """Return `_find_known` of a problem; that of the last call is cached: a choice needs it many times."""
    last = _last[0]
    if last[0] is problem:
        return last[1]
    known = _find_known(problem) if isinstance(problem, GemmProblem) else None
    _last[0] = problem, known
    return known


def _find_known(problem: GemmProblem) -> _Known | None:
    """Return the cached facts of a product's kind; None of one without a kind, whose every number may count.

    The kind is the types, layouts, whether lines and matrices begin at multiples of 16 bytes, whether D's
    lines end there, and of TF32 which operand is larger.
    """
    m, n, batch = problem.m, problem.n, problem.batch
    extents = (m, n, problem.k, *batch)
    if problem.c is not None or problem.epilogue is not None or problem.needed is not None or problem.alpha != 1:
        return None
    if min(extents) < 2 or max(extents) > _MOST_EXTENT or len(batch) > 1 or problem.precision not in _PRECISIONS:
        return None
    if batch and m * n * batch[0] > _MOST_OUTPUTS:
        return None
    line_bytes = (n if problem.d.col_stride == 1 else m) * problem.d.dtype.itemsize
    # With TF32 the larger operand may stay in place, which decides the prepared product.
    wide = problem.precision is Precision.TF32 and m < n
    kind: list[object] = [problem.precision, problem.own_transpose, line_bytes % _WHOLE == 0, wide]
    for matrix in (problem.a, problem.b, problem.d):
        row, col, item = matrix.row_stride, matrix.col_stride, matrix.dtype.itemsize
        stride = row if col == 1 else col
        if (col != 1 and row != 1) or not 0 < stride <= _MOST_STRIDE:
            return None
        kind += (
            matrix.dtype, row == 1, col == 1, stride * item % _WHOLE == 0,
            math.gcd(matrix.alignment, _WHOLE), matrix.padded, matrix.conj,
        )  # fmt: skip
        if batch:
            (step,) = matrix.batch_strides
            if not 0 <= step <= _MOST_STRIDE:
                return None
            kind += step == 0, step * item % _WHOLE == 0
    key = tuple(kind)
    known = _kinds.get(key)
    if known is None:
        if len(_kinds) >= _MOST_KINDS:
            _kinds.clear()
        known = _kinds.setdefault(key, {})
    return known


class CachedForKinds(Generic[Result]):
    """A function of a product and another argument that has one result for all products of a kind: it is called once.

    The result for the last other argument is cached for each kind. Problems without a kind are not.
    """

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[Any, Any], Result]) -> None:
        self._function = function

    def __reduce__(self) -> tuple[object, ...]:
        return CachedForKinds, (self._function,)

    def __call__(self, problem: Problem, other: Any) -> Result:
        known = _known_of(problem)
        if known is None:
            return self._function(problem, other)
        found = known.get(self)
        if found is None or (found[0] is not other and found[0] != other):
            found = known[self] = other, self._function(problem, other)
        result: Result = found[1]
        return result
