"""Products of the tile engine on the host, and the check of them."""

from __future__ import annotations

import numpy as np

from gemmule.host.tiles import HostTileExecutor
from gemmule.outofcore.stores.arrays import ArraySink, ArraySource
from gemmule.outofcore.tiles.result_rules import output_dtype, result_dtype
from support.outofcore.tile_products import multiply, verify

MEMORY = 16 << 20


def run(a, b, out_dtype=None, **scalars):
    out = np.empty((a.shape[0], b.shape[1]), result_dtype(a.dtype, b.dtype, out_dtype))
    multiply(ArraySource(a), ArraySource(b), ArraySink(out), HostTileExecutor(), memory=MEMORY, **scalars)
    return out


def check(a, b, out, **options):
    return verify(ArraySource(a), ArraySource(b), ArraySource(out), memory=options.pop("memory", MEMORY), **options)


def factors(name, shape=(70, 90, 80)):
    m, k, n = shape
    rng = np.random.default_rng(0)
    dtype = output_dtype(name)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return tuple(rng.integers(info.min, info.max, s, dtype, endpoint=True) for s in ((m, k), (k, n)))
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    if dtype.kind == "c":
        return (a + 1j).astype(dtype), (b - 2j).astype(dtype)
    return a.astype(dtype), b.astype(dtype)
