"""A matrix times its own transpose through a device: when it was stopped, what was mirrored is there."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from support.outofcore.killed_products import interrupting


@pytest.mark.parametrize("strategy", ["c-stationary", "resident-c"])
def test_it_goes_on_to_the_same_bits(rng, tmp_path, monkeypatch, strategy):
    monkeypatch.chdir(tmp_path)
    np.save("A.npy", rng.standard_normal((217, 340)).astype("f4"))
    # All tiles stay with `resident-c`, and little else would fit.
    memory, share = ("300KiB", 0.5) if strategy == "c-stationary" else ("380KiB", 0.97)
    options = {
        "transpose_b": True, "device_memory": memory, "executor": "cpu", "strategy": strategy,
        "pinned_memory": "64KiB", "compute_dtype": "float64",
    }  # fmt: skip

    whole = gm.outofcore.matmul("A.npy", "A.npy", "D.npy", **options)
    assert (whole.strategy, whole.tiles > 4) == (strategy, True)
    with interrupting(share, rectangles=16 if strategy == "c-stationary" else 0) as progress:
        gm.outofcore.matmul("A.npy", "A.npy", "C.npy", **options, progress=progress)
    told = gm.outofcore.matmul("A.npy", "A.npy", "C.npy", **options)
    assert told.tiles_computed <= whole.tiles
    if strategy == "c-stationary":
        assert 0 < told.tiles_computed < whole.tiles
        assert told.bytes_d2h < whole.bytes_d2h == 217 * 217 * 8
    result, a = np.load("C.npy"), np.load("A.npy").astype("f8")
    np.testing.assert_array_equal(result, np.load("D.npy"))
    np.testing.assert_array_equal(result, result.T)
    np.testing.assert_allclose(result, a @ a.T, rtol=1e-11, atol=1e-11)
