"""Small products through files: planning and bookkeeping stay short."""

from __future__ import annotations

import itertools
import sys
import threading
from typing import Any

import numpy as np
import pytest

import gemmule as gm
from gemmule.host.tiles import HostTileExecutor
from gemmule.outofcore.tiles.plan import Operand, Product, memory_needed
from gemmule.outofcore.tiles.search import plan_product
from gemmule.vgpu.tiles import VirtualTileExecutor

#: Python calls of a product of two 64x64 .npy files, in all threads.
MOST_CALLS = 1886


def test_a_small_product_of_files_takes_few_calls(tmp_path):
    names = [tmp_path / f"{name}.npy" for name in "ab"]
    for name in names:
        np.save(name, np.ones((64, 64), np.float32))
    gm.outofcore.matmul(*names, tmp_path / "first.npy", executor="cpu")
    calls = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event == "call"

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        gm.outofcore.matmul(*names, tmp_path / "second.npy", executor="cpu")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert calls <= MOST_CALLS


def test_the_planner_computes_the_memory_of_one_tile_where_all_fit():
    asked = []

    def tile_bytes(m: int, n: int, k: int) -> int:
        asked.append((m, n, k))
        return 8 * m * n

    f4 = Operand(np.dtype("f4"))
    plan_product(Product(700, 700, 700, f4, f4, f4), 1 << 34, tile_bytes)
    # The whole product, and what was chosen.
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("executor", "dtype"),
    [
        *itertools.product((HostTileExecutor(), HostTileExecutor(tiny=True)), ("f2", "f4", "f8", "c16", "i1", "i8")),
        *itertools.product((VirtualTileExecutor(None),), ("f2", "f4", "f8", "i1")),
    ],
)
def test_no_tiles_take_more_than_four_times_the_whole_product(executor, dtype):
    """The planner relies on it: where that much fits, it computes the memory of no tile."""
    rng = np.random.default_rng(5)
    kind = np.dtype(dtype)
    for _ in range(300):
        m, n, k = (int(2 ** rng.uniform(0, 15)) for _ in range(3))
        product = Product(m, n, k, Operand(kind), Operand(kind), Operand(kind))
        tile = tuple(int(rng.integers(1, extent + 1)) for extent in (m, n, k))

        def needed(tile, product=product, **order):
            return memory_needed(
                product, tile, tile_bytes=lambda *sides: executor.tile_bytes(kind, kind, kind, *sides), **order
            )

        most = 4 * needed((m, n, k), by_rows=True, keep=True)
        for by_rows in (True, False):
            for keep in (True, False):
                assert needed(tile, by_rows=by_rows, keep=keep) <= most
