"""Pinned buffers between host memory and a device: how many, how large, and how fast matrices pass through them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection

from ....core.errors import MemoryLimitError
from ...tiles.memory_budget import at_least, format_bytes
from ...tiles.plan import Product
from ..engine.staging import SHARE
from .operation import AB_IN, C_IN, C_OUT
from .plan import DevicePlan
from .rates import Rates

#: Size of a pinned buffer where the budget allows for some, and of the smallest one.
LARGEST, SMALLEST = 32 << 20, 4096
#: Buffers beyond one for each thread: those that are on their way to the device, or wait for it.
_SPARE = 4
#: Seconds that handing a buffer over takes.
_HANDED_S = 2.5e-4
#: So many threads copy at half the rate of very many.
_HALF_THREADS = 7.0

#: Number of buffers, and bytes of each, by the stream that copies from or to them.
Rings = dict[str, tuple[int, int]]


def loading_streams(staged: Collection[str]) -> list[str]:
    """Return the streams towards the device whose matrices are staged."""
    return [stream for stream, names in ((AB_IN, "ab"), (C_IN, "c")) if any(name in staged for name in names)]


def line_bytes(plan: DevicePlan) -> int:
    """Return the least bytes of a result buffer: a tile's part of the rows that the store writes as a whole."""
    return column_bytes(plan.product) * max(plan.result_width, 1)


def column_bytes(product: Product) -> int:
    """Return the bytes that a buffer of the result holds at least for each column of a tile."""
    return max(min(product.out.block_shape[0], product.m), 1) * product.out.itemsize


def least_pinned(staged: Collection[str], line: int) -> int:
    """Return the fewest bytes of pinned memory: one buffer for each stream that stages something."""
    return SMALLEST * len(loading_streams(staged)) + (_whole(line) if "out" in staged else 0)


def cut_rings(staged: Collection[str], pinned: int, threads: int, line: int, result: int | None = None) -> Rings:
    """Return the pinned buffers of each stream, within `pinned` bytes in all.

    Parameters
    ----------
    staged : collection of str
        Those of ``a``, ``b``, ``c`` and ``out`` that are staged.
    pinned : int
        Bytes that all buffers may take.
    threads : int
        Threads that fill the buffers of a stream, or empty them.
    line : int
        Least bytes of a buffer of the result, as of `line_bytes`.
    result : int, optional
        Bytes for the buffers of the result; half of all otherwise.

    Raises
    ------
    MemoryLimitError
        If that is too little.
    """
    loading = loading_streams(staged)
    least = least_pinned(staged, line)
    if pinned < least:
        raise MemoryLimitError(too_little_pinned(pinned, least))
    rings: Rings = {}
    back = 0
    if "out" in staged:
        back = (pinned // 2 if loading else pinned) if result is None else result
        back = min(max(back, _whole(line)), pinned - SMALLEST * len(loading))
        rings[C_OUT] = _ring(back, line, threads)
    for stream in loading:
        rings[stream] = _ring((pinned - back) // len(loading), SMALLEST, threads)
    return rings


def too_little_pinned(pinned: int, least: int) -> str:
    """Say that a budget of pinned memory is too small, and what would do."""
    return (
        f"pinned memory of {format_bytes(pinned)} is too small for this product; it takes at least "
        f"{format_bytes(least, up=True, like=pinned)} of buffers; {at_least('pinned_memory', least, pinned)}"
    )


def pinned_bytes(rings: Rings) -> int:
    """Return the bytes of all buffers."""
    return sum(count * size for count, size in rings.values())


def staged_rates(rates: Rates, rings: Rings, threads: int, measured_with: int) -> Rates:
    """Return the rates at which matrices pass through such buffers.

    Parameters
    ----------
    rates : Rates
        Measured rates, with buffers of any size.
    rings : dict
        The buffers.
    threads : int
        Threads that fill the buffers of a stream, or empty them.
    measured_with : int
        Threads that were measured.
    """
    found = dataclasses.replace(rates, ready=rates.pin * pinned_bytes(rings))
    if AB_IN in rings and math.isfinite(rates.source):
        found = dataclasses.replace(
            found, source=_through(rates.source, *rings[AB_IN], threads, measured_with), longest=rings[AB_IN][1]
        )
    if C_OUT in rings and math.isfinite(rates.sink):
        found = dataclasses.replace(found, sink=_through(rates.sink, *rings[C_OUT], threads, measured_with))
    return found


def without_handing(rate: float, ring: tuple[int, int]) -> float:
    """Return the rate with buffers of any size of what was measured with those of a ring."""
    return 1 / max(1 / rate - _HANDED_S / ring[1], 1e-3 / rate)


def _through(rate: float, count: int, size: int, threads: int, measured_with: int) -> float:
    # One buffer is on its way while threads fill the others together; with a single one, both take turns.
    busy = min(float(threads), max(size // SHARE, 1) * (count - 1 or 0.5))
    share = min(_rising(busy) / _rising(measured_with), 1.0)
    return 1 / (1 / (rate * share) + _HANDED_S / size)


def _rising(threads: float) -> float:
    return threads / (threads + _HALF_THREADS)


def _whole(nbytes: int) -> int:
    return -(-nbytes // SMALLEST) * SMALLEST


def _ring(nbytes: int, least: int, threads: int) -> tuple[int, int]:
    quarter = nbytes // 4
    size = max(min(LARGEST, quarter - quarter % SMALLEST), _whole(least))
    return max(min(nbytes // size, threads + _SPARE), 1), size
