"""mma.sync: sums whose result is known by hand, in both modes."""

import math

import numpy as np
import pytest

from support.ptx.mma_reference import bits_of, run


def one_element(a_type, d_type, a, b, c, mode, k=16):
    """Return the element (0, 0) of D, from the first row of A, the first column of B and C (0, 0)."""
    a_values, b_values, c_values = np.zeros((1, 16, k)), np.zeros((1, k, 8)), np.zeros((1, 16, 8))
    a_values[0, 0, : len(a)] = a
    b_values[0, : len(b), 0] = b
    c_values[0, 0, 0] = c
    a_bits, b_bits, c_bits = (
        bits_of(x, kind) for x, kind in ((a_values, a_type), (b_values, a_type), (c_values, d_type))
    )
    return run((16, 8, k), a_type, a_type, d_type, a_bits, b_bits, c_bits, mode=mode)[0, 0, 0]


@pytest.mark.parametrize(
    ("products", "c", "exact_sum", "hopper_sum"),
    [
        # 2**-24 is the 24th of the 25 bits: eight of them come through.
        ([2.0**-24] * 8, 1.0, 1 + 2.0**-21, 1 + 2.0**-21),
        # 2**-25 is the last bit, 2**-26 is cut.
        ([2.0**-25] * 8, 1.0, 1 + 2.0**-22, 1 + 2.0**-22),
        ([2.0**-26] * 16, 1.0, 1 + 2.0**-22, 1.0),
        # Nearest against towards zero, for both signs.
        ([1.5 * 2.0**-24], 1.0, 1 + 2.0**-23, 1.0),
        ([-1.5 * 2.0**-24], -1.0, -1 - 2.0**-23, -1.0),
        # Each negative term is cut towards zero too: nothing is left of it.
        ([-(2.0**-26)], 1.0, 1.0, 1.0),
        ([-(2.0**-25)], 1.0, 1.0, 1 - 2.0**-24),
        # A product of significands in [2, 4) is not normalised: 1.5 * 1.5 = 2.25 aligns as if it were below 2.
        ([2.25, 2.0**-25], 0.0, 2.25, 2.25),
        ([2.25, -2.25, 2.0**-25], 0.0, 2.0**-25, 2.0**-25),
    ],
)
def test_cut_bits_by_hand(products, c, exact_sum, hopper_sum):
    def factors(product):
        if abs(product) == 2.25:
            return 1.5 * np.sign(product), 1.5
        return product * 2.0**13, 2.0**-13

    a, b = zip(*map(factors, products), strict=True)
    for mode, expected in (("exact", exact_sum), ("hopper", hopper_sum)):
        assert one_element("f16", "f32", a, b, c, mode).view(np.float32) == np.float32(expected)


HALF_OF_SMALLEST = (2.0**-12, 2.0**-13)  # of float16


@pytest.mark.parametrize(
    ("a_type", "d_type", "factors", "c", "expected"),
    [
        # Into f32 nothing below 2**-158 counts, and 2**-152 does, though the exponents are far below -126.
        ("bf16", "f32", [(2.0**-60 - 2.0**-66, 2.0**-89), *[(2.0**-60 - 2.0**-66, 2.0**-98)] * 15], 0.0, 0.0),
        ("bf16", "f32", [(2.0**-60 - 2.0**-63, 2.0**-89), (2.0**-60, 2.0**-92)], 0.0, 2.0**-149),
        # Into f16 nothing below 2**-46 counts: it decides the tie at half the smallest number.
        ("f16", "f16", [HALF_OF_SMALLEST, (2.0**-22, 2.0**-24)], 0.0, 2.0**-24),
        ("f16", "f16", [HALF_OF_SMALLEST, (2.0**-23, 2.0**-24)], 0.0, 0.0),
        # A subnormal C of f16 aligns at 2**-14: nothing below 2**-39 counts.
        ("f16", "f16", [HALF_OF_SMALLEST, (-(2.0**-19), 2.0**-20)], 2.0**-24, 2.0**-24),
        ("f16", "f16", [HALF_OF_SMALLEST, (-(2.0**-20), 2.0**-20)], 2.0**-24, 2.0**-23),
        # So does a subnormal factor: 2**-24 * 1.
        ("f16", "f16", [(2.0**-24, 1.0), HALF_OF_SMALLEST, (-(2.0**-19), 2.0**-20)], 0.0, 2.0**-24),
        ("f16", "f16", [(2.0**-24, 1.0), HALF_OF_SMALLEST, (-(2.0**-20), 2.0**-20)], 0.0, 2.0**-23),
    ],
)
def test_small_numbers_by_hand(a_type, d_type, factors, c, expected):
    """The details that the sources tell differently, as the model has them."""
    a, b = zip(*factors, strict=True)
    assert one_element(a_type, d_type, a, b, c, "hopper") == bits_of(expected, d_type)


def test_8_bit_floats_are_added_to_c_last():
    """Twelve products of 2**-26 are added before C = 1: 1 + 3 * 2**-24, a tie; one block FMA cuts each of them."""
    small = 2.0**-13
    assert one_element("e5m2", "f32", [small] * 12, [small] * 12, 1.0, "hopper").view(np.float32) == 1 + 2.0**-22
    assert one_element("f16", "f32", [small] * 12, [small] * 12, 1.0, "hopper").view(np.float32) == 1


@pytest.mark.parametrize("mode", ["exact", "hopper"])
def test_sums_of_zero_are_positive(mode):
    for d_type in ("f32", "f16"):
        assert one_element("f16", d_type, [-0.0] * 16, [1.0] * 16, -0.0, mode) == 0
        assert one_element("f16", d_type, [1.0, -1.0], [1.0, 1.0], -0.0, mode) == 0


@pytest.mark.parametrize("mode", ["exact", "hopper"])
def test_special_values(mode):
    inf, nan = 0x7C00, 0x7D01  # a signalling NaN
    a, b = np.zeros((1, 16, 16), np.uint16), np.zeros((1, 16, 8), np.uint16)
    b[:] = 0x3C00  # 1
    b[0, 2] = 0
    a[0, 0, 0], a[0, 1, 0], a[0, 1, 1] = inf, inf, inf | 0x8000
    a[0, 2, 2], a[0, 3, 5], a[0, 4, 7] = inf, nan, inf | 0x8000
    c = np.zeros((1, 16, 8), np.uint32)
    c[0, 5, :], c[0, 6, :], c[0, 7, :] = 0x7F800000, 0xFFC00001, 0x7F7FFFFF
    got = run((16, 8, 16), "f16", "f16", "f32", a, b, c, mode=mode)[0, :, 3]
    expected = [0x7F800000, 0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF, 0xFF800000, 0x7F800000, 0x7FFFFFFF, 0x7F7FFFFF]
    assert [hex(x) for x in got[:8]] == [hex(x) for x in expected]


def test_overflow():
    """Beyond the largest number: infinite; towards zero, anything below 2**128 is the largest number."""
    largest = float(np.finfo(np.float32).max)
    half_ulp = 2.0**103
    for mode, more in (("exact", math.inf), ("hopper", largest)):
        d = one_element("bf16", "f32", [2.0**52], [half_ulp / 2.0**52], largest, mode)
        assert d.view(np.float32) == np.float32(more)
        assert one_element("bf16", "f32", [2.0**100], [2.0**100], 0.0, mode).view(np.float32) == np.inf
    for mode, rest in (("exact", 3.0), ("hopper", 0.0)):
        assert one_element("f16", "f16", [256.0], [256.0], 0.0, mode) == 0x7C00
        # Products beyond float32 that cancel do no harm, but their exponent leaves nothing of C.
        d = one_element("bf16", "f32", [2.0**100, 2.0**100], [2.0**100, -(2.0**100)], 3.0, mode)
        assert d.view(np.float32) == rest
