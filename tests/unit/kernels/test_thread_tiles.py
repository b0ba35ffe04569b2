"""Configs of the ladder's tiles: what a kernel would leave out or do twice is refused when the config is made."""

from __future__ import annotations

import pytest

from gemmule.core.errors import ArgumentError
from gemmule.dispatch.registry import REGISTRY


@pytest.mark.parametrize(
    ("kernel", "numbers", "rule"),
    [
        ("g01_naive_uncoalesced", {"block_m": 64}, "2048 threads are more than the 1024"),
        ("g03_shared_tile", {"side": 33}, "1089 threads are more"),
        ("g04_register_tile", {"thread_m": 256}, "thread_m must divide tile_m"),
        ("g04_register_tile", {"thread_n": 24}, "and thread_n tile_n"),
        ("g04_register_tile", {"thread_m": 2}, "a k-tile must be a multiple of 4096 elements, 4 a thread"),
        ("g04_register_tile", {"thread_n": 2, "thread_m": 32}, "thread_n must be a multiple of 4"),
        ("g04_register_tile", {"tile_k": 6}, "tile_k must be a multiple of 4"),
        ("g04_register_tile", {"tile_k": 256}, "262144 bytes of shared memory, of at most 232448"),
        ("g05_conflict_free", {"thread_m": 2}, "thread_m must be a multiple of 4"),
        ("g06_double_buffer", {"thread_m": 2}, "thread_m must be a multiple of 4"),
        ("d01_shared_ab", {"tile_k": 15}, "a k-tile must be a multiple of 512 elements, 1 a thread"),
        ("d02_b_in_registers", {"lanes_n": 5}, "lanes_n must divide 32"),
        ("d02_b_in_registers", {"ahead": 5}, "ahead tile_k"),
        ("d02_b_in_registers", {"thread_n": 3, "tile_n": 96}, "thread_n must be 1 or a multiple of 2"),
        ("d02_b_in_registers", {"thread_n": 4}, "tile_m must be a multiple of 16, and tile_n of 128"),
        ("d02_b_in_registers", {"tile_m": 64, "tile_k": 8}, "a k-tile of B must have a multiple of 256 sectors"),
    ],
)
def test_what_does_not_fit_is_refused(kernel, numbers, rule):
    config = next(spec for spec in REGISTRY if spec.name == kernel).default
    with pytest.raises(ArgumentError, match=rule):
        type(config)(**(config.as_dict() | numbers))
