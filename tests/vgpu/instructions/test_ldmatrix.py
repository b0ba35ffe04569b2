"""ldmatrix and stmatrix: addresses against the PTX ISA's figure, and together with mma.sync."""

import numpy as np
import pytest

from gemmule.core.errors import ShapeError
from gemmule.vgpu.mma import MmaForm, mma_sync
from gemmule.vgpu.mma.ldmatrix import half_addresses, row_lanes, word_addresses


def scattered_rows(rng, warps):
    """Return addresses of rows anywhere, at multiples of 16, for every lane."""
    return rng.permutation(32 * warps).reshape(warps, 32).astype(np.int64) * 16 + 1024


@pytest.mark.parametrize("matrices", [1, 2, 4])
def test_words_of_every_lane(rng, matrices):
    """The figure: lane l of register m has elements 2 (l mod 4) and the next of row l div 4 of matrix m."""
    rows = scattered_rows(rng, 3)
    words = word_addresses(rows, matrices)
    assert words.shape == (3, 32, matrices)
    for warp, lane, matrix in np.ndindex(words.shape):
        start = rows[warp, matrix * 8 + lane // 4]
        assert words[warp, lane, matrix] == start + 2 * (2 * (lane % 4))


@pytest.mark.parametrize("matrices", [1, 2, 4])
def test_trans_is_the_figure_of_the_transposed_matrix(rng, matrices):
    rows = scattered_rows(rng, 3)
    memory = rng.integers(0, 2**16, 32 * 3 * 8 + 512, dtype=np.uint16)
    halves = half_addresses(rows, matrices)
    assert halves.shape == (3, 32, matrices, 2)
    for warp in range(3):
        for matrix in range(matrices):
            starts = rows[warp, matrix * 8 : matrix * 8 + 8]
            transposed = np.array([memory[start // 2 : start // 2 + 8] for start in starts]).T
            for lane in range(32):
                expected = transposed[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
                np.testing.assert_array_equal(memory[halves[warp, lane, matrix] // 2], expected)


@pytest.mark.parametrize("matrices", [1, 2, 4])
def test_other_lanes_addresses_are_ignored(rng, matrices):
    rows = scattered_rows(rng, 2)
    spoilt = np.where(row_lanes(matrices), rows, -1)
    np.testing.assert_array_equal(word_addresses(spoilt, matrices), word_addresses(rows, matrices))
    np.testing.assert_array_equal(half_addresses(spoilt, matrices), half_addresses(rows, matrices))
    assert np.count_nonzero(row_lanes(matrices)) == 8 * matrices


@pytest.mark.parametrize("matrices", [1, 2, 4])
def test_every_byte_of_the_rows_is_moved_once(rng, matrices):
    """So that stmatrix, which writes to the same places, leaves none out."""
    rows = scattered_rows(rng, 1)
    every = (rows[0, : 8 * matrices, None] + 2 * np.arange(8)).ravel()
    words = word_addresses(rows, matrices)[..., None] + np.array([0, 2])
    for places in (words, half_addresses(rows, matrices)):
        np.testing.assert_array_equal(np.sort(places.ravel()), np.sort(every))


def test_ldmatrix_feeds_mma_sync(rng):
    """A in rows, B in rows of k as a GEMM has them: x4 for A, x2.trans for B, as every Ampere kernel does it."""
    a, b = rng.integers(-9, 9, (16, 16)).astype(np.float16), rng.integers(-9, 9, (16, 8)).astype(np.float16)
    a_pitch, b_pitch, b_start = 48, 32, 2048
    memory = np.zeros(4096, np.uint8)
    for row in range(16):
        memory[row * a_pitch :][:32] = a[row].view(np.uint8)
        memory[b_start + row * b_pitch :][:16] = b[row].view(np.uint8)
    lane = np.arange(32)
    a_rows = (lane % 16 * a_pitch + lane // 16 * 16)[None].astype(np.int64)
    b_rows = (b_start + lane % 16 * b_pitch)[None].astype(np.int64)
    a_words = memory.view(np.uint32)[word_addresses(a_rows, 4) // 4]
    b_words = np.ascontiguousarray(memory.view(np.uint16)[half_addresses(b_rows, 2) // 2]).view(np.uint32)[..., 0]
    d = mma_sync(MmaForm((16, 8, 16), "f16", "f16", "f32", "f32"), a_words, b_words, np.zeros((1, 32, 4), np.uint32))
    d = d.view(np.float32)[0]
    expected = a.astype(np.float32) @ b.astype(np.float32)
    for one in range(32):
        for element in range(4):
            row, column = one // 4 + 8 * (element // 2), one % 4 * 2 + element % 2
            assert d[one, element] == expected[row, column]


def test_other_numbers_of_matrices_are_refused():
    with pytest.raises(ShapeError, match="3 matrices"):
        word_addresses(np.zeros((1, 32), np.int64), 3)
