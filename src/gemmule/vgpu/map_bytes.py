"""Tensor maps as bytes in memory: kernels may copy their parameters, and replace fields of the copy.

The bytes of a real map are opaque. This layout is the virtual GPU's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmule.core.dtype import DTYPES

from .memory import GLOBAL_BASE, GlobalMemory
from .tensor_map import TensorMap, element_type

#: Bytes of a tensor map, and its alignment. The second half is empty: kernels copy the first only.
SIZE, HALF = 128, 64
_MARK = b"gmap"
_LAYOUT = np.dtype(
    {
        "names": [
            "global_address",
            "global_dim",
            "global_stride",
            "last",
            "rank",
            "swizzle",
            "tf32",
            "dtype",
            "nan",
            "mark",
        ],
        "formats": ["<u8", ("<u4", 5), ("<u4", 4), ("u1", 5), "u1", "u1", "u1", "u1", "u1", "S4"],
        "offsets": [0, 8, 28, 44, 49, 50, 51, 52, 53, 56],
        "itemsize": HALF,
    }
)
_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
_NAMES = (*(dtype.name for dtype in DTYPES), *_UNSIGNED)
#: Unit of strides in bytes.
_STEP = 16
#: Replaceable fields: offset, bytes of each, and number.
PARTS = {"global_address": (0, 8, 1), "global_dim": (8, 4, 5), "global_stride": (28, 4, 4)}


def encoded(found: TensorMap) -> bytes:
    """Return the bytes of a tensor map; of one that does not fit none that are a map."""
    made = np.zeros((), _LAYOUT)
    rank = len(found.box)
    steps = [pitch // _STEP for pitch in found.pitches]
    if found.dtype not in _NAMES or max((*found.extents, *steps)) >= 2**32:
        return bytes(SIZE)
    made["global_address"] = GLOBAL_BASE + found.base
    made["global_dim"][:rank], made["global_stride"][: rank - 1] = found.extents, steps
    made["last"][:rank], made["rank"] = [side - 1 for side in found.box], rank
    made["swizzle"], made["tf32"], made["dtype"] = found.swizzle, found.tf32, _NAMES.index(found.dtype)
    made["nan"], made["mark"] = found.nan, _MARK
    return made.tobytes().ljust(SIZE, b"\0")


def is_map(data: np.ndarray[Any, np.dtype[np.uint8]]) -> bool:
    """Say whether bytes are those of a tensor map."""
    return len(data) == SIZE and bytes(data[:HALF].view(_LAYOUT)[0]["mark"]) == _MARK


def part_of(part: str, value: int) -> int | None:
    """Return how a part's new value is held; None if it can be none."""
    if part != "global_stride":
        return value if value or part != "global_dim" else None
    return value // _STEP if value % _STEP == 0 and value < 2**32 * _STEP else None


def decoded(data: np.ndarray[Any, np.dtype[np.uint8]], memory: GlobalMemory) -> TensorMap | str:
    """Return the tensor map that bytes are, or say what is wrong with them."""
    if not is_map(data):
        return "the bytes there are no tensor map"
    read = data[:HALF].view(_LAYOUT)[0]
    rank, name = int(read["rank"]), _NAMES[int(read["dtype"])]
    extents = tuple(read["global_dim"][:rank].tolist())
    pitches = tuple(_STEP * step for step in read["global_stride"][: rank - 1].tolist())
    base = int(read["global_address"]) - GLOBAL_BASE
    item = element_type(name).itemsize
    if base % 16:
        return f"its address {GLOBAL_BASE + base:#x} is no multiple of 16"
    end = base + extents[0] * item + sum((n - 1) * pitch for n, pitch in zip(extents[1:], pitches, strict=True))
    allocation = memory.allocation_at(base)
    if allocation is None or end > allocation.end:
        return f"it reaches to {memory.describe(end - 1)}"
    box = tuple(last + 1 for last in read["last"][:rank].tolist())
    more = int(read["swizzle"]), bool(read["tf32"]), bool(read["nan"])
    return TensorMap(base, name, item, extents, pitches, box, *more)
