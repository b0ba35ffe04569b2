"""Dtypes as array libraries name them."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm


class Other:
    """A dtype of a library that nobody knows."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


def test_the_dtype_of_another_library():
    xp = pytest.importorskip("array_api_strict")
    product = gm.matmul(xp.ones((2, 3)), xp.ones((3, 2)), out_dtype=xp.float32)
    assert product.dtype == xp.float32
    assert gm.matmul(np.ones((2, 3)), np.ones((3, 2)), out_dtype=Other("library.float32")).dtype == np.float32


@pytest.mark.parametrize("given", [Other("float32"), Other("library.f 4"), Other("library."), 5.4, 5, object()])
def test_what_is_no_dtype(given):
    with pytest.raises(gm.DTypeError, match="is not a dtype; pass a name such as 'float32', or a dtype"):
        gm.matmul(np.ones((2, 3)), np.ones((3, 2)), out_dtype=given)
