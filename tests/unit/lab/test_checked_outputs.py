"""Which outputs have the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.lab.checked_outputs import same_bits


def test_bits_are_compared_and_not_numbers():
    nan, zero = np.full((2, 3), np.nan, np.float32), np.zeros((2, 3))
    assert same_bits(nan, nan.copy())
    assert not same_bits(zero, -zero)


@pytest.mark.parametrize("dtype", [np.uint8, np.complex128])
@pytest.mark.parametrize("at", [0, 40, -1])
def test_one_other_bit_is_found_in_every_block_and_in_the_rest(at, dtype, monkeypatch):
    monkeypatch.setattr("gemmule.lab.checked_outputs._BLOCK", 32)
    one = np.arange(7 * 11).astype(dtype).reshape(7, 11)
    other = one.copy()
    assert same_bits(one, other)
    other.reshape(-1).view(np.uint8)[at] ^= 1
    assert not same_bits(one, other)


def test_other_shapes_are_no_same_bits():
    assert not same_bits(np.zeros((2, 4)), np.zeros((4, 2)))
    assert not same_bits(np.zeros((2, 4)), np.zeros((2, 8)))
    assert same_bits(np.zeros((0, 4)), np.zeros((0, 4)))


def test_matrices_in_columns_are_compared_by_their_elements():
    one = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    assert same_bits(one, np.ascontiguousarray(one))
    assert not same_bits(one, one + 1)
