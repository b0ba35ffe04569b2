"""The launch recipe: grid, block, cluster, shared memory and parameters of a launch, as plain data.

A kernel's spec makes the recipe of a problem; every executor launches from it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, ClassVar

from gemmule.core.dataclass import dataclass

from .dtype import FLOAT32, FLOAT64, INT32, DType, Kind
from .epilogue import NUMBER, Epilogue
from .errors import ArgumentError

_INTEGER_CODES = {32: "i", 64: "q"}
_SCALARS = {dtype.name: dtype for dtype in (FLOAT32, FLOAT64, INT32)}
#: Alignment in bytes that TMA requires of addresses and strides.
MAP_ALIGNMENT = 16
#: Most bytes of a problem whose time is near the overhead of a launch.
FEW_BYTES = 1 << 20


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


@dataclass(frozen=True)
class TensorParam:
    """A tensor parameter in the compiled kernel's layout: {pointer; dynamic shape; dynamic strides}."""

    operand: str  #: Operand whose pointer it holds: ``a``, ``b``, ``c``, ``d``.
    #: shape, strides: The dynamic extents and strides, in elements.
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    #: shape_bits, stride_bits: Width of each extent and stride, 32 or 64.
    shape_bits: int = 32
    stride_bits: int = 64
    alignment: ClassVar[int] = 8

    @property
    def size(self) -> int:
        """Size of the parameter in bytes."""
        shape_end = 8 + len(self.shape) * self.shape_bits // 8
        return _aligned(_aligned(shape_end, self.stride_bits // 8) + len(self.strides) * self.stride_bits // 8, 8)

    def pack(self, pointers: Mapping[str, int]) -> bytes:
        """Return the parameter's bytes, with the operand's address from `pointers`."""
        try:
            shape = struct.pack(f"<{len(self.shape)}{_INTEGER_CODES[self.shape_bits]}", *self.shape)
            strides = struct.pack(f"<{len(self.strides)}{_INTEGER_CODES[self.stride_bits]}", *self.strides)
        except struct.error as error:
            raise ArgumentError(
                f"operand {self.operand}: shape {self.shape} or strides {self.strides} do not fit into "
                f"{self.shape_bits}- and {self.stride_bits}-bit parameters"
            ) from error
        head = struct.pack("<Q", pointers[self.operand]) + shape
        return (head.ljust(_aligned(len(head), self.stride_bits // 8), b"\0") + strides).ljust(self.size, b"\0")


@dataclass(frozen=True)
class ScalarParam:
    """A scalar parameter such as alpha."""

    name: str  #: Name in messages.
    dtype: DType  #: float32, float64 or int32; a name, such as ``"int32"``, does.
    value: float | int  #: Value.

    def __post_init__(self) -> None:
        given: Any = self.dtype
        if not isinstance(given, DType):
            if str(given) not in _SCALARS:
                raise ArgumentError(
                    f"{self.name}: dtype={given!r} is none of {', '.join(_SCALARS)}; "
                    f"pass other numbers as BytesParam, such as numpy.int64({self.value}).tobytes()"
                )
            object.__setattr__(self, "dtype", _SCALARS[str(given)])

    @property
    def size(self) -> int:
        """Size of the parameter in bytes, and its alignment."""
        return self.dtype.itemsize

    alignment = size

    def pack(self, pointers: Mapping[str, int]) -> bytes:
        """Return the parameter's bytes."""
        del pointers
        if self.dtype.kind is Kind.INTEGER:
            # Integer arithmetic, scalars included, is modulo 2**32.
            return struct.pack("<I", int(self.value) % 2**32)
        code = {4: "f", 8: "d"}[self.dtype.itemsize]
        try:
            return struct.pack(f"<{code}", self.value)
        except OverflowError as error:
            raise ArgumentError(f"{self.name}={self.value} does not fit into {self.dtype}") from error


@dataclass(frozen=True)
class ExtentsParam:
    """The extents of a tensor that a tensor map describes, as 32-bit integers."""

    operand: str  #: Operand in messages.
    extents: tuple[int, ...]  #: Extents in the kernel's order.
    alignment: ClassVar[int] = 4

    @property
    def size(self) -> int:
        """Size of the parameter in bytes."""
        return 4 * len(self.extents)

    def pack(self, pointers: Mapping[str, int]) -> bytes:
        """Return the parameter's bytes."""
        del pointers
        try:
            return struct.pack(f"<{len(self.extents)}i", *self.extents)
        except struct.error as error:
            raise ArgumentError(f"extents {self.extents} of operand {self.operand} do not fit into 32 bits") from error


@dataclass(frozen=True)
class BytesParam:
    """A parameter given by its bytes, e.g. a structure passed by value."""

    name: str  #: Name in messages.
    data: bytes  #: The bytes.
    alignment: int = 4  #: Alignment of the parameter in bytes.

    @property
    def size(self) -> int:
        """Size of the parameter in bytes."""
        return len(self.data)

    def pack(self, pointers: Mapping[str, int]) -> bytes:
        """Return the parameter's bytes."""
        del pointers
        return self.data


@dataclass(frozen=True)
class TensorMapParam:
    """A tensor map (TMA descriptor), which the executor encodes."""

    operand: str  #: Operand that it describes.
    dtype: DType  #: Element type.
    extents: tuple[int, ...]  #: Extents in elements, the contiguous dimension first.
    pitches: tuple[int, ...]  #: Strides in bytes of all dimensions but the first, multiples of 16.
    box: tuple[int, ...]  #: Extents of the TMA box.
    swizzle: int  #: Bytes of the swizzle's span: 0, 32, 64 or 128.
    #: L2 promotion in bytes: 0, 64, 128 or 256. None: 256 where all lines begin at multiples of 256, else 128, since up
    #: to half of 256 bytes around a row of a box would be unused.
    promotion: int | None = None
    tf32: bool = False  #: Whether TMA rounds float32 to TF32.
    nan: bool = False  #: Whether floats out of bounds are filled with NaN, not zero.
    offset: int = 0  #: Bytes from the operand's address to that of the tensor, a multiple of 16.
    alignment: ClassVar[int] = 64
    size: ClassVar[int] = 128

    @property
    def fetched_bytes(self) -> int:
        """L2 promotion in bytes."""
        if self.promotion is not None:
            return self.promotion
        return 128 if any(pitch % 256 for pitch in self.pitches[:1]) else 256


def scalar_params(acc: DType, alpha: complex, beta: complex) -> tuple[ScalarParam, ...]:
    """Return alpha and beta in a type; of complex ones, real and imaginary parts."""
    scalars = (("alpha", alpha), ("beta", beta))
    if acc.kind is not Kind.COMPLEX:
        return tuple(ScalarParam(name, acc, value) for name, value in scalars)  # type: ignore[arg-type]
    parts = ((f"{name}.{part}", getattr(complex(value), part)) for name, value in scalars for part in ("real", "imag"))
    return tuple(ScalarParam(name, acc.part, value) for name, value in parts)


def number_params(epilogue: Epilogue, dtype: DType) -> list[ScalarParam]:
    """Return the parameters of an epilogue's numbers."""
    return [ScalarParam(f"{NUMBER}{place}", dtype, number) for place, number in enumerate(epilogue.numbers)]


Param = TensorParam | ScalarParam | ExtentsParam | BytesParam | TensorMapParam


@dataclass(frozen=True)
class Workspace:
    """Device memory for one launch beyond its operands, exclusive while the launch runs."""

    name: str  #: Name in parameters.
    nbytes: int  #: Size in bytes.
    zeroed: bool = False  #: Whether the executor zeroes it before each launch; otherwise its content is undefined.


@dataclass(frozen=True)
class Launch:
    """One launch of a compiled kernel."""

    #: grid, block: CTAs, and threads of a CTA, along x, y and z.
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    params: tuple[Param, ...]  #: Kernel parameters in order.
    shared_bytes: int = 0  #: Dynamic shared memory of a CTA.
    cluster: tuple[int, int, int] = (1, 1, 1)  #: CTAs of a cluster along x, y and z.
    #: Whether the launch is dependent (PDL): its CTAs may start before the predecessor ends, and wait for the
    #: predecessor's writes (griddepcontrol.wait) before they access memory.
    overlaps: bool = False
    workspaces: tuple[Workspace, ...] = ()  #: Memory beyond the operands.
    #: Whether the kernel clears the absolute maximum, which else is cleared before it.
    clears_absmax: bool = False
    #: Percent of the largest shared memory of an SM that it has for this kernel, at least; what is left of the same
    #: memory is first-level cache. None leaves it to the driver, which lets as many CTAs as fit be resident.
    carve_out: int | None = None

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.block[0] * self.block[1] * self.block[2]
