"""Tensor maps in the host code of the compiler: what is read from their bits is what they were made for."""

from __future__ import annotations

import struct

import pytest

from gemmule.core.errors import UnsupportedError
from gemmule.vgpu.host_code import map_words

#: The first eight words that host code of nvidia-cutlass-dsl 4.8.1 wrote for a type, extents, pitches, box and swizzle.
COMPILED = [
    ("123456700 2000246312 0 0 1ff000000ff 0 3f00000000000000 1f", "float16", (256, 512), (512,), (64, 32), 128),
    ("123456700 4000240392 0 0 1ff000000ff 0 0f00000000000000 1f", "float32", (256, 512), (1024,), (16, 32), 0),
    ("123456700 2000242312 0 0 1ff000000ff 0 0f00000000000000 1f", "float16", (256, 512), (512,), (16, 32), 32),
    ("123456700 40302 0 0 ff 0 3f00000000000000 0", "float16", (256,), (), (64,), 0),
    (
        "123456700 2000240342 c00000004000 3c000 1ff000000ff 400000002 3f00000000000006 3020107",
        "float16", (256, 512, 3, 5, 7), (512, 262144, 786432, 3932160), (64, 8, 2, 3, 4), 0,
    ),
    (
        "123456700 100240332 100000001 a4200000000 1ff000000ff 400000002 3f00000000000000 107",
        "float16", (256, 512, 3, 5), (2 * (2**36 + 8), 2 * (2**37 + 8), 2 * (5 * 2**36 + 8)), (64, 8, 2, 1), 0,
    ),
]  # fmt: skip


def data(text):
    words = [int(word, 16) for word in text.split()]
    return struct.pack("<16Q", *words, *[0] * 8)


@pytest.mark.parametrize(("text", "dtype", "extents", "pitches", "box", "swizzle"), COMPILED)
def test_words_of_the_compiler(text, dtype, extents, pitches, box, swizzle):
    found = map_words.decoded(data(text))
    assert (found.address, found.dtype, found.swizzle) == (0x123456700, dtype, swizzle)
    assert (found.extents, found.pitches, found.box) == (extents, pitches, box)


@pytest.mark.parametrize("bit", [1, 17, 22])
def test_unknown_fields_are_refused(bit):
    changed = bytearray(data(COMPILED[0][0]))
    changed[8 + bit // 8] ^= 1 << bit % 8
    with pytest.raises(UnsupportedError, match="not modelled"):
        map_words.decoded(bytes(changed))
