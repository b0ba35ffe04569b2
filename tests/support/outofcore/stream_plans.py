"""Plans of small streamed products, and delays for the device made of threads."""

from __future__ import annotations

import functools
import random
import threading

import numpy as np

from gemmule.outofcore.device.engine.streaming import Settings
from gemmule.outofcore.device.planner.choice import choose_plan, least_memory
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.tiles.plan import Operand, Product

RATES = Rates(1e9, 1e9, 1e8, 1e8)


STRATEGIES = ["five-buffers", "c-stationary", "panels"]


SMALL = Settings(pinned=48 << 10, threads=3)


def shuffled(seed=0, longest=5e-4):
    """Delays of all lengths: whatever is not waited for is too early or too late."""
    rng = random.Random(seed)
    lock = threading.Lock()

    def delay(kind, amount):
        with lock:
            return rng.choice((0, 0, longest / 10, longest))

    return delay


@functools.cache
def planned(shape, dtype, strategy, *, orders="CC", out=None, total=None, c=None, memory=10, symmetric=False):
    m, n, k = shape
    dtype = np.dtype(dtype)
    a, b = (Operand(dtype, order) for order in orders)
    product = Product(m, n, k, a, b, Operand(np.dtype(out or dtype)), Operand(np.dtype(c)) if c else None)
    total = np.dtype(total or dtype)
    least = least_memory(product, total, symmetric=symmetric, strategy=strategy)
    return choose_plan(product, total, memory * least, RATES, strategy=strategy, symmetric=symmetric)


def matrix(shape, dtype, seed, order="C"):
    values = np.random.default_rng(seed).integers(-3, 4, shape)
    return np.asarray(values.astype(dtype), order=order)
