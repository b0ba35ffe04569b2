"""The launch recipe: everything that a launch needs, as plain data.

A kernel's spec writes one for a problem; the GPU runtime packs and launches it, and anything else that runs the
compiled kernel reads the same one.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping

from .dtype import DType, Kind
from .epilogue import NUMBER, Epilogue
from .errors import ArgumentError

_INTEGER_CODES = {32: "i", 64: "q"}
#: What the copy engine asks of addresses and pitches, in bytes.
MAP_ALIGNMENT = 16
#: Bytes of products so short that it shows on the host what a launch in order costs.
FEW_BYTES = 1 << 20


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


@dataclasses.dataclass(frozen=True)
class TensorParam:
    """A tensor parameter: {pointer; dynamic shape; dynamic strides}, as the compiled kernel lays it out.

    Attributes
    ----------
    operand : str
        Which operand's pointer goes in: ``a``, ``b``, ``c``, ``d``.
    shape, strides : tuple of int
        The dynamic extents and strides, in elements.
    shape_bits, stride_bits : int
        Width of each extent and stride, 32 or 64.
    """

    operand: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    shape_bits: int = 32
    stride_bits: int = 64

    @property
    def alignment(self) -> int:
        """Alignment of the parameter in bytes."""
        return 8

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


@dataclasses.dataclass(frozen=True)
class ScalarParam:
    """A scalar parameter such as alpha.

    Attributes
    ----------
    name : str
        What it is.
    dtype : DType
        Its type: float32, float64 or int32.
    value : float or int
        Its value.
    """

    name: str
    dtype: DType
    value: float | int

    @property
    def alignment(self) -> int:
        """Alignment of the parameter in bytes."""
        return self.dtype.itemsize

    @property
    def size(self) -> int:
        """Size of the parameter in bytes."""
        return self.dtype.itemsize

    def pack(self, pointers: Mapping[str, int]) -> bytes:
        """Return the parameter's bytes."""
        del pointers
        if self.dtype.kind is Kind.INTEGER:
            # Integer arithmetic is modulo 2**32, its scalars too.
            return struct.pack("<I", int(self.value) % 2**32)
        code = {4: "f", 8: "d"}[self.dtype.itemsize]
        try:
            return struct.pack(f"<{code}", self.value)
        except OverflowError as error:
            raise ArgumentError(f"{self.name}={self.value} does not fit into {self.dtype}") from error


@dataclasses.dataclass(frozen=True)
class ExtentsParam:
    """The extents of a tensor that a tensor map describes, as 32-bit integers.

    Attributes
    ----------
    operand : str
        Whose they are.
    extents : tuple of int
        In the kernel's order.
    """

    operand: str
    extents: tuple[int, ...]

    @property
    def alignment(self) -> int:
        """Alignment of the parameter in bytes."""
        return 4

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


@dataclasses.dataclass(frozen=True)
class BytesParam:
    """A parameter given by its bytes: what a kernel takes by value that is no tensor and no number of its own.

    Attributes
    ----------
    name : str
        What it is.
    data : bytes
        Its bytes, as the kernel reads them.
    alignment : int
        Alignment of the parameter in bytes.
    """

    name: str
    data: bytes
    alignment: int = 4

    @property
    def size(self) -> int:
        """Size of the parameter in bytes."""
        return len(self.data)

    def pack(self, pointers: Mapping[str, int]) -> bytes:
        """Return the parameter's bytes."""
        del pointers
        return self.data


@dataclasses.dataclass(frozen=True)
class TensorMapParam:
    """A tensor map: how the copy engine (TMA) finds boxes of a tensor. The executor encodes it.

    Attributes
    ----------
    operand : str
        Which operand it describes.
    dtype : DType
        Type of its elements.
    extents : tuple of int
        Elements, the direction in which they are neighbours first.
    pitches : tuple of int
        Bytes from one to the next in every direction but the first, multiples of 16.
    box : tuple of int
        Elements that one copy brings.
    swizzle : int
        Bytes of the pattern in which shared memory is permuted: 0, 32, 64 or 128.
    promotion : int or None
        Bytes that the L2 cache is asked to read from memory at once: 0, 64, 128 or 256. None: 256 where all lines begin
        at multiples of 256, else 128: around a row of a box they would be up to half in vain.
    tf32 : bool
        Whether float32 is rounded to TF32 on its way.
    nan : bool
        Whether what lies outside of a tensor of floating-point numbers is brought as NaN, not as zero.
    """

    operand: str
    dtype: DType
    extents: tuple[int, ...]
    pitches: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    promotion: int | None = None
    tf32: bool = False
    nan: bool = False

    @property
    def fetched_bytes(self) -> int:
        """Bytes that the L2 cache is asked to read from memory at once."""
        if self.promotion is not None:
            return self.promotion
        return 128 if any(pitch % 256 for pitch in self.pitches[:1]) else 256

    @property
    def alignment(self) -> int:
        """Alignment of the parameter in bytes."""
        return 64

    @property
    def size(self) -> int:
        """Size of the parameter in bytes."""
        return 128


def number_params(epilogue: Epilogue, dtype: DType) -> list[ScalarParam]:
    """Return the parameters of the numbers that a launch brings to an epilogue."""
    return [ScalarParam(f"{NUMBER}{place}", dtype, number) for place, number in enumerate(epilogue.numbers)]


PlainParam = TensorParam | ScalarParam | ExtentsParam | BytesParam
Param = PlainParam | TensorMapParam


@dataclasses.dataclass(frozen=True)
class Workspace:
    """Device memory that a launch needs beyond its operands, and that nobody else has while it runs.

    Attributes
    ----------
    name : str
        The name by which parameters call it.
    nbytes : int
        Its size.
    zeroed : bool
        Whether the executor sets all of it to zero before each launch; otherwise anything may be there.
    """

    name: str
    nbytes: int
    zeroed: bool = False


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch of a compiled kernel.

    Attributes
    ----------
    grid, block : tuple of int
        CTAs, and threads of a CTA, along x, y and z.
    params : tuple of Param
        Kernel parameters in order.
    shared_bytes : int
        Dynamic shared memory of a CTA.
    cluster : tuple of int
        CTAs of a cluster along x, y and z.
    overlaps : bool
        Whether its CTAs may start while the launch before it in the stream ends: the kernel itself waits for what that
        launch wrote (griddepcontrol.wait), before it reads or writes memory.
    workspaces : tuple of Workspace
        Memory that it needs beyond the operands.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    params: tuple[Param, ...]
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    overlaps: bool = False
    workspaces: tuple[Workspace, ...] = ()

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.block[0] * self.block[1] * self.block[2]
