"""Rates of products as launches take them, on a GPU that only counts seconds."""

import numpy as np
import pytest

from gemmule.core.dtype import Precision
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.runtime.link_probe import SHAPE, Operands, PartSeconds, part_seconds, product_rate

F8 = np.dtype("float64")
SIDE, DEPTH = SHAPE


class Clock:
    """A device of which every launch takes stated seconds."""

    precision = Precision.IEEE

    def __init__(self, *seconds):
        self.now, self.taken = 0.0, seconds

    def stream(self):
        return 0

    def allocate(self, nbytes):
        return 0

    def pinned(self, nbytes):
        return np.zeros(nbytes, np.uint8)

    def copy_in(self, stream, target, source):
        pass

    def launches(self, stream, product, taken=None):
        def launch(seconds):
            self.now += seconds

        return [lambda each=each: launch(each) for each in taken or self.taken]

    def multiply(self, stream, product):
        for launch in self.launches(stream, product):
            launch()

    def record(self, stream):
        return self.now

    def synchronize(self, event):
        pass

    def seconds(self, start, end):
        return end - start


def test_what_goes_before_and_after_the_longest_launch():
    scales, residues, products, reconstruction, skipped = 1e-5, 5e-5, 8e-4, 6e-5, 2e-6
    device, operands = Clock(scales, residues, products, reconstruction, skipped), Operands(F8, F8, F8)
    parts = part_seconds(device, operands)
    assert parts.split == pytest.approx((scales + residues) / (2 * SIDE * DEPTH))
    assert parts.join == pytest.approx((reconstruction + skipped) / SIDE**2)
    rate = product_rate(device, operands, added=False)
    assert parts.multiplying(rate) == pytest.approx(2 * SIDE**2 * DEPTH / products)


class Emulation(Clock):
    """A device on which launches split the factors, multiply, and join parts; to read C takes as long as to join."""

    SPLIT, RATE, JOIN = 3e-12, 1e14, 4e-12

    def launches(self, stream, product):
        m, n, k = product.d.rows, product.d.cols, product.a.cols
        joined = m * n * self.JOIN * (1 if product.c is None else 2)
        return Clock.launches(self, stream, product, ((m + n) * k * self.SPLIT, 2 * m * n * k / self.RATE, joined))

    @classmethod
    def seconds_of(cls, m, n, k, added):
        return (m + n) * k * cls.SPLIT + 2 * m * n * k / cls.RATE + m * n * cls.JOIN * (2 if added else 1)


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("shape", [(SIDE, SIDE, DEPTH), (20000, 3000, 8192), (1000, 7000, 512)])
def test_products_that_are_added_take_longer_by_reading_the_sum_alone(added, shape):
    device, operands = Emulation(), Operands(F8, F8, F8)
    parts = part_seconds(device, operands)
    plain, sums = (parts.multiplying(product_rate(device, operands, added=one)) for one in (False, True))
    rates = Rates(plain, sums, 1.0, 1.0, side=SIDE, depth=DEPTH, split=parts.split, join=parts.join)
    assert rates.seconds(*shape, added=added) == pytest.approx(Emulation.seconds_of(*shape, added))


def test_a_single_launch_only_multiplies():
    parts = part_seconds(Clock(1e-3), Operands(F8, F8, F8))
    assert parts == PartSeconds(0.0, 0.0)
    assert parts.multiplying(5e13) == pytest.approx(5e13)
