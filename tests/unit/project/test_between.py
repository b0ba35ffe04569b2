"""The check of tests that nothing is written between the elements of an array."""

from __future__ import annotations

import numpy as np
import pytest

from support.stray_writes import nothing_strays


@pytest.mark.parametrize("byte", [0, 1, 12, 13, 24, 39])
def test_a_byte_between_elements_is_noticed(byte):
    memory = np.zeros(20, np.int16)
    array = memory[1:13].reshape(2, 6)[:, :5]
    with pytest.raises(AssertionError, match="1 bytes were written between"), nothing_strays(array):
        memory.view(np.uint8)[byte] += 1


def test_elements_may_be_written():
    array = np.zeros((4, 6), np.float32)[::-1, ::2].T
    with nothing_strays(array):
        array[...] = 1
