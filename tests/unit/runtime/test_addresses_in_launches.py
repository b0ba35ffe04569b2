"""Addresses in a launch's parameters, which each call writes, with the driver left out."""

from __future__ import annotations

import struct

import pytest

from gemmule.core.dtype import BFLOAT16
from gemmule.core.launch import Launch, TensorMapParam, TensorParam
from gemmule.runtime import direct

_MAP = TensorMapParam("a", BFLOAT16, (64, 8), (128,), (64, 8), 128)
_BEYOND = TensorMapParam("a", BFLOAT16, (64, 8), (128,), (64, 8), 128, offset=48)


def packed(monkeypatch, word, params):
    """Pack a launch whose maps have the address in a word, or in none that is known."""
    monkeypatch.setattr(direct, "encoded", lambda param, address: struct.pack("<16Q", *[0] * 5, address, *[0] * 10))
    monkeypatch.setattr(direct, "address_word", lambda param: word)
    launch = Launch((1, 1, 1), (32, 1, 1), params)
    return direct.packed("kernel", 0, None, object, launch, ("a", "d"), (0x1000, 0x2000))


def words_of(frame, index):
    """Return the words of a parameter of 128 bytes."""
    start = (frame.words[index] - frame.params) // 8
    return list(frame.words[start : start + 16])


def test_maps_of_a_part_of_an_operand_follow_its_address(monkeypatch):
    frame = direct.Frame(packed(monkeypatch, 5, (_MAP, _BEYOND, TensorParam("d", (4, 4), (4,)))))
    assert [words_of(frame, index)[5] for index in range(2)] == [0x1000, 0x1030]
    frame.point((0x5000, 0x6000))
    assert [words_of(frame, index)[5] for index in range(2)] == [0x5000, 0x5030]
    assert words_of(frame, 2)[0] == 0x6000


@pytest.mark.parametrize(("addresses", "moved"), [((0x1000, 0x6000), []), ((0x5000, 0x2000), [0x5000, 0x5030])])
def test_maps_that_only_the_driver_changes(monkeypatch, addresses, moved):
    found = []
    monkeypatch.setattr(direct, "map_at", lambda place: place)
    monkeypatch.setattr(direct, "move", lambda tensor_map, address, ordinal: found.append(address))
    direct.Frame(packed(monkeypatch, None, (_MAP, _BEYOND))).point(addresses)
    assert found == moved
