"""Tensor maps as compiled host code writes them: 64 bytes of bit fields, and as many zeros.

The CUDA driver API leaves the layout open. The fields are those that the host code of nvidia-cutlass-dsl sets, in its
IR, from extents, strides and box. A map that these fields do not describe completely is refused.
"""

from __future__ import annotations

import dataclasses
import struct

from gemmule.core.errors import UnsupportedError

#: Bytes of a tensor map, and of the part that is not empty.
SIZE, _USED = 128, 64
#: Element types by code: name and bytes.
_TYPES = {
    0: ("uint8", 1), 1: ("uint16", 2), 2: ("uint32", 4), 3: ("int32", 4), 4: ("uint64", 8), 5: ("int64", 8),
    6: ("float16", 2), 7: ("float32", 4), 9: ("float64", 8), 10: ("bfloat16", 2),
}  # fmt: skip
_SWIZZLES = (0, 32, 64, 128)
#: Bits of the second word that say nothing about which bytes are copied: they are the same in all, or for caches.
_VERSION, _CACHES = 0x40002, 1 << 21
_UNIT = 16


@dataclasses.dataclass(frozen=True)
class MapFields:
    """The fields of a tensor map."""

    address: int  #: Address of the tensor.
    dtype: str  #: Type of its elements; 8-bit floats are ``uint8``.
    itemsize: int  #: Bytes of an element.
    extents: tuple[int, ...]  #: In elements, the contiguous dimension first, as of `box`.
    pitches: tuple[int, ...]  #: Strides in bytes of all dimensions but the first.
    box: tuple[int, ...]
    swizzle: int  #: Bytes of the pattern in shared memory.
    tf32: bool  #: Whether loads round float32 to TF32.


def decoded(data: bytes) -> MapFields:
    """Decode the bytes of a tensor map.

    Raises
    ------
    UnsupportedError
        If other fields than these are set.
    """
    words = struct.unpack(f"<{SIZE // 8}Q", data[:SIZE])
    head = words[1] & 0xFFFFFFFF
    rank, code = (head >> 4 & 7) + 1, head >> 7 & 15
    halves = [half for word in words[4:7] for half in (word & 0xFFFFFFFF, word >> 32)][:5]
    steps = [words[1] >> 32, words[2] & 0xFFFFFFFF, words[2] >> 32, words[3] & 0xFFFFFFFF]
    steps = [step | (words[3] >> 32 + 4 * place & 15) << 32 for place, step in enumerate(steps)]
    sides = [words[6] >> 56, *(words[7] >> 8 * place & 0xFF for place in range(4))]
    if code not in _TYPES or rank > 5:
        raise UnsupportedError(f"the host code makes a tensor map of type {code} and {rank} directions; not modelled")
    name, item = _TYPES[code]
    found = MapFields(
        address=words[0],
        dtype=name,
        itemsize=item,
        extents=tuple(half + 1 for half in halves[:rank]),
        pitches=tuple(_UNIT * step for step in steps[: rank - 1]),
        box=tuple(side + 1 for side in sides[:rank]),
        swizzle=_SWIZZLES[head >> 13 & 3],
        tf32=bool(head >> 16 & 1),
    )
    if _words(found, code, head & _CACHES) != words:
        raise UnsupportedError(
            "the host code makes a tensor map with fields that are not modelled, such as im2col, interleaving or a "
            f"stride of elements: {data[:_USED].hex()}"
        )
    return found


def _words(found: MapFields, code: int, caches: int) -> tuple[int, ...]:
    """Return the words of a tensor map of those fields."""
    words = [0] * (SIZE // 8)
    rank, swizzle = len(found.box), _SWIZZLES.index(found.swizzle)
    words[0] = found.address
    words[1] = _VERSION | caches | (rank - 1) << 4 | code << 7 | swizzle << 13 | found.tf32 << 16
    for place, pitch in enumerate(found.pitches):
        step = pitch // _UNIT
        word, shift = ((1, 32), (2, 0), (2, 32), (3, 0))[place]
        words[word] |= (step & 0xFFFFFFFF) << shift
        words[3] |= step >> 32 << 32 + 4 * place
    for place, extent in enumerate(found.extents):
        words[4 + place // 2] |= extent - 1 << 32 * (place % 2)
    words[6] |= found.box[0] - 1 << 56
    for place, side in enumerate(found.box[1:]):
        words[7] |= side - 1 << 8 * place
    return tuple(words)
