"""Gated activations: of two products, or one of twice the columns, each two columns become one of the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from gemmule.core.activations import gelu, gelu_tanh, relu, silu
from gemmule.core.errors import ArgumentError, DTypeError, ShapeError
from gemmule.core.tracing import Traced
from gemmule.runtime.arrays import ArrayView

#: Those that `gemm` takes by name: functions of the gate, which is multiplied by the other value.
NAMED_GATED: dict[str, Callable[[Any], Traced]] = {
    "swiglu": silu, "geglu": gelu, "geglu_tanh": gelu_tanh, "reglu": relu,
}  # fmt: skip
#: Columns of the gates in B, and those of the others.
HALVES, PAIRS = "halves", "pairs"
#: Roles of the second factor and of the halves of the bias. B itself is that of the gates from then on.
SECOND, GATE_BIAS, UP_BIAS = "up", "bias (of the gates)", "bias (of up)"
#: The call's array that they are views of, if any.
WHOLE = {SECOND: "b", GATE_BIAS: "bias", UP_BIAS: "bias"}


def storage_of(epilogue: Any, gated: Any) -> str | None:
    """Return the column layout of a gated activation, or None for another epilogue.

    Those of a second array follow B's, as halves.

    Raises
    ------
    ArgumentError
        If `gated` is not known, or comes with an epilogue that is not gated.
    """
    if gated is None:
        return HALVES if isinstance(epilogue, str) and epilogue in NAMED_GATED else None
    if isinstance(gated, str) and gated not in (HALVES, PAIRS):
        raise ArgumentError(
            f"gated={gated!r} is not known; choose 'halves' (b has the columns of the gates, then those of up) or "
            "'pairs' (they alternate), or pass the matrix of up"
        )
    if not callable(epilogue) and not (isinstance(epilogue, str) and epilogue in NAMED_GATED):
        raise ArgumentError(
            f"gated{f'={gated!r}' if isinstance(gated, str) else ''} needs an epilogue of two values, not {epilogue!r}"
            f"; choose one of {', '.join(map(repr, NAMED_GATED))}, or pass a function such as "
            "lambda gate, up: gemmule.epilogue.silu(gate) * up"
        )
    return gated if isinstance(gated, str) else HALVES


def with_halves(views: Mapping[str, ArrayView], storage: str) -> dict[str, ArrayView]:
    """Return the arrays of a call with B, unless the second factor is there, and the bias cut in two.

    Parameters
    ----------
    views : mapping of str to ArrayView
        Arrays by role, as they were given.
    storage : {'halves', 'pairs'}
        Column layout.

    Raises
    ------
    ShapeError
        If B is no matrix, its columns are odd in number, or the second factor or the bias does not fit it.
    DTypeError
        If the factors are of different types.
    """
    cut, b = dict(views), views["b"]
    columns_of_both = b.shape[-1:]
    if SECOND in views:
        _check_second(b, views[SECOND])
        columns_of_both = (2 * b.shape[-1],)
    elif len(b.shape) < 2 or b.shape[-1] % 2:
        raise ShapeError(
            f"b has shape {b.shape}; of a gated activation it is (..., K, 2 * N), with an even number of columns: "
            "those of the gates and as many of up; give as many of both, or the gates as b and up as gated"
        )
    else:
        cut["b"], cut[SECOND] = _cut(b, storage)
    if "bias" in views:
        bias = views["bias"]
        columns = bias.shape[-1] if bias.shape else 1
        if columns not in (1, *columns_of_both):
            raise ShapeError(
                f"bias has shape {bias.shape}; of a gated activation it has a value for each column of both products, "
                f"{columns_of_both}, or one for each row, (M, 1)"
            )
        cut[GATE_BIAS], cut[UP_BIAS] = (bias, bias) if columns == 1 else _cut(bias, storage)
        del cut["bias"]
    return cut


def _check_second(b: ArrayView, second: ArrayView) -> None:
    """Refuse a second factor that is not what B is."""
    if len(b.shape) < 2 or b.shape != second.shape:
        raise ShapeError(
            f"b has shape {b.shape} and the matrix given as gated {second.shape}; both must be (..., K, N) for a "
            "result of N columns"
        )
    if b.dtype_name != second.dtype_name:
        raise DTypeError(f"b is {b.dtype_name} and the matrix given as gated {second.dtype_name}; convert one of them")


def _cut(view: ArrayView, storage: str) -> tuple[ArrayView, ArrayView]:
    """Return the two halves of an array's columns."""
    half = view.shape[-1] // 2
    first, step = (half, 1) if storage == HALVES else (1, 2)
    return _columns(view, 0, step, half), _columns(view, first, step, half)


def _columns(view: ArrayView, first: int, step: int, count: int) -> ArrayView:
    shape = (*view.shape[:-1], count)
    if view.host is not None:
        host = view.host[..., first : first + (count - 1) * step + 1 : step] if count else view.host[..., :0]
        return dataclasses.replace(view, shape=shape, host=host)
    stride = view.strides[-1]
    address = view.address + first * stride * view.itemsize
    return dataclasses.replace(view, shape=shape, address=address, strides=(*view.strides[:-1], step * stride))
