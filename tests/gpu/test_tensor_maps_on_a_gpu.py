"""What calls assume of the driver's tensor maps: the address is one word, on which no other depends."""

from __future__ import annotations

import random

import pytest

from gemmule.core.dtype import dtype_named
from gemmule.core.launch import TensorMapParam
from gemmule.runtime.device import current
from gemmule.runtime.tensor_maps import address_word, encoded

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int32", "int8", "float8_e4m3fn"])
def test_a_map_with_its_address_written_is_the_encoded_one(dtype, swizzle):
    with current(0):
        _check(dtype, swizzle, random.Random(f"{dtype} {swizzle}"))


def _check(dtype, swizzle, rng):
    itemsize = dtype_named(dtype).itemsize
    for rank in (2, 3, 4):
        row = (swizzle or 128) // itemsize
        extents = (row * rng.randrange(1, 99), *(rng.randrange(1, 5000) for _ in range(rank - 1)))
        pitches = tuple(extents[0] * itemsize * rng.randrange(1, 9) for _ in range(rank - 1))
        # Boxes fit in shared memory.
        box = (row, *[rng.randrange(1, {2: 256, 3: 20, 4: 8}[rank])] * (rank - 1))
        for tf32 in {False, dtype == "float32"}:
            param = TensorMapParam("a", dtype_named(dtype), extents, pitches, box, swizzle, tf32=tf32)
            word = address_word(param)
            assert word is not None
            for _ in range(20):
                address, other = (256 * rng.randrange(1, 1 << rng.randrange(1, 40)) for _ in range(2))
                written = memoryview(bytearray(encoded(param, address))).cast("Q")
                written[word] = other
                assert written.tobytes() == encoded(param, other)
