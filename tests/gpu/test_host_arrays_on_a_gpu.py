"""Host arrays through a GPU: by the driver's copies and staged, whole at return, whatever the caller does then."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

import gemmule as gm
from gemmule.api.planning.host_rates import link_times
from gemmule.runtime.round_trip import link_of

SIDE = 1024


@pytest.fixture(params=["driver", "staged"])
def way(request, monkeypatch):
    """Let all arrays be copied in one way."""
    link_times(0)
    monkeypatch.setattr(link_of(0), "staged_from", (0, 0) if request.param == "staged" else (math.inf, math.inf))
    return request.param


LAYOUTS = {
    "rows": lambda x: x,
    "every other column": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "part": lambda x: np.pad(x, ((3, 1), (5, 2)))[3:-1, 5:-2],
    "foreign": lambda x: x.astype(x.dtype.newbyteorder(">")),
}


def factors(seed, depth=SIDE):
    # Sums of these are exact in float32.
    rng = np.random.default_rng(seed)
    return [rng.integers(-9, 10, shape).astype("f4") for shape in ((SIDE, depth), (depth, SIDE))]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_are_whole_at_return(way, layout):
    for seed in range(3):
        a, b = factors(seed)
        expected, given = a.astype("f8") @ b, LAYOUTS[layout](a)
        for out in (None, np.full((SIDE, SIDE), np.nan, "f4"), np.full((SIDE, 2 * SIDE), np.nan, "f4")[:, ::2]):
            left, right = given.copy() if layout == "rows" else given, b.copy()
            result = gm.matmul(left, right, out, executor="gpu")
            # What is copied later would be seen in the result.
            right[...] = np.nan
            assert np.array_equal(result, expected)


def test_nothing_to_sum(way):
    a, b = factors(0, depth=0)
    assert not gm.matmul(a, b, np.full((SIDE, SIDE), np.nan, "f4"), executor="gpu").any()


def test_threads_multiply_at_once(way):
    wrong = []

    def work(seed):
        a, b = factors(seed)
        expected = a.astype("f8") @ b
        for _ in range(20):
            if not np.array_equal(gm.matmul(a, b, executor="gpu"), expected):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
