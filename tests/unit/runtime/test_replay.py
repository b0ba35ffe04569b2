"""Replays of products: what they leave to a plan, by the addresses alone."""

from __future__ import annotations

import types

import pytest

from gemmule.runtime.replay import replay_two_operands, replay_with_addends


def at(address):
    return types.SimpleNamespace(data_ptr=lambda: address)


@pytest.fixture
def queued():
    return []


@pytest.mark.parametrize("null", [0, 1, 2])
@pytest.mark.parametrize("count", [2, 3])
def test_arrays_without_memory_are_not_replayed(queued, null, count):
    make = replay_two_operands if count == 2 else replay_with_addends
    replay = make(
        lambda *_: True,
        lambda *_: True,
        None,
        lambda addresses, stream: queued.append(addresses),
        lambda _: 7,
        0,
        False,
    )
    c = [at(0x4000)] if count == 3 else []
    arrays = [at(0x1000), at(0x2000), at(0x3000)]
    assert replay(*arrays, *c, *([None] if c else [])) is arrays[2]
    arrays[null] = at(0)
    assert replay(*arrays, *c, *([None] if c else [])) is None
    assert len(queued) == 1
