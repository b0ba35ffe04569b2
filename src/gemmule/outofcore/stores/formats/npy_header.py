"""The header of a .npy file, read without unpickling and without trusting it."""

from __future__ import annotations

import ast
import io
import struct
from typing import IO, Any

import ml_dtypes
import numpy as np
from numpy.lib import format as npy_format

from gemmule.core.dataclass import dataclass

from ....core.errors import DTypeError, FileFormatError, ShapeError
from ..matrix import AnyDType, check_dtype, native

#: Longest header that is read; one of a plain matrix has 128 bytes.
MAX_HEADER_BYTES = 65536
#: Types that NumPy stores under a name that it cannot read back: as raw items, or as the ``f1`` that it does not know.
NAMED_BY_USER = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
_E5M2_DESCR = ("<f1", "|f1", "f1")
_LENGTH_FORMATS = {(1, 0): "<H", (2, 0): "<I", (3, 0): "<I"}


@dataclass(frozen=True)
class NpyHeader:
    """The header of a .npy file."""

    shape: tuple[int, int]  #: Rows and columns.
    stored: AnyDType  #: Type of the stored items, with their byte order.
    dtype: AnyDType  #: The same type in native byte order.
    fortran_order: bool  #: Whether columns are contiguous.
    data_offset: int  #: Offset of the data, in bytes.

    @property
    def file_bytes(self) -> int:
        """Size that the whole file must have."""
        return self.data_offset + self.shape[0] * self.shape[1] * self.stored.itemsize


def user_dtype(name: str) -> AnyDType:
    """Return the type called `name` that a .npy file cannot name itself.

    Raises
    ------
    DTypeError
        If there is no such type.
    """
    if name not in NAMED_BY_USER:
        raise DTypeError(
            f"dtype {name} cannot be given to a file; the file names all types but {', '.join(NAMED_BY_USER)}"
        )
    dtype: AnyDType = np.dtype(getattr(ml_dtypes, name))
    return dtype


def read_header(file: IO[bytes], name: str, given: str | None = None) -> NpyHeader:
    """Read the header of an open .npy file.

    Parameters
    ----------
    file : binary file
        Positioned at its start.
    name : str
        Name in messages.
    given : str, optional
        Type of items that the file holds without a name: one of `NAMED_BY_USER`. Ignored where the file names the type.

    Raises
    ------
    FileFormatError
        If it is no .npy file of plain items.
    ShapeError
        If it does not hold a matrix.
    DTypeError
        If the items are raw and `given` does not say what they are, or of a type that is not multiplied.
    """
    fields, offset = _fields(file, name)
    shape, stored = fields["shape"], _stored_dtype(fields["descr"], name)
    if not isinstance(shape, tuple) or not all(type(extent) is int and extent >= 0 for extent in shape):
        raise FileFormatError(
            f"{name}: header gives the shape {_shown(shape)}; a shape holds integers >= 0; save it again"
        )
    if any(extent >= 2**63 for extent in shape):
        raise FileFormatError(f"{name}: header gives an extent of 2**63 or more; the file is damaged; save it again")
    if len(shape) != 2:
        raise ShapeError(f"{name}: array of shape {shape}; a matrix has 2 dimensions; reshape it and save it again")
    if not isinstance(fields["fortran_order"], bool):
        raise FileFormatError(
            f"{name}: header gives fortran_order {_shown(fields['fortran_order'])}; save the array again"
        )
    stored = resolve_dtype(stored, name, given)
    return NpyHeader((shape[0], shape[1]), stored, native(stored), fields["fortran_order"], offset)


def header_bytes(shape: tuple[int, int], dtype: AnyDType) -> bytes:
    """Return the header of a C-ordered file; bfloat16 and the 8-bit floats are stored as raw items."""
    descr = f"<V{dtype.itemsize}" if dtype.name in NAMED_BY_USER else npy_format.dtype_to_descr(dtype)
    buffer = io.BytesIO()
    npy_format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def _fields(file: IO[bytes], name: str) -> tuple[dict[str, Any], int]:
    try:
        version = npy_format.read_magic(file)
    except ValueError:
        raise FileFormatError(f"{name}: not a .npy file ({_instead(file)}); write it with numpy.save") from None
    if version not in _LENGTH_FORMATS:
        raise FileFormatError(
            f"{name}: .npy version {version[0]}.{version[1]}; 1.0, 2.0 and 3.0 are read; save it again"
        )
    length_format = _LENGTH_FORMATS[version]
    raw_length = file.read(struct.calcsize(length_format))
    length = struct.unpack(length_format, raw_length)[0] if len(raw_length) == struct.calcsize(length_format) else 0
    if length > MAX_HEADER_BYTES:
        raise FileFormatError(f"{name}: header of {length} bytes; at most {MAX_HEADER_BYTES} are read; save it again")
    raw = file.read(length)
    if not length or len(raw) != length:
        raise FileFormatError(
            f"{name}: header has {len(raw)} of its {length} bytes; the file is truncated; write it again"
        )
    try:
        fields = ast.literal_eval(raw.decode("utf-8" if version == (3, 0) else "latin1"))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or fields.keys() != {"descr", "fortran_order", "shape"}:
        raise FileFormatError(f"{name}: header is corrupt: not descr, fortran_order and shape; save the array again")
    return fields, file.tell()


def _shown(value: Any) -> str:
    """Return a field of a header for a message, which may hold integers too long to be printed."""
    try:
        return repr(value)[:200]
    except ValueError:
        return "with numbers too long to print"


def _instead(file: IO[bytes]) -> str:
    """Say what a file is that is no .npy file."""
    file.seek(0)
    begins = file.read(4)
    if not begins:
        return "it is empty"
    return "an archive, as numpy.savez writes" if begins == b"PK\x03\x04" else "it lacks the magic string"


def _stored_dtype(descr: Any, name: str) -> AnyDType:
    dtype: AnyDType
    if descr in _E5M2_DESCR:
        dtype = np.dtype(ml_dtypes.float8_e5m2)
        return dtype
    try:
        dtype = npy_format.descr_to_dtype(descr)
    except (TypeError, ValueError, IndexError, KeyError, SyntaxError):
        raise FileFormatError(f"{name}: header names the unknown type {_shown(descr)}; save the array again") from None
    return dtype


def resolve_dtype(stored: AnyDType, name: str, given: str | None) -> AnyDType:
    """Return the type of the items; for raw ones as the user gives it.

    Raises
    ------
    DTypeError
        If the items are raw and `given` does not say what they are, or of a type that is not multiplied.
    """
    if stored.hasobject:
        raise DTypeError(f"{name}: array of Python objects; such files are never unpickled; convert with astype(float)")
    if stored.kind == "V" and stored.fields is None and stored.subdtype is None and stored.name not in NAMED_BY_USER:
        if given is None:
            fitting = [known for known in NAMED_BY_USER if user_dtype(known).itemsize == stored.itemsize]
            hint = (
                f"say what they are with a_dtype, b_dtype or c_dtype: {' or '.join(map(repr, fitting))}"
                if fitting
                else "convert them with view first"
            )
            raise DTypeError(f"{name}: raw items of {stored.itemsize} bytes ({stored.str}), which name no type; {hint}")
        dtype = user_dtype(given)
        if dtype.itemsize != stored.itemsize:
            raise DTypeError(
                f"{name}: raw items of {stored.itemsize} bytes cannot be {given}, which has {dtype.itemsize}; "
                "give the type of that size"
            )
        return dtype
    check_dtype(stored, name)
    return stored
