"""Products of two of PyTorch's tensors whose launch stands in the call itself, without a driver."""

from __future__ import annotations

import pytest

from gemmule.core.errors import DriverError
from gemmule.runtime.replay import replay_single_launch
from support.fakes.cuda import Result
from support.fakes.driver import FakeDriver, expected, made

__all__ = ["made"]

FIRST = (0x1000, 0x2000, 0x3000)


class Tensor:
    def __init__(self, address):
        self.address = address

    def data_ptr(self):
        return self.address


@pytest.fixture
def repeating(made):
    """Return what makes the repeated product: of tensors that a guard lets through, apart from outputs that overlap."""

    def make(fake, new=None, first=FIRST):
        launch = made(fake, first).direct
        state = {"guard": True, "stream": 5, "apart": []}

        def apart(addresses, in_place):
            state["apart"].append(addresses)
            return addresses[0] != addresses[2]

        again = replay_single_launch(
            lambda *_: state["guard"],
            apart,
            new,
            launch,
            lambda device: state["stream"],
            device=0,
            same=first[0] == first[1],
        )
        return again, state, launch

    return make


def test_addresses_and_stream_of_every_call(repeating):
    fake = FakeDriver()
    again, state, _ = repeating(fake)
    a, b, out = map(Tensor, FIRST)
    calls = [(FIRST, 5), (FIRST, 6), ((0x1100, 0x2000, 0x3000), 6), ((0x1100, 0x2200, 0x3300), 7), (FIRST, 5)]
    for addresses, stream in calls:
        a.address, b.address, out.address = addresses
        state["stream"] = stream
        assert again(a, b, out) is out
        assert fake.seen[-1] == expected(addresses, stream)
    # Addresses that were in order last are not looked at again.
    assert state["apart"] == [addresses for addresses, _ in calls[2:]]


def test_outputs_are_made(repeating):
    fake, made_outputs = FakeDriver(), []

    def new(a):
        made_outputs.append(Tensor(0x3000 + 0x100 * len(made_outputs)))
        return made_outputs[-1]

    again, state, _ = repeating(fake, new)
    for number in range(3):
        assert again(Tensor(0x1000), Tensor(0x2000), None) is made_outputs[number]
        assert fake.seen[-1] == expected((0x1000, 0x2000, 0x3000 + 0x100 * number), 5)
    assert not state["apart"]


@pytest.mark.parametrize(
    ("addresses", "guard"),
    [(FIRST, False), ((0x3000, 0x2000, 0x3000), True), ((0x1008, 0x2000, 0x3000), True)],
    ids=str,
)
def test_what_is_not_in_order_is_looked_at_the_longer_way(repeating, addresses, guard):
    fake = FakeDriver()
    again, state, launch = repeating(fake)
    state["guard"] = guard
    assert again(*map(Tensor, addresses)) is None
    assert not fake.seen
    state["guard"] = True
    # The frame is there for the next one, with the addresses that it had.
    launch.give(frame := launch.take())
    assert frame.addresses == FIRST
    again(*map(Tensor, FIRST))
    assert fake.seen == [expected(FIRST, 5)]


def test_what_the_driver_refuses(repeating):
    again, _, _ = repeating(FakeDriver(statuses=[Result.CUDA_ERROR_LAUNCH_FAILED]))
    with pytest.raises(DriverError, match="cuLaunchKernelEx"):
        again(*map(Tensor, FIRST))
    # The next call makes a frame of its own.
    assert again(*map(Tensor, FIRST)) is not None


def test_another_context_is_current(repeating):
    fake = FakeDriver(statuses=[Result.CUDA_ERROR_INVALID_CONTEXT])
    fake.context = 0
    again, _, _ = repeating(fake)
    again(*map(Tensor, FIRST))
    assert fake.entered == [0]
    assert fake.seen == [expected(FIRST, 5)] * 2


@pytest.mark.parametrize("same", [True, False])
def test_what_holds_for_one_memory_holds_for_no_two(repeating, same):
    fake = FakeDriver()
    once, twice = (0x1000, 0x1000, 0x3000), FIRST
    mine, others = (once, twice) if same else (twice, once)
    again, _, _ = repeating(fake, first=mine)
    assert again(*map(Tensor, mine)) is not None
    assert again(*map(Tensor, others)) is None
    assert again(*map(Tensor, mine)) is not None
    assert fake.seen == [expected(mine, 5)] * 2
