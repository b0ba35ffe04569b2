"""Element types and precisions."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from .errors import ArgumentError, DTypeError, shown
from .name_suggestions import did_you_mean, remedy_for, similar_names


class Kind(enum.Enum):
    """Arithmetic that a type belongs to."""

    FLOAT = "float"
    INTEGER = "integer"
    COMPLEX = "complex"


@dataclasses.dataclass(frozen=True, eq=False)
class DType:
    """An element type of a matrix: one object for each, so that types compare and hash by identity."""

    name: str  #: Name as NumPy and ml_dtypes spell it, e.g. ``"bfloat16"``.
    itemsize: int  #: Bytes per element.
    kind: Kind  #: Floating point, integer or complex.
    #: Bits of the significand, the hidden one included; for integers, the bits of the value. Of complex types, those of
    #: a part.
    significand: int
    max_value: float  #: Largest finite value, of complex types that of a part.

    def __reduce__(self) -> tuple[Any, ...]:
        return _interned, (self.name,)

    @property
    def bits(self) -> int:
        """Bits per element."""
        return 8 * self.itemsize

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one rounding, 2**-significand; 0 for integers."""
        return 0.0 if self.kind is Kind.INTEGER else 2.0**-self.significand

    @functools.cached_property
    def is_float8(self) -> bool:
        """Whether this is one of the 8-bit floating-point types."""
        return self.itemsize == 1 and self.kind is Kind.FLOAT

    @property
    def part(self) -> DType:
        """Type of the real and the imaginary part; real types are their own."""
        return {"complex64": FLOAT32, "complex128": FLOAT64}.get(self.name, self)

    def holds(self, other: DType) -> bool:
        """Return whether every value of another type is one of this."""
        kinds = (Kind.INTEGER, Kind.FLOAT, Kind.COMPLEX)
        if kinds.index(other.kind) > kinds.index(self.kind):
            return False
        return other.significand <= self.significand and other.max_value <= self.max_value

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
COMPLEX64 = DType("complex64", 8, Kind.COMPLEX, 24, 3.4028234663852886e38)
COMPLEX128 = DType("complex128", 16, Kind.COMPLEX, 53, 1.7976931348623157e308)

#: Types that a kernel may multiply, read or write.
DTYPES = (FLOAT64, FLOAT32, FLOAT16, BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, INT8, INT32, COMPLEX64, COMPLEX128)

_BY_NAME = {dtype.name: dtype for dtype in DTYPES}
#: Types of kernels that only move bits, by their bytes.
_OPAQUE = {
    size: DType(f"uint{8 * size}", size, Kind.INTEGER, 8 * size, 2 ** (8 * size) - 1) for size in (1, 2, 4, 8, 16)
}


def _interned(name: str) -> DType:
    return next(dtype for dtype in (*DTYPES, *_OPAQUE.values()) if dtype.name == name)


#: Names of types in libraries that are no precisions.
_NAMES_OF_TYPES = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "fp16",
    "bf16",
    "fp32",
    "fp64",
    "single",
    "double",
)


class Precision(enum.Enum):
    """Least precision of a product of float32, float64 or 8-bit floats; a kernel may be more exact.

    ``IEEE`` multiplies and accumulates in float32. ``TF32`` rounds inputs to 11 significand bits first. ``BF16X6``
    emulates float32 by six products of bfloat16: the same 24 bits, but fewer for numbers below 2**-110, and infinities
    become NaN. ``OZAKI_15`` emulates float64 by 15 products of int8 (Ozaki scheme II): rows of A and columns of B are
    rounded to multiples of a power of two, so numbers much smaller than others of their row or column have fewer bits,
    and infinities become NaN; ``OZAKI_14`` has one product and four bits less, ``OZAKI_16`` one product and four bits
    more. ``OZAKI`` emulates only where a guard on the device shows that the native product's error bound holds: float64
    and complex128 by 14 to 16 products of int8, float32 and complex64 by six of bfloat16; else the native kernel
    computes.
    ``FLOAT8`` accumulates 8-bit floats over each 128 of K with 13 bits of the fraction, as Hopper's tensor cores do.
    """

    IEEE = "ieee"
    TF32 = "tf32"
    BF16X6 = "bf16x6"
    OZAKI = "ozaki"
    OZAKI_14 = "ozaki-14"
    OZAKI_15 = "ozaki-15"
    OZAKI_16 = "ozaki-16"
    FLOAT8 = "float8"

    # Enum's own hash is a function in Python, and problems are keys of dictionaries.
    __hash__ = object.__hash__

    @classmethod
    def parse(cls, value: str | Precision | None) -> Precision:
        """Return the precision of a name; None means IEEE.

        Raises
        ------
        ArgumentError
            If there is no such precision.
        """
        if value is None:
            return cls.IEEE
        if isinstance(value, cls):
            return value
        named = {member.value: member for member in cls}
        if isinstance(value, str) and value in _NAMES_OF_TYPES:
            raise ArgumentError(
                f"precision={shown(value)} is a type; omit precision, or give 'ieee', to compute in the inputs' type, "
                f"or choose one of {', '.join(repr(name) for name in named if name != cls.IEEE.value)}"
            )
        if not isinstance(value, str) or value not in named:
            raise ArgumentError(f"precision={shown(value)} is not known; {remedy_for(value, named)}")
        return named[value]

    @classmethod
    def of_inputs(cls, value: str | Precision | None, inputs: Iterable[str]) -> Precision:
        """Return the precision of a name, for inputs of the given types.

        Raises
        ------
        ArgumentError
            If there is no such precision.
        DTypeError
            If it is for other types.
        """
        precision, what, types = cls.parse(value), "float32 products", {"float32"}
        if precision is cls.FLOAT8:
            types, what = {"float8_e4m3fn", "float8_e5m2"}, "products of 8-bit floats"
        if precision in INT8_PRODUCTS:
            types, what = {"float64"}, "float64 products"
        if precision is cls.OZAKI:
            types = set(inputs) & {"float32", "float64", "complex64", "complex128"}
            what = "two operands of one type, float32, float64, complex64 or complex128, or of a type and its parts'"
            types = types if len({_BY_NAME[name].part for name in types}) == 1 else set()
        if precision is not cls.IEEE and not types.issuperset(inputs):
            names = " x ".join(inputs)
            remedy = "leave it out" + ", or convert one operand" * (len(set(inputs)) > 1)
            raise DTypeError(f"precision={precision.value!r} is for {what}, not {names}; {remedy}")
        return precision


#: Significand bits of TF32, the hidden one included.
TF32_SIGNIFICAND = 11
#: Products of bfloat16 that emulate one of float32.
BF16_PRODUCTS = 6
#: Products of int8 that emulate one of float64, those that the guarded form chooses among, and the fewest of each.
INT8_PRODUCTS = {Precision.OZAKI_14: 14, Precision.OZAKI_15: 15, Precision.OZAKI_16: 16}
GUARDED_PRODUCTS = (14, 15, 16)
#: Those among which the guard of complex64 chooses, of each of three products.
GUARDED_COMPLEX64 = (7, 8, 9)
FEWEST_INT8_PRODUCTS = {**INT8_PRODUCTS, Precision.OZAKI: GUARDED_PRODUCTS[0]}
#: Errors of FLOAT8's sums over (|A| |B|)ij: the bound, four times 34 truncations to 13 bits of the fraction; and the
#: most that was observed, see docs/decisions/0014-sums-of-8-bit-floats.md.
FLOAT8_CERTAIN, FLOAT8_SEEN = 136 * 2.0**-13, 2.0**-9


#: Floats of ml_dtypes, which NumPy alone lacks.
EXTENSION_FLOATS = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})
#: Floats that BLAS lacks; float32 represents every value of each.
NARROW_FLOATS = EXTENSION_FLOATS | {"float16"}

_OPAQUE_16 = "uint128"
#: NumPy's names that are suggested for a misspelled one.
_COMMON_NUMBERS = (
    *("float16", "float32", "float64", "complex64", "complex128"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)


@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name in NumPy or ml_dtypes.

    Raises
    ------
    DTypeError
        If there is none.
    """
    if name == _OPAQUE_16:
        # NumPy has no integer of 128 bits; these are only moved.
        return np.dtype("V16")
    try:
        if name not in EXTENSION_FLOATS:
            return np.dtype(name)
        # Here: a product of PyTorch's tensors has no use for it.
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
    except (TypeError, ValueError, SyntaxError):
        # NumPy raises the last two for a malformed structured type.
        near = similar_names(str(name), (*_COMMON_NUMBERS, *EXTENSION_FLOATS))
        remedy = f"; {did_you_mean(near)}" if near else ""
        raise DTypeError(
            f"dtype must be a name such as float32, bfloat16, float8_e4m3fn or int8; got {shown(name)}{remedy}"
        ) from None


def dtype_named(name: str, role: str = "") -> DType:
    """Return the kernels' element type of a name; messages name the argument of that role.

    Raises
    ------
    DTypeError
        If no kernel supports it.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        what = f"{role} is {name}, which" if role else f"dtype {name}"
        remedy = "choose one of these" if role == "out_dtype" else f"convert {role or 'it'} with astype first"
        raise DTypeError(f"{what} has no GPU kernel; the kernels take {', '.join(_BY_NAME)}; {remedy}") from None


#: K up to which int32 holds every dot product of int8: |a b| <= 2**14.
MAX_INT8_K = (2**31 - 1) // 2**14


def accumulator(a: DType, b: DType) -> DType:
    """Return the accumulator type of products of `a` and `b`.

    Both integers: int32. A float64, or an int32 that float32 cannot hold, with a float: float64. Otherwise float32.
    Where one is complex: the complex type of such parts.
    """
    if Kind.COMPLEX in (a.kind, b.kind):
        return COMPLEX128 if {FLOAT64, INT32} & {a.part, b.part} else COMPLEX64
    if a.kind is Kind.INTEGER and b.kind is Kind.INTEGER:
        return INT32
    return FLOAT64 if {FLOAT64, INT32} & {a, b} else FLOAT32


def opaque_dtype(itemsize: int) -> DType:
    """Return the unsigned integer type of a size, for kernels that only move bits.

    Raises
    ------
    DTypeError
        If the size is not 1, 2, 4, 8 or 16 bytes.
    """
    if itemsize not in _OPAQUE:
        raise DTypeError(f"elements of {itemsize} bytes cannot be moved; kernels move 1, 2, 4, 8 or 16 bytes")
    return _OPAQUE[itemsize]
