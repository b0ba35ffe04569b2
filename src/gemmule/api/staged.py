"""Host arrays through a GPU: every matrix of the batch at once where it fits, in tiles where it does not."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmule.core.dtype import Precision
from gemmule.dispatch.select import choose
from gemmule.outofcore.arrays import ArraySink, ArraySource
from gemmule.outofcore.budget import available_memory
from gemmule.outofcore.multiply import multiply
from gemmule.runtime.memory import usable_memory
from gemmule.runtime.tiles import GpuTileExecutor

Array = np.ndarray[Any, np.dtype[Any]]


def multiply_on_gpu(
    a: Array, b: Array, out: Array, alpha: Any, beta: Any, c: Array | None, precision: Precision, ordinal: int = 0
) -> None:
    """Write ``alpha * a @ b + beta * c`` into `out`: NumPy arrays of (..., m, k), (..., k, n) and (..., m, n)."""
    batch = out.shape[:-2]
    a = np.broadcast_to(a, (*batch, *a.shape[-2:]))
    b = np.broadcast_to(b, (*batch, *b.shape[-2:]))
    memory = usable_memory(ordinal)
    with GpuTileExecutor(choose, ordinal, precision) as executor:
        (m, k), n = a.shape[-2:], b.shape[-1]
        fits = executor.tile_bytes(a.dtype, b.dtype, out.dtype, m, n, k) <= memory
        for index in np.ndindex(batch):
            addend = c[index] if c is not None else None
            if fits:
                with executor.tile_sum(m, n, a.dtype, b.dtype, out.dtype) as total:
                    total.add(a[index], b[index])
                    total.finish(out[index], alpha, beta, addend)
                continue
            multiply(
                ArraySource(a[index], "a"),
                ArraySource(b[index], "b"),
                ArraySink(out[index], "out"),
                executor,
                # Slices and tiles are staged in host memory too.
                memory=min(memory, available_memory() // 2),
                alpha=alpha,
                beta=beta,
                c=ArraySource(addend, "c") if addend is not None else None,
            )
