"""Plans within three budgets: a device's memory, pinned memory, and memory of the host."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.errors import MemoryLimitError
from gemmule.host.streams import HostStreams
from gemmule.outofcore.device.engine.streaming import Settings, stream_product
from gemmule.outofcore.device.planner.budgets import Budgets, Staging, binding_line, choose_within
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.device.planner.rings import cut_rings, pinned_bytes
from gemmule.outofcore.stores.arrays import ArraySink, ArraySource
from gemmule.outofcore.tiles.memory_budget import GivenBytes
from gemmule.outofcore.tiles.plan import Operand, Product

F4 = np.dtype("f4")
RATES = Rates(1e12, 1e12, 20e9, 20e9, source=10e9, sink=10e9)
AMPLE = Budgets(1 << 20, 1 << 20, 1 << 30)
#: Everything is staged; reading and writing take memory for every thread.
STAGED = Staging(("a", "b", "out"), 4, 10_000)
CASES = [
    (1, (90, 131, 70), (1, 1), False),
    (2, (90, 131, 70), (1, 1), False),
    (1, (90, 131, 70), (48, 32), False),
    (1, (90, 90, 60), (1, 1), True),
]


def product(m, n, k, block_shape=(1, 1)):
    return Product(m, n, k, Operand(F4), Operand(F4), Operand(F4, block_shape=block_shape))


def chosen(count, shape, block_shape, symmetric, budgets, staging=STAGED, rates=RATES):
    return choose_within(count, product(*shape, block_shape), F4, budgets, staging, rates, symmetric=symmetric)


def least(count, shape, block_shape, symmetric, name, staging=STAGED):
    """Return the least that is named when one budget is a byte."""
    with pytest.raises(MemoryLimitError) as refused:
        chosen(count, shape, block_shape, symmetric, dataclasses.replace(AMPLE, **{name: GivenBytes(1)}), staging)
    return int(re.search(r"at least (\d+) bytes", str(refused.value))[1])


@pytest.mark.parametrize("name", ["device", "pinned", "memory"])
@pytest.mark.parametrize(
    ("count", "shape", "block_shape", "symmetric", "on_host"), [(*case, False) for case in CASES] + [(*CASES[2], True)]
)
def test_the_least_that_is_named_works_and_a_byte_less_does_not(count, shape, block_shape, symmetric, name, on_host):
    staging = dataclasses.replace(STAGED, on_host=on_host)
    amount = least(count, shape, block_shape, symmetric, name, staging)
    argument = "memory" if name == "memory" else f"{name}_memory"
    with pytest.raises(MemoryLimitError, match=f"at least {amount} bytes.*give {argument}="):
        chosen(
            count, shape, block_shape, symmetric, dataclasses.replace(AMPLE, **{name: GivenBytes(amount - 1)}), staging
        )
    budgets = dataclasses.replace(AMPLE, **{name: amount})
    found = chosen(count, shape, block_shape, symmetric, budgets, staging)
    assert found.plan.device_bytes <= budgets.device
    assert found.pinned_bytes <= budgets.pinned
    assert found.memory_bytes <= budgets.memory


class Counting(HostStreams):
    """A device on the host that counts pinned memory."""

    def __init__(self):
        super().__init__(pinned_arrays=False)
        self.pinned_bytes = 0

    def pinned(self, nbytes):
        self.pinned_bytes += nbytes
        return super().pinned(nbytes)


@pytest.mark.parametrize(("pinned", "memory"), [(16 << 10, 60_000), (40_000, 1 << 30), (1 << 20, 60_000)])
def test_what_is_predicted_of_the_host_is_what_is_taken(pinned, memory):
    shape = m, n, k = 150, 165, 101
    found = chosen(1, shape, (1, 1), False, Budgets(1 << 16, pinned, memory))
    assert found.pinned_bytes <= pinned
    assert found.memory_bytes == found.pinned_bytes + found.threads * STAGED.scratch <= memory
    a, b = (np.random.default_rng().standard_normal(one, "f4") for one in ((m, k), (k, n)))
    out = np.full((m, n), np.nan, "f4")
    settings = Settings(found.pinned, found.threads, found.result)
    with Counting() as device:
        stream_product(
            found.plan, {"a": ArraySource(a), "b": ArraySource(b)}, ArraySink(out), device, settings=settings
        )
    assert device.pinned_bytes == found.pinned_bytes
    np.testing.assert_allclose(out, a.astype("f8") @ b, rtol=1e-4, atol=1e-4)


def test_pinned_memory_decides_how_wide_tiles_are():
    # A store of blocks 128 rows high: a buffer holds that many rows of a tile.
    wanted = product(1024, 1024, 512, (128, 64))
    slow = dataclasses.replace(RATES, compute=1e13, accumulate=1e13)
    roomy, tight = (
        choose_within(1, wanted, F4, Budgets(4 << 20, pinned, 1 << 30), STAGED, slow, strategy="c-stationary")
        for pinned in (512 << 20, 80_000)
    )
    assert roomy.plan.tile_n * 128 * 4 > 80_000
    assert tight.plan.tile_n * 128 * 4 <= tight.pinned_bytes <= 80_000
    assert tight.plan.tile_n % 64 == 0
    assert tight.prediction.seconds > roomy.prediction.seconds
    assert "pinned" in tight.binding()
    assert "pinned" not in roomy.binding()
    assert "pinned memory (twice as much: " in binding_line(tight)


def test_memory_decides_how_many_threads_read_and_how_large_a_host_device_is():
    shape = 150, 150, 150
    staging = Staging(("a", "b", "out"), 8, 4 << 20)
    budgets = Budgets(1 << 18, 1 << 20, 64 << 20)
    slow = dataclasses.replace(RATES, source=1e9, sink=1e9)
    many = chosen(1, shape, (1, 1), False, budgets, staging, slow)
    few = chosen(1, shape, (1, 1), False, dataclasses.replace(budgets, memory=10 << 20), staging, slow)
    assert many.threads == 8
    assert few.threads == 2
    assert few.prediction.seconds > many.prediction.seconds
    assert "memory" in few.binding()
    assert "memory" not in many.binding()
    host = dataclasses.replace(staging, on_host=True, scratch=0)
    small = chosen(1, shape, (1, 1), False, Budgets(1 << 18, 1 << 15, 1 << 16), host, slow)
    assert small.plan.device_bytes + small.pinned_bytes == small.memory_bytes <= 1 << 16
    assert "memory" in small.binding()
    assert "device" not in small.binding()


def test_device_memory_binds_where_it_decides():
    rates = Rates(1e13, 1e13, 5e9, 5e9)
    tight = chosen(1, (300, 300, 300), (1, 1), False, Budgets(75_000, 0, 0), Staging(), rates)
    assert set(tight.binding()) == {"device"}
    whole = chosen(1, (300, 300, 300), (1, 1), False, Budgets(1 << 30, 0, 0), Staging(), rates)
    assert whole.binding() == {}
    assert binding_line(whole).startswith("limited by: no budget")
    assert (tight.pinned_bytes, tight.memory_bytes) == (0, 0)


@pytest.mark.parametrize("threads", [1, 4, 14])
@pytest.mark.parametrize("pinned", [20_000, 1 << 20, 300 << 20])
def test_rings_keep_to_their_budget(threads, pinned):
    for staged in (("a",), ("out",), ("a", "b", "out"), ("a", "c", "out"), ()):
        rings = cut_rings(staged, pinned, threads, 5_000)
        assert pinned_bytes(rings) <= pinned
        assert all(count >= 1 and size % 4096 == 0 for count, size in rings.values())
        assert len(rings) == len({"A" if name in "ab" else name for name in staged})
        if "out" in staged:
            assert rings["C out"][1] >= 5_000


def test_a_dry_run_names_the_budget_that_binds(tmp_path):
    from gemmule.outofcore.calls.request import Request
    from gemmule.outofcore.calls.session import StreamSession

    a = np.zeros((600, 700), "f4")
    request = Request(a, a.T.copy(), np.zeros((600, 600), "f4"), executor="cpu", device_memory="200KiB")
    with StreamSession(request, dry_run=True) as session:
        chosen = session.engine.chosen
    assert chosen.budgets.device == 200 << 10
    assert binding_line(chosen).startswith("limited by: device memory")
    request = Request(a, a.T.copy(), str(tmp_path / "C.npy"), executor="cpu", pinned_memory="1KiB")
    with (
        pytest.raises(gm.MemoryLimitError, match=r"pinned memory of 1 KiB is too small.*takes at least"),
        StreamSession(request, dry_run=True),
    ):
        pass
