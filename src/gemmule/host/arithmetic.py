"""Which types a product is multiplied and summed in on the host."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gemmule.core.dataclass import dataclass

from ..core.dtype import NARROW_FLOATS
from ..core.errors import DTypeError
from ..executor.tiles import Array

_RANK = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
_SHORTEST_EXACT_RUN = 64
# Sums of products up to this stay below 2**63 whatever the length.
_NEVER_WRAPS = 2**31
#: Bits of a limb of a wide integer.
LIMB_BITS = 16


@dataclass(frozen=True)
class Arithmetic:
    """Arithmetic of a product."""

    compute: np.dtype[Any]  #: Type that the operands are converted to and multiplied in.
    total: np.dtype[Any]  #: Type of the sum.
    #: For integers multiplied in floating point: most terms whose sum is sure to be an exact integer.
    exact_run: int | None = None
    #: Parts of 16 bits that the integers of A and of B are cut into, so that their products are exact.
    limbs: tuple[int, int] = (1, 1)


@functools.cache
def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype, which NumPy puts together each time."""
    return str(dtype.name)


def plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return NumPy's own type, in native byte order, that holds every value of `dtype`.

    Raises
    ------
    DTypeError
        If `dtype` is not a number that the host multiplies.
    """
    if name_of(dtype) in NARROW_FLOATS:
        return np.dtype(np.float32)
    native: np.dtype[Any] = np.dtype(dtype.type)
    if native.kind not in _RANK or native.isbuiltin != 1:
        raise DTypeError(
            f"dtype {dtype} cannot be multiplied; the host takes NumPy's numbers, bfloat16, float8_e4m3fn and "
            "float8_e5m2; convert with astype first"
        )
    return native


def widened(x: Array) -> Array:
    """Return `x` in its `plain` type, without a copy where it has that type."""
    return x.astype(plain(x.dtype), copy=False)


def check_kind(source: np.dtype[Any], out: np.dtype[Any], what: str) -> None:
    """Refuse to write complex numbers into a real output, fractions into an integer one, integers into a bool one.

    Raises
    ------
    DTypeError
        If `out` is of a lesser kind than `source`.
    """
    if _RANK[plain(out).kind] < _RANK[plain(source).kind]:
        raise DTypeError(
            f"{what} of dtype {source} does not go into an output of dtype {out}; give out a dtype of that kind"
        )


@functools.cache
def choose_arithmetic(a: np.dtype[Any], b: np.dtype[Any], out: np.dtype[Any]) -> Arithmetic:
    """Choose how to compute a product of `a` and `b` that ends in `out`.

    Floats of 16 and 8 bits are summed in float32, other floats and complex numbers in their common type. Integers
    are summed modulo 2**32 if `out` is an integer of at most 32 bits, else modulo 2**64; on their way to a float, those
    whose sums might wrap are summed in float64. Two bools are summed as bool.

    Raises
    ------
    DTypeError
        If a type cannot be multiplied.
    """
    a, b, out = plain(a), plain(b), plain(out)
    common = np.result_type(a, b)
    # NumPy has no integer type for int64 with uint64; modulo 2**64 there is one answer, and only integers keep it.
    out_is_integer = out.kind in "iu"
    no_common_integer = common.kind == "f" and not out_is_integer
    if common.kind == "b" or a.kind in "fc" or b.kind in "fc" or no_common_integer:
        return Arithmetic(common, common)

    largest = _largest_magnitude(a) * _largest_magnitude(b)
    if not out_is_integer and largest > _NEVER_WRAPS:
        return Arithmetic(np.dtype(np.float64), np.dtype(np.float64))
    short = out_is_integer and out.itemsize <= 4
    total = np.dtype(np.int32 if short else np.uint64 if common.kind == "u" else np.int64)
    # NumPy has no integer BLAS: sums of floats are exact, and far faster, while they are integers below 2**significand.
    for compute, significand in ((np.float32, 24), (np.float64, 53)):
        run = 2**significand // largest
        if run >= _SHORTEST_EXACT_RUN:
            return Arithmetic(np.dtype(compute), total, run)
    limbs = tuple(-(-8 * min(x.itemsize, total.itemsize) // LIMB_BITS) for x in (a, b))
    return Arithmetic(np.dtype(np.float64), total, 2 ** (53 - 2 * LIMB_BITS), (limbs[0], limbs[1]))


def _largest_magnitude(dtype: np.dtype[Any]) -> int:
    if dtype.kind == "b":
        return 1
    info = np.iinfo(dtype)
    return max(-int(info.min), int(info.max))
