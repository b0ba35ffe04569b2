"""Gated forms: one product of twice the columns, of which each two become one column of the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from gemmule.core.activations import gelu, gelu_tanh, relu, silu
from gemmule.core.errors import ArgumentError, ShapeError
from gemmule.core.traced import Traced
from gemmule.runtime.arrays import ArrayView

#: Those that `gemm` takes by name: functions of the gate, which is multiplied by the other value.
NAMED_GATED: dict[str, Callable[[Any], Traced]] = {
    "swiglu": silu, "geglu": gelu, "geglu_tanh": gelu_tanh, "reglu": relu,
}  # fmt: skip
#: Where the columns of the gates are in B, and those of the others.
HALVES, PAIRS = "halves", "pairs"
#: Roles of the other half of B and of the two of the bias. B itself is the gates' half from then on.
SECOND, GATE_BIAS, UP_BIAS = "b (columns of up)", "bias (of the gates)", "bias (of up)"


def storage_of(epilogue: Any, gated: str | None) -> str | None:
    """Return how the columns of a gated form lie, or None where the epilogue is none.

    Raises
    ------
    ArgumentError
        If `gated` is not known, or stands beside something else than a gated epilogue.
    """
    if gated is None:
        return HALVES if isinstance(epilogue, str) and epilogue in NAMED_GATED else None
    if gated not in (HALVES, PAIRS):
        raise ArgumentError(
            f"gated={gated!r} is not known; choose 'halves' (b has the columns of the gates, then those of up) or "
            "'pairs' (they alternate)"
        )
    if not callable(epilogue) and not (isinstance(epilogue, str) and epilogue in NAMED_GATED):
        raise ArgumentError(
            f"gated={gated!r} needs an epilogue of two values, not {epilogue!r}; choose one of "
            f"{', '.join(map(repr, NAMED_GATED))}, or pass a function such as lambda gate, up: gemmule.silu(gate) * up"
        )
    return gated


def with_halves(views: Mapping[str, ArrayView], storage: str) -> dict[str, ArrayView]:
    """Return the arrays of a call with B, and the bias, cut in two.

    Parameters
    ----------
    views : mapping of str to ArrayView
        Arrays by role, as they were given.
    storage : {'halves', 'pairs'}
        How the columns lie.

    Raises
    ------
    ShapeError
        If B is no matrix, its columns are odd in number, or the bias does not fit them.
    """
    cut, b = dict(views), views["b"]
    if len(b.shape) < 2 or b.shape[-1] % 2:
        raise ShapeError(
            f"b has shape {b.shape}; of a gated form it is (..., K, 2 * N): a column of gates and one of up for each "
            "column of the result"
        )
    cut["b"], cut[SECOND] = _cut(b, storage)
    if "bias" in views:
        bias = views["bias"]
        columns = bias.shape[-1] if bias.shape else 1
        if columns not in (1, b.shape[-1]):
            raise ShapeError(
                f"bias has shape {bias.shape}; of a gated form it has a value for each of the {b.shape[-1]} columns of "
                f"b, ({b.shape[-1]},), or one for each row, (M, 1)"
            )
        cut[GATE_BIAS], cut[UP_BIAS] = (bias, bias) if columns == 1 else _cut(bias, storage)
        del cut["bias"]
    return cut


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
