"""Encoding tensor maps for the copy engine (TMA)."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from gemmule.core.launch import TensorMapParam

from .device import current
from .driver import call, check, driver

_TYPES = {
    "float64": "FLOAT64",
    "float32": "FLOAT32",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "int32": "INT32",
    "int8": "UINT8",
    "float8_e4m3fn": "UINT8",
    "float8_e5m2": "UINT8",
}
_BYTES = 128
_UNREAD = 16
#: Two addresses without a common bit, multiples of 256 below 2**48, as are those of memory that repeated launches take.
_PROBES = (0x5555_5555_5500, 0xAAAA_AAAA_AA00)


@functools.lru_cache(maxsize=1024)
def encoded(param: TensorMapParam, address: int) -> bytes:
    """Return the 128 bytes that describe a tensor at an address.

    Raises
    ------
    DriverError
        If the driver refuses the description.
    """
    bindings = driver()
    rank = len(param.extents)
    swizzle = f"CU_TENSOR_MAP_SWIZZLE_{f'{param.swizzle}B' if param.swizzle else 'NONE'}"
    fetched = param.fetched_bytes
    promotion = f"CU_TENSOR_MAP_L2_PROMOTION_{f'L2_{fetched}B' if fetched else 'NONE'}"
    kind = "TFLOAT32" if param.tf32 else _TYPES[param.dtype.name]
    fill = "NAN_REQUEST_ZERO_FMA" if param.nan else "NONE"
    described = call(
        "cuTensorMapEncodeTiled",
        getattr(bindings.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{kind}"),
        rank,
        address,
        [bindings.cuuint64_t(extent) for extent in param.extents],
        # The driver wants a place to read pitches from, even where it reads none.
        [bindings.cuuint64_t(pitch) for pitch in param.pitches or (_UNREAD,)],
        [bindings.cuuint32_t(side) for side in param.box],
        [bindings.cuuint32_t(1)] * rank,
        bindings.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(bindings.CUtensorMapSwizzle, swizzle),
        getattr(bindings.CUtensorMapL2promotion, promotion),
        getattr(bindings.CUtensorMapFloatOOBfill, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{fill}"),
    )
    return ctypes.string_at(int(described.getPtr()), _BYTES)


@functools.lru_cache(maxsize=1024)
def address_word(param: TensorMapParam) -> int | None:
    """Return which of a map's 64-bit words is the tensor's address, on which no other depends; None where none is.

    The layout of tensor maps is undocumented: it is derived from what the driver encodes for two addresses.

    Raises
    ------
    DriverError
        If the driver refuses the description.
    """
    one, other = (memoryview(encoded(param, probe)).cast("Q") for probe in _PROBES)
    changed = [word for word, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]]
    if len(changed) == 1 and (one[changed[0]], other[changed[0]]) == _PROBES:
        return changed[0]
    return None


def map_at(place: int) -> Any:
    """Return the tensor map at `place`, a multiple of 64 bytes in host memory, in the driver's format."""
    return driver().CUtensorMap(place)


def move(tensor_map: Any, address: int, ordinal: int) -> None:
    """Let a tensor map describe a tensor at another address in the memory of GPU `ordinal`.

    Raises
    ------
    DriverError
        If the driver refuses the address.
    """
    bindings = driver()
    (status,) = bindings.cuTensorMapReplaceAddress(tensor_map, address)
    if status == bindings.CUresult.CUDA_ERROR_INVALID_CONTEXT:
        # A thread without a context, as one of autograd's. To ask before every call would cost more.
        with current(ordinal):
            call("cuTensorMapReplaceAddress", tensor_map, address)
    else:
        check("cuTensorMapReplaceAddress", int(status))
