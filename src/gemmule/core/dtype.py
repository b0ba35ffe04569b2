"""Element types: what a kernel reads, accumulates in and writes."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from .errors import DTypeError, shown


class Kind(enum.Enum):
    """Arithmetic that a type belongs to."""

    FLOAT = "float"
    INTEGER = "integer"


@dataclasses.dataclass(frozen=True)
class DType:
    """An element type of a matrix.

    Attributes
    ----------
    name : str
        Name as NumPy and ml_dtypes spell it, e.g. ``"bfloat16"``.
    itemsize : int
        Bytes per element.
    kind : Kind
        Floating point or integer.
    significand : int
        Bits of the significand, the hidden one included; for integers, the bits of the value.
    max_value : float
        Largest finite value.
    """

    name: str
    itemsize: int
    kind: Kind
    significand: int
    max_value: float

    def __hash__(self) -> int:
        # Problems are keys of dictionaries, and hash their types again and again.
        return hash(self.name)

    @property
    def bits(self) -> int:
        """Bits per element."""
        return 8 * self.itemsize

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one rounding, 2**-significand; 0 for integers."""
        return 2.0**-self.significand if self.kind is Kind.FLOAT else 0.0

    @property
    def is_float8(self) -> bool:
        """Whether this is one of the 8-bit floating-point types."""
        return self.kind is Kind.FLOAT and self.itemsize == 1

    def numpy(self) -> np.dtype[Any]:
        """Return the NumPy dtype, native byte order."""
        return numpy_dtype(self.name)

    def __str__(self) -> str:
        return self.name


FLOAT64 = DType("float64", 8, Kind.FLOAT, 53, 1.7976931348623157e308)
FLOAT32 = DType("float32", 4, Kind.FLOAT, 24, 3.4028234663852886e38)
FLOAT16 = DType("float16", 2, Kind.FLOAT, 11, 65504.0)
BFLOAT16 = DType("bfloat16", 2, Kind.FLOAT, 8, 3.3895313892515355e38)
FLOAT8_E4M3 = DType("float8_e4m3fn", 1, Kind.FLOAT, 4, 448.0)
FLOAT8_E5M2 = DType("float8_e5m2", 1, Kind.FLOAT, 3, 57344.0)
INT8 = DType("int8", 1, Kind.INTEGER, 8, 127)
INT32 = DType("int32", 4, Kind.INTEGER, 32, 2**31 - 1)

#: Types that a kernel may multiply, read or write.
DTYPES = (FLOAT64, FLOAT32, FLOAT16, BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, INT8, INT32)

_BY_NAME = {dtype.name: dtype for dtype in DTYPES}


class Precision(enum.Enum):
    """How a product of float32, float64 or 8-bit floats may be computed.

    ``IEEE`` multiplies and accumulates in float32. ``TF32`` allows the inputs to be rounded to the 11 significand bits
    of TF32 first. ``BF16X6`` allows products to be put together from six products of bfloat16: these hold the same 24
    bits, but numbers below 2**-110 lose some, and infinities become NaN. ``INT8X15`` allows those of float64 to be put
    together from 15 products of int8: rows of A and columns of B are rounded to multiples of a power of two, which
    leaves numbers that are small beside others of their row or column fewer bits, and infinities become NaN;
    ``INT8X14`` has one product and four of those bits less, ``INT8X16`` one product and four bits more. ``FLOAT8``
    allows each 128 of K of 8-bit floats to be summed with 13 bits of the fraction, as Hopper's tensor cores do. A
    kernel may be more exact than allowed, never less.
    """

    IEEE = "ieee"
    TF32 = "tf32"
    BF16X6 = "bf16x6"
    INT8X14 = "int8x14"
    INT8X15 = "int8x15"
    INT8X16 = "int8x16"
    FLOAT8 = "float8"

    @classmethod
    def parse(cls, value: str | Precision | None) -> Precision:
        """Return the precision called `value`; None means IEEE.

        Raises
        ------
        DTypeError
            If there is no such precision.
        """
        if value is None:
            return cls.IEEE
        if isinstance(value, cls):
            return value
        named = {member.value: member for member in cls}
        if not isinstance(value, str) or value not in named:
            raise DTypeError(f"precision {shown(value)} is not known; choose one of {', '.join(map(repr, named))}")
        return named[value]

    @classmethod
    def of_inputs(cls, value: str | Precision | None, inputs: Iterable[str]) -> Precision:
        """Return the precision called `value`, for inputs of these types.

        Raises
        ------
        DTypeError
            If there is none, or if it is for other types.
        """
        precision, what = cls.parse(value), "float32 products"
        taken = {"float32"}
        if precision is cls.FLOAT8:
            taken, what = {"float8_e4m3fn", "float8_e5m2"}, "products of 8-bit floats"
        if precision in INT8_PRODUCTS:
            taken, what = {"float64"}, "float64 products"
        if precision is not cls.IEEE and not taken.issuperset(inputs):
            names = " x ".join(inputs)
            raise DTypeError(f"precision={precision.value!r} is for {what}, not {names}; leave it out")
        return precision


#: Significand bits that TF32 keeps of a float32 input, the hidden one included.
TF32_SIGNIFICAND = 11
#: Products of bfloat16 that make one of float32.
BF16_PRODUCTS = 6
#: Products of int8 that make one of float64, by what allows them.
INT8_PRODUCTS = {Precision.INT8X14: 14, Precision.INT8X15: 15, Precision.INT8X16: 16}
#: Errors of FLOAT8's sums as a share of those of magnitudes, (|A| |B|)ij: what is certain, four times 34 cuts at 13
#: bits of the fraction; and below what inputs of many kinds stayed, see docs/decisions/0014-sums-of-8-bit-floats.md.
FLOAT8_CERTAIN, FLOAT8_SEEN = 136 * 2.0**-13, 2.0**-9


#: Floats that NumPy knows through ml_dtypes only.
EXTENSION_FLOATS = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})
#: Floats narrower than BLAS knows; float32 holds every value of each.
NARROW_FLOATS = EXTENSION_FLOATS | {"float16"}

_OPAQUE_16 = "uint128"


@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype called `name`, those of ml_dtypes included.

    Raises
    ------
    DTypeError
        If there is none.
    """
    if name == _OPAQUE_16:
        # NumPy has no integer of 128 bits; nobody reads these as a number.
        return np.dtype("V16")
    try:
        return np.dtype(getattr(ml_dtypes, name) if name in EXTENSION_FLOATS else name)
    except (TypeError, ValueError, SyntaxError):
        # The last two of what NumPy takes for the start of a structured type.
        raise DTypeError(
            f"dtype {shown(name)} is not known; name one such as float32, bfloat16, float8_e4m3fn or int8"
        ) from None


def dtype_named(name: str) -> DType:
    """Return the kernel element type called `name`.

    Raises
    ------
    DTypeError
        If kernels have no such type.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        hint = "; split the real and imaginary parts" if "complex" in name else "; convert with astype first"
        raise DTypeError(f"dtype {name} has no GPU kernel; the kernels take {', '.join(_BY_NAME)}{hint}") from None


def accumulator(a: DType, b: DType) -> DType:
    """Return the type that products of `a` and `b` are summed in.

    Both integers: int32. A float64, or an int32 that float32 cannot hold, with a float: float64. Otherwise float32.
    """
    if a.kind is Kind.INTEGER and b.kind is Kind.INTEGER:
        return INT32
    return FLOAT64 if {FLOAT64, INT32} & {a, b} else FLOAT32


def opaque_dtype(itemsize: int) -> DType:
    """Return an unsigned integer type of that size, for kernels that move bits without reading them.

    Raises
    ------
    DTypeError
        If the size is not 1, 2, 4, 8 or 16 bytes.
    """
    if itemsize not in (1, 2, 4, 8, 16):
        raise DTypeError(f"elements of {itemsize} bytes cannot be moved; kernels move 1, 2, 4, 8 or 16 bytes")
    return DType(f"uint{8 * itemsize}", itemsize, Kind.INTEGER, 8 * itemsize, 2 ** (8 * itemsize) - 1)
