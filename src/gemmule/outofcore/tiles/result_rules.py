"""Rules for the result of a large product: its shape, its element type, its scalars."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from gemmule.core.name_suggestions import remedy_for

from ...core.dtype import NARROW_FLOATS, numpy_dtype
from ...core.errors import ArgumentError, DTypeError, ShapeError
from ..stores.matrix import AnyDType, MatrixSource, TransposedSource

_OUTPUTS = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
)  # fmt: skip
_KINDS = {"i": 0, "u": 0, "f": 1, "c": 2}
_KIND_NAMES = "integer", "floating-point", "complex"


def plain_kind(dtype: AnyDType) -> str:
    """Return NumPy's letter for the kind of `dtype`: ``f`` also for the narrow floats that NumPy does not know."""
    # The kind first: a name takes seven calls to compose.
    return "f" if dtype.kind == "V" and dtype.name in NARROW_FLOATS else dtype.kind


def sum_dtype(a: AnyDType, b: AnyDType) -> AnyDType:
    """Return the type that products of floats of `a` and `b` are summed in."""
    plain = [np.dtype(np.float32) if dtype.name in NARROW_FLOATS else dtype for dtype in (a, b)]
    return np.result_type(*plain)


def output_dtype(name: str, argument: str = "out_dtype") -> AnyDType:
    """Return the type called `name`, which results may have; `argument` is for messages.

    Raises
    ------
    DTypeError
        If results are not written in such a type.
    """
    try:
        dtype = numpy_dtype(name)
    except DTypeError as error:
        raise DTypeError(f"{argument}={name!r}: {error}") from None
    if dtype.name not in _OUTPUTS:
        raise DTypeError(f"{argument}={name!r} is not a type of results; {remedy_for(name, _OUTPUTS)}")
    return dtype


def result_dtype(a: AnyDType, b: AnyDType, out: AnyDType | None = None) -> AnyDType:
    """Return the element type of the result: `out` where it can hold the product, else the common type.

    Two int8 matrices give int32; all else follows NumPy's promotion.

    Raises
    ------
    DTypeError
        If there is no common type, or `out` is of a lesser kind than it.
    """
    if out is None:
        if a == b == np.dtype(np.int8):
            return np.dtype(np.int32)
        try:
            out = np.promote_types(a, b)
        except TypeError:
            raise DTypeError(f"dtypes {a} and {b} have no common type; say what to write with out_dtype") from None
        return out
    for operand in (a, b):
        if _KINDS[plain_kind(operand)] > _KINDS[plain_kind(out)]:
            kind = _KIND_NAMES[_KINDS[plain_kind(operand)]]
            raise DTypeError(f"a product of {a} and {b} cannot be written as {out}; choose a {kind} type as out_dtype")
    return out


def _remedy(a: MatrixSource, b: MatrixSource) -> str:
    """Say which transposes would make the shapes fit, if any does."""
    first, second = (
        f"{'no ' if isinstance(source, TransposedSource) else ''}transpose_{name}=True"
        for name, source in (("a", a), ("b", b))
    )
    fitting = {
        first: a.shape[0] == b.shape[0],
        second: a.shape[1] == b.shape[1],
        f"{first} with {second}": a.shape[0] == b.shape[1],
    }
    names = [name for name, fits in fitting.items() if fits]
    return f"give {' or '.join(names)}" if names else "no transpose of them fits; give other matrices"


def check_product(
    a: MatrixSource,
    b: MatrixSource,
    c: MatrixSource | None,
    shape: tuple[int, int],
    out: AnyDType,
    alpha: Any,
    beta: Any,
) -> None:
    """Refuse a product whose shapes, types or scalars do not fit together.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError
        Whichever rule is broken.
    """
    if a.shape[1] != b.shape[0]:
        raise ShapeError(
            f"{a.name} is {a.shape[0]} x {a.shape[1]} and {b.name} is {b.shape[0]} x {b.shape[1]}; the columns of A "
            f"must be as many as the rows of B; {_remedy(a, b)}"
        )
    expected = a.shape[0], b.shape[1]
    if shape != expected:
        raise ShapeError(
            f"the output is {shape[0]} x {shape[1]}; the product is {expected[0]} x {expected[1]}; give out that shape"
        )
    if beta != 0 and c is None:
        raise ArgumentError(f"beta={beta} scales a matrix, and none is given; give c=..., or leave it out")
    if c is not None and c.shape != expected:
        raise ShapeError(
            f"{c.name} is {c.shape[0]} x {c.shape[1]} and the product is {expected[0]} x {expected[1]}; "
            "a matrix that is added has the shape of the product"
        )
    result_dtype(a.dtype, b.dtype, out)
    if c is not None and beta != 0:
        result_dtype(c.dtype, c.dtype, out)
    kind = sum_dtype(a.dtype, b.dtype)
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not isinstance(value, numbers.Real) and kind.kind != "c":
            raise ArgumentError(f"{name}={value} is complex, but the product is real; give compute_dtype='complex128'")
        # Compared as they are: integers may be larger than floats.
        if kind.kind in "fc" and float(np.finfo(kind).max) < abs(value) < math.inf:
            given = name if isinstance(value, int) else f"{name}={value}"
            raise ArgumentError(f"{given} does not fit into {kind}, which scales the sum; scale the operands instead")
    if plain_kind(out) in "iu":
        for name, value in (("alpha", alpha), ("beta", beta)):
            if value != value or value in (float("inf"), float("-inf")) or value != int(value):
                raise ArgumentError(
                    f"{name}={value} is not an integer and the output is {out}; give an integer, or a "
                    "float as out_dtype"
                )
