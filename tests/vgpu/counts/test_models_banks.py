"""Bank conflicts: textbook patterns, and a count with dictionaries."""

import collections

import numpy as np
import pytest

from gemmule.core.errors import ArgumentError
from gemmule.vgpu.models.banks import ideal_wavefronts, matrix_wavefronts, wavefronts

LANE = np.arange(32)
ALL = np.ones((1, 32), bool)


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize(
    ("addresses", "size", "expected", "ideal"),
    [
        # 4 bytes: a stride of s words meets each bank gcd(s, 32) times.
        (4 * LANE, 4, 1, 1),
        (8 * LANE, 4, 2, 1),
        (12 * LANE, 4, 1, 1),
        (16 * LANE, 4, 4, 1),
        (4 * 32 * LANE, 4, 32, 1),
        # A column of a 32 x 33 array, the padding that every textbook has.
        (4 * 33 * LANE, 4, 1, 1),
        # One word for all, one for each half, two words of one bank.
        (0 * LANE, 4, 1, 1),
        (4 * (LANE // 16), 4, 1, 1),
        (128 * (LANE // 16), 4, 2, 1),
        (128 * (LANE % 2), 4, 2, 1),
        # Any permutation of the banks.
        (4 * (LANE ^ 21), 4, 1, 1),
        (4 * LANE[::-1] + 128 * LANE, 4, 1, 1),
        # Bytes and halves of one word are one word; 16-bit elements with a stride of two words do conflict.
        (LANE, 1, 1, 1),
        (2 * LANE, 2, 1, 1),
        (64 * LANE, 1, 16, 1),
        (8 * LANE, 2, 2, 1),
        # 8 bytes: half a warp at a time.
        (8 * LANE, 8, 2, 2),
        (8 * 16 * LANE, 8, 32, 2),
        (8 * 17 * LANE, 8, 2, 2),
        (16 * LANE, 8, 4, 2),
        # 16 bytes: a quarter at a time.
        (16 * LANE, 16, 4, 4),
        (128 * LANE, 16, 32, 4),
        (144 * LANE, 16, 4, 4),
        # 8 rows of 128 bytes, swizzled by xor: the lanes of a quarter in different columns.
        (128 * (LANE % 8) + 16 * (LANE // 8 ^ LANE % 8), 16, 4, 4),
        (32 * LANE, 16, 8, 4),
    ],
)
def test_patterns(addresses, size, expected, ideal, write):
    addresses = (1024 + addresses)[None].astype(np.int64)
    assert wavefronts(addresses, ALL, size, write).tolist() == [expected]
    assert ideal_wavefronts(addresses, ALL, size, write).tolist() == [ideal]


@pytest.mark.parametrize(
    ("addresses", "size", "load", "store"),
    [
        # Pairs of lanes read one address: 16 lanes' data, and half the groups. A store is not packed.
        (8 * (LANE // 2), 8, 1, 2),
        (8 * (LANE // 4 * 2 + LANE % 2), 8, 1, 2),
        (16 * (LANE // 2), 16, 2, 4),
        (0 * LANE, 8, 1, 2),
        (0 * LANE, 16, 2, 4),
        # The fragment of A and of B in a register-tiled GEMM: 4 x 8 lanes.
        (16 * (LANE // 8), 16, 2, 4),
        (16 * (LANE % 8), 16, 4, 4),
        # Neither all pairs (i, i xor 1) nor all (i, i xor 2): not packed.
        (8 * np.where(LANE < 16, LANE // 2, LANE // 4 * 2 + LANE % 2), 8, 2, 2),
        (8 * (LANE % 16), 8, 2, 2),
        # Packed, and yet in conflict: 16 different words of two banks.
        (128 * (LANE // 2), 8, 16, 16),
    ],
)
def test_loads_of_pairs_are_packed(addresses, size, load, store):
    addresses = addresses[None].astype(np.int64)
    assert wavefronts(addresses, ALL, size, False).tolist() == [load]
    assert wavefronts(addresses, ALL, size, True).tolist() == [store]


def test_inactive_lanes():
    addresses = np.broadcast_to(128 * LANE, (5, 32)).astype(np.int64)
    active = np.stack([LANE < 0, LANE == 9, LANE < 8, LANE % 8 == 0, LANE % 2 == 0])
    addresses = np.where(active, addresses, 10**9)
    assert wavefronts(addresses, active, 4, False).tolist() == [0, 1, 8, 4, 16]
    assert ideal_wavefronts(addresses, active, 4, False).tolist() == [0, 1, 1, 1, 1]
    assert wavefronts(addresses, active, 16, True).tolist() == [0, 1, 8, 4, 16]
    assert ideal_wavefronts(addresses, active, 16, True).tolist() == [0, 1, 1, 4, 4]


def test_ldmatrix_and_stmatrix():
    """Eight rows of 16 bytes a matrix: with a leading dimension of 128 bytes all in four banks, of 144 in none."""
    rows = np.stack([16 * LANE, 128 * LANE, 144 * LANE, 128 * LANE + 16 * (LANE % 8), 0 * LANE]).astype(np.int64)
    for matrices in (1, 2, 4):
        expected = [matrices, 8 * matrices, matrices, matrices, matrices]
        spoilt = np.where(8 * matrices > LANE, rows, 4)
        assert matrix_wavefronts(spoilt, matrices).tolist() == expected


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("write", [False, True])
def test_against_dictionaries(rng, size, write):
    addresses = rng.integers(0, 300, (400, 32)) * rng.choice([1, 2, 32], (400, 1)) * size
    addresses[::3] = np.repeat(addresses[::3, ::2], 2, axis=1)
    addresses[::5] = addresses[::5][:, LANE & ~2]
    active = rng.random((400, 32)) < rng.choice([0, 0.1, 0.9, 1], (400, 1))
    # Many alike, as blocks make them.
    addresses[200:] = addresses[:4].repeat(50, axis=0) + 128 * rng.integers(0, 9, (200, 1))
    active[200:] = active[:4].repeat(50, axis=0)

    def count(row, on):
        lanes = {1: 32, 2: 32, 4: 32, 8: 16, 16: 8}[size]
        if size > 4 and not write:
            for step in (1, 2):
                if all(row[i] == row[i ^ step] for i in range(32) if on[i] and on[i ^ step]):
                    lanes = {8: 32, 16: 16}[size]
        total = groups = 0
        for start in range(0, 32, lanes):
            words = {(row[i] + byte) // 4 for i in range(start, start + lanes) if on[i] for byte in range(size)}
            banks = collections.Counter(word % 32 for word in words)
            total += max(banks.values(), default=0)
            groups += bool(words)
        return total, groups

    expected = [count(row, on) for row, on in zip(addresses.tolist(), active.tolist(), strict=True)]
    assert wavefronts(addresses, active, size, write).tolist() == [total for total, _ in expected]
    assert ideal_wavefronts(addresses, active, size, write).tolist() == [groups for _, groups in expected]


def test_no_requests():
    none, off = np.empty((0, 32), np.int64), np.empty((0, 32), bool)
    assert wavefronts(none, off, 8, False).shape == ideal_wavefronts(none, off, 8, False).shape == (0,)


def test_other_sizes_are_refused():
    with pytest.raises(ArgumentError, match="size=12"):
        wavefronts(np.zeros((1, 32), np.int64), ALL, 12, False)
