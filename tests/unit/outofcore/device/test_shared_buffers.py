"""Pinned buffers that several threads fill, and empty."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gemmule.host.streams import HostStreams
from gemmule.outofcore.device.engine.staging import Filler, Ring
from gemmule.outofcore.device.engine.streaming import Settings, stream_product
from gemmule.outofcore.device.planner.choice import choose_plan
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.stores.arrays import ArraySink, ArraySource
from gemmule.outofcore.tiles.plan import Operand, Product

F4 = np.dtype("f4")
M, N, K = 130, 110, 90


class Counted(ArraySource):
    """An array that notes the pieces that are read, and which threads read at once."""

    def __init__(self, array, meet=None):
        super().__init__(array)
        self.pieces, self.meet, self.seen = [], meet, threading.local()

    def read(self, rows, cols, out):
        if self.meet is not None and not hasattr(self.seen, "met"):
            self.seen.met = self.meet.wait(10)
        self.pieces.append((rows.start, rows.stop, cols.start, cols.stop))
        return super().read(rows, cols, out)


@pytest.fixture
def small(monkeypatch):
    """Let threads share buffers of a few KB."""
    monkeypatch.setattr("gemmule.outofcore.device.engine.staging.SHARE", 600)
    monkeypatch.setattr("gemmule.outofcore.device.engine.output_writer.SHARE", 600)


def matrix(shape, order="C"):
    return np.asarray(np.random.default_rng().standard_normal(shape, "f4"), order=order)


@pytest.mark.parametrize("orders", ["CC", "FF", "CF"])
def test_products_through_shared_buffers(small, orders):
    a, b = matrix((M, K), orders[0]), matrix((K, N), orders[1])
    operands = [Operand(F4, order) for order in orders]
    plan = choose_plan(Product(M, N, K, *operands, Operand(F4)), F4, 60_000, Rates(1e12, 1e12, 1e9, 1e9)).plan
    out = np.full((M, N), np.nan, "f4")
    with HostStreams(pinned_arrays=False) as device:
        ran = stream_product(
            plan, {"a": ArraySource(a), "b": ArraySource(b)}, ArraySink(out), device, settings=Settings(64 << 10, 3)
        )
    np.testing.assert_allclose(out, a.astype("f8") @ b, rtol=1e-4, atol=1e-4)
    assert ran.staged == ("a", "b", "out")
    assert ran.bytes_read == ran.bytes_in
    assert ran.bytes_written == out.nbytes == ran.bytes_out


@pytest.mark.parametrize("order", ["C", "F"])
def test_several_threads_fill_one_buffer(small, order):
    # Each of the three waits for the others when it first reads.
    array = matrix((40, 33), order)
    source = Counted(array, threading.Barrier(3))
    with HostStreams() as device:
        ring = Ring(device, 1, 6144)
        filler = Filler(ring, 3, device)
        rows, cols = ((0, 36), (1, 33)) if order == "C" else ((1, 40), (0, 33))
        parts = filler.ask(source.read, F4, rows, cols, order)
        found = parts[0].result(20)
        np.testing.assert_array_equal(found.array, array[slice(*rows), slice(*cols)])
        assert found.read == found.array.nbytes
        filler.stop()
    assert len(parts) == 1
    assert len(source.pieces) > 3


def test_blocks_of_a_store_are_read_by_one_thread(small):
    source = Counted(matrix((40, 32)))
    with HostStreams() as device:
        filler = Filler(Ring(device, 1, 6144), 3, device)
        filler.ask(source.read, F4, (0, 40), (0, 32), "C", shared=False)[0].result(20)
        filler.stop()
    assert source.pieces == [(0, 40, 0, 32)]


def test_a_share_that_fails_is_told_and_nothing_waits(small):
    class Broken(ArraySource):
        def read(self, rows, cols, out):
            if rows.start >= 60:
                raise OSError("broken")
            return super().read(rows, cols, out)

    a, b = matrix((M, K)), matrix((K, N))
    operand = Operand(F4)
    plan = choose_plan(Product(M, N, K, operand, operand, operand), F4, 60_000, Rates(1e12, 1e12, 1e9, 1e9)).plan
    before = threading.active_count()
    with HostStreams(pinned_arrays=False) as device:
        with pytest.raises(OSError, match="broken"):
            stream_product(
                plan, {"a": Broken(a), "b": ArraySource(b)}, ArraySink(np.zeros((M, N), "f4")), device,
                settings=Settings(64 << 10, 3),
            )  # fmt: skip
    assert threading.active_count() == before
