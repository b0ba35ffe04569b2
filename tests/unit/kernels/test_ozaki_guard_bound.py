"""The arithmetic of the guard: its bound holds, in exact numbers, for what passes it."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from gemmule.kernels.emulation.guard import (
    CHOICES,
    FEWEST_SAMPLES,
    INFINITE_BITS,
    MAGNITUDE_SHIFTS,
    MEAN_SPAN,
    MOST_SUMMED,
    NO_EXPONENTS,
    SAMPLE_RUN,
    SCALE_STEPS,
    float8_e5m2,
    furthest_below,
    least_bound,
    least_exponents,
    least_magnitude,
    least_share,
    sample_period,
    sample_runs,
)
from gemmule.kernels.emulation.residues import norm_limit, product


@pytest.mark.parametrize("real", CHOICES, ids=str)
def test_scales_of_more_moduli_stay_in_range(real):
    """A line scaled for the fewest moduli, and by a step more, has a norm within the limit for as many as the step."""
    fewest = norm_limit(CHOICES[real][0])
    for count, step in zip(CHOICES[real], SCALE_STEPS, strict=True):
        limit = norm_limit(count)
        assert math.ldexp(fewest[0], fewest[1] + 2 * step) <= math.ldexp(*limit)
        # One bit more would not be.
        assert math.ldexp(fewest[0], fewest[1] + 2 * step + 2) > math.ldexp(*limit)
        # Integers of 64 bits hold each element, and magnitudes of 8 bits the largest of the first.
        assert math.isqrt(product(count) // 2) < 2**63
    assert math.sqrt(math.ldexp(*fewest)) * 2.0 ** -MAGNITUDE_SHIFTS[real] < 1.75 * 2**15


@pytest.mark.parametrize("k", [1, 2, 15, 16, 17, 255, 256, 481, 511, 512, 3072, 3840, 4095, 8191, 8192, 2**16, 2**20])
def test_samples_are_enough_and_within_k(k):
    period, runs = sample_period(k), sample_runs(k)
    assert period == 1 or runs * SAMPLE_RUN >= FEWEST_SAMPLES
    # The last run begins within K, and the next one would not.
    assert (runs - 1) * SAMPLE_RUN * period < k <= runs * SAMPLE_RUN * period


@pytest.mark.parametrize("real", CHOICES, ids=str)
@pytest.mark.parametrize("k", [1, 3, 64, 1000, 8192, 2**17])
def test_limits_are_ordered_as_lower_bounds_are(k, real):
    limits = furthest_below(k, real)
    assert list(limits) == sorted(set(limits))
    # A sum of magnitudes that is 0 is beyond all.
    assert limits[-1] < INFINITE_BITS
    for below, step in zip(limits, SCALE_STEPS, strict=True):
        passing = struct.unpack("<f", struct.pack("<i", INFINITE_BITS - below))[0]
        assert least_bound(k, step, real) < passing < 1.000001 * least_bound(k, step, real)


@pytest.mark.parametrize("real", CHOICES, ids=str)
@pytest.mark.parametrize("k", [4, 40, 1000])
@pytest.mark.parametrize("step", SCALE_STEPS)
def test_the_largest_error_is_just_within_the_bound(step, k, real):
    """Lines of equal numbers, as large as they may be, all of which are rounded by nearly a half."""
    limit = math.isqrt(int(math.ldexp(*norm_limit(CHOICES[real][0])))) * 2**step
    whole = limit // (math.isqrt(k - 1) + 1)
    element = whole + Fraction(49, 100)
    error = k * (element * element - whole * whole)
    least = least_bound(k, step, real) * 2.0 ** (2 * (MAGNITUDE_SHIFTS[real] + step))
    allowed = Fraction(least) * (k + 1) * Fraction(real.unit_roundoff)
    assert 0.8 * allowed < error <= allowed


def rounded_down(values):
    """Magnitudes as float8_e5m2 holds them, cut."""
    found = values.astype(ml_dtypes.float8_e5m2)
    above = found.astype(np.float64) > values
    return (found.view(np.uint8) - above).view(ml_dtypes.float8_e5m2).astype(np.float64)


def scaled_down(line, real):
    """A line as the guard's samples hold it, whose norm is between half of the limit and the limit."""
    norm_limit_of = math.sqrt(math.ldexp(*norm_limit(CHOICES[real][0])))
    scale = math.floor(math.log2(norm_limit_of / np.linalg.norm(line)))
    return rounded_down(np.abs(line) * 2.0 ** (scale - MAGNITUDE_SHIFTS[real]))


@pytest.mark.parametrize("real", CHOICES, ids=str)
@pytest.mark.parametrize("k", [40, 1000, 4096])
def test_what_a_pair_of_lines_refuses_the_guard_refuses(k, real, rng):
    """Also where it is a matter of a bit: what pairs have of the product of their norms is around the least share."""
    sampled = np.arange(k) % (SAMPLE_RUN * sample_period(k)) < SAMPLE_RUN
    most, refused, near = least_bound(k, SCALE_STEPS[-1], real), 0, 0
    for number in range(400):
        a, b = rng.standard_normal((2, k))
        # Norms are of an element each that is not sampled, or that meets little.
        at = rng.choice(np.flatnonzero(~sampled)) if not sampled.all() else 0
        power = math.log2(least_share(k, real)) / 4 + rng.uniform(-3, 5)
        a[at], b[(at + 1) % k] = 2.0**-power * math.sqrt(k), 2.0**-power * math.sqrt(k)
        if sampled.all():
            a[1], b[0] = 0, 0
        early = np.sum(np.abs(a * b)[sampled]) ** 2 < least_share(k, real) * np.sum(a * a) * np.sum(b * b)
        guarded = float(np.sum((scaled_down(a, real) * scaled_down(b, real))[sampled]))
        assert guarded <= most or not early, number
        refused, near = refused + early, near + (guarded > most)
    assert 20 < refused < 380
    assert near > 10


@pytest.mark.parametrize("real", CHOICES, ids=str)
@pytest.mark.parametrize("k", [1, 2, 15, 16, 17, 255, 256, 511, 512, 8191, 8192, 2**16, 2**20])
def test_a_line_of_small_samples_is_one_that_no_other_line_passes_with(k, real):
    """The other one has as large samples as its norm allows, all of them equal."""
    least, samples = least_magnitude(k, real), sample_runs(k) * SAMPLE_RUN
    limit = math.sqrt(math.ldexp(*norm_limit(CHOICES[real][0]))) * 2.0 ** -MAGNITUDE_SHIFTS[real]
    most = samples * (limit / math.sqrt(samples))
    assert float8_e5m2(least - 1) * most < least_bound(k, SCALE_STEPS[-1], real)
    # A magnitude some steps above may pass.
    assert float8_e5m2(least + 2) * most > least_bound(k, SCALE_STEPS[-1], real)


def spread(rng, k, power):
    """Numbers with a span of exponents, some zeros, and a few of the largest."""
    line = rng.standard_normal(k) * np.exp2(rng.uniform(-power, power, k))
    line[rng.random(k) < rng.choice([0, 0.001, 0.01])] = 0
    line[: rng.integers(0, 3)] *= 2.0**6
    return rng.permutation(line)


@pytest.mark.parametrize("real", CHOICES, ids=str)
@pytest.mark.parametrize("k", [1, 40, 1000, 4096])
def test_lines_whose_exponents_suffice_pass_in_whatever_order_they_meet(k, real, rng):
    """The least sum of magnitudes is that of one line upwards and the other downwards."""
    limit, least, passed = math.sqrt(math.ldexp(*norm_limit(CHOICES[real][0]))), least_bound(k, 0, real), 0
    for _ in range(300):
        lines = []
        while len(lines) < 2:
            line = spread(rng, k, rng.choice([0, 0.5, 1, 2]))
            scale = math.floor(math.log2(limit / np.linalg.norm(line))) if line.any() else 0
            exponents = np.where(line == 0, -1023, np.frexp(line)[1] - 1)
            enough = np.sum(exponents + scale) >= least_exponents(k, real) and np.max(exponents) + 1023 > MEAN_SPAN
            if enough or rng.random() < 0.05:
                lines.append((np.sort(np.abs(line)) * 2.0 ** (scale - MAGNITUDE_SHIFTS[real]), enough))
        (a, one), (b, other) = lines
        if one and other:
            passed += 1
            assert np.sum(a * b[::-1]) >= least
    assert passed > 20 or k == 1


@pytest.mark.parametrize("real", CHOICES, ids=str)
def test_ordinary_lines_have_enough_exponents_and_long_ones_are_not_summed(real, rng):
    limit = math.sqrt(math.ldexp(*norm_limit(CHOICES[real][0])))
    for k in (512, 3072, 20000):
        line = rng.standard_normal(k)
        scale = math.log2(limit / np.linalg.norm(line)) - 1
        assert np.sum(np.floor(np.log2(np.abs(line))) + scale) > least_exponents(k, real)
    assert least_exponents(MOST_SUMMED, real) == least_exponents(0, real) == NO_EXPONENTS


def test_bits_of_magnitudes_are_those_of_float8_e5m2():
    finite = range(np.uint8(0x7C))
    assert [float8_e5m2(bits) for bits in finite] == [
        float(np.uint8(bits).view(ml_dtypes.float8_e5m2)) for bits in finite
    ]
