"""Coordinates of tiles by multiplications are those by divisions, from the device's own code."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

from cutlass import Int32, cute

from gemmule.compiler.compile import compile_ptx
from gemmule.core.dtype import INT32
from gemmule.core.launch import Launch, ScalarParam, TensorParam
from gemmule.core.spec import Buildable
from gemmule.kernels.parts.raster import divided_tile, grouped_tile, raster_divisors
from gemmule.kernels.parts.tensors import tensor_1d
from gemmule.vgpu import Options, launch
from gemmule.vgpu.arch import virtual_arch

GROUP, NUMBERS = 8, 6


class Coordinates:
    """Writes a tile's matrix, row and column by both ways, one tile a CTA, from the first on."""

    @cute.jit
    def __call__(self, mOut: cute.Tensor, tiles_m: Int32, tiles_n: Int32, first: Int32):
        self.kernel(mOut, tiles_m, tiles_n, first).launch(grid=(1, 1, 1), block=(1, 1, 1))

    @cute.kernel
    def kernel(self, mOut: cute.Tensor, tiles_m: Int32, tiles_n: Int32, first: Int32):
        cta, _, _ = cute.arch.block_idx()
        divisors = raster_divisors(tiles_m, tiles_n, GROUP)
        number, tiles = first + cta, tiles_m * tiles_n
        matrix = divisors.matrix.quotient(number)
        row, col = divided_tile(number - matrix * tiles, tiles_m, tiles_n, GROUP, divisors)
        other_row, other_col = grouped_tile(number % tiles, tiles_m, tiles_n, GROUP)
        out = cta * NUMBERS
        mOut[out], mOut[out + 1], mOut[out + 2] = matrix, row, col
        mOut[out + 3], mOut[out + 4], mOut[out + 5] = number // tiles, other_row, other_col


@pytest.fixture(scope="module")
def code():
    return compile_ptx(Buildable(Coordinates(), (tensor_1d("int32"), Int32(1), Int32(1), Int32(1))), virtual_arch())


def coordinates(code, tiles_m, tiles_n, first, count):
    out = np.full((count, NUMBERS), -1, np.int32)
    numbers = {"tiles_m": tiles_m, "tiles_n": tiles_n, "first": first}
    params = (
        TensorParam("out", (out.size,), ()),
        *(ScalarParam(name, INT32, value) for name, value in numbers.items()),
    )
    launch(code, Launch((count, 1, 1), (1, 1, 1), params), {"out": out}, options=Options(checks=True))
    return out


@pytest.mark.parametrize(
    ("tiles_m", "tiles_n", "first"),
    [
        (1, 1, 0), (1, 7, 0), (8, 3, 0), (9, 5, 30), (11, 3, 0), (16, 16, 200), (64, 43, 2700), (1, 1, 2**31 - 41),
        (3, 268435455, 2**29), (32767, 32768, 2**30 - 20), (32767, 65537, 2**31 - 41), (1 << 30, 1, 2**30 - 20),
    ],
)  # fmt: skip
def test_both_ways_agree(code, tiles_m, tiles_n, first):
    found = coordinates(code, tiles_m, tiles_n, first, 40)
    np.testing.assert_array_equal(found[:, :3], found[:, 3:])


def test_random_grids(code, rng):
    for _ in range(20):
        tiles_m, tiles_n = (int(x) for x in rng.integers(1, 300, 2))
        found = coordinates(code, tiles_m, tiles_n, int(rng.integers(0, 4 * tiles_m * tiles_n)), 24)
        np.testing.assert_array_equal(found[:, :3], found[:, 3:])
        assert (found[:, 1] < tiles_m).all()
        assert (found[:, 2] < tiles_n).all()
