"""Time of a product of host arrays, on the host and by way of the GPU, from rates measured on this machine."""

from __future__ import annotations

import bisect
import functools
import math
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gemmule import __version__
from gemmule.core.cpus import usable_cpus
from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import Precision, numpy_dtype
from gemmule.core.problem import contiguous_gemm
from gemmule.runtime.device import get_device

from ..validation.operands import least_seconds

#: Sides of the squares that the host is timed at, and seconds after which no larger one is timed.
HOST_SIDES, _LONG_S = (128, 256, 512, 1024, 2048), 0.04
#: Fewest timings, and the seconds for which a copy and a product are timed, since single short runs
#: differ by a factor of two, and the first products of BLAS's threads take longer.
_TIMES, _COPY_S, _PRODUCT_S = 5, 0.004, 0.02
#: Repetitions of the timing of a product that had a lower rate than a smaller one.
_AGAIN = 3
#: Bytes of the copies that are timed, in each direction.
LINK_BYTES = (4 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 128 << 20)
#: Share of its peak rate at which a GPU is taken to multiply, and FLOP/s where its peak is not known.
_PEAK_SHARE, _UNKNOWN_RATE = 0.7, 1e12
#: Seconds for which OpenBLAS's threads spin after a product, 2**28 cycles, and slow down copies.
_SPINNING_S = 0.15
#: Seconds of a round trip besides copies and product, its launch and what Python does: on an H100's host, by the
#: record 20261124T211116, calls of 256 and 512 took 15 to 54 us more than copies and product alone.
_BESIDE_S = 25e-6


@dataclass(frozen=True)
class HostWork:
    """A product of host arrays, as far as its time depends on it."""

    #: count, m, n, k: Products of the batch, and their extents.
    count: int
    m: int
    n: int
    k: int
    dtypes: tuple[str, str, str]  #: Types of A, B and the result.
    precision: Precision = Precision.IEEE  #: Type that float32 operands may be rounded to.

    @property
    def flop(self) -> int:
        """Operations in all."""
        return 2 * self.count * self.m * self.n * self.k

    def host_seconds(self) -> float:
        """Return the expected time on the host."""
        each = 2 * self.m * self.n * self.k
        return self.count * interpolated([2 * side**3 for side in HOST_SIDES], host_times(self.dtypes), each)

    def gpu_seconds(self, ordinal: int = 0) -> float:
        """Return the expected time by way of a GPU: copies there, the product, the copy back, and the overhead."""
        sizes = [numpy_dtype(name).itemsize for name in self.dtypes]
        elements = (self.m * self.k, self.k * self.n, self.m * self.n)
        a, b, result = (self.count * number * size for number, size in zip(elements, sizes, strict=True))
        times = link_times(ordinal)
        there, back = times[: len(LINK_BYTES)], times[len(LINK_BYTES) :]
        # Both factors are staged together; the driver copies each by itself, which adds what a copy of few bytes takes.
        copies = interpolated(LINK_BYTES, there, a + b) + there[0] + interpolated(LINK_BYTES, back, result)
        device = get_device(ordinal)
        problem = contiguous_gemm(
            self.m, self.n, self.k, self.dtypes, batch=(self.count,), precision=self.precision
        )  # fmt: skip
        bound = least_seconds(problem, device.name, from_host=False)
        return _BESIDE_S + copies + (self.flop / _UNKNOWN_RATE if bound is None else bound / _PEAK_SHARE)


def interpolated(sizes: Sequence[int], times: Sequence[float], size: float) -> float:
    """Return the time of a size between measured ones, or beyond the last, on the line through the two nearest.

    Below the first it is that of the first.
    """
    if size <= sizes[0]:
        return times[0]
    place = min(bisect.bisect_left(sizes, size), len(sizes) - 1)
    slope = (times[place] - times[place - 1]) / (sizes[place] - sizes[place - 1])
    return times[place] + (size - sizes[place]) * max(slope, 0.0)


@functools.cache
def host_times(dtypes: tuple[str, str, str]) -> tuple[float, ...]:
    """Return the seconds of square products of `HOST_SIDES` on the host, measured once in 30 days."""
    from gemmule.host import blas

    how = f"product on the host, {_PRODUCT_S} s, {_AGAIN} times again"
    key = how, platform.node(), str(usable_cpus()), blas.describe(), str(blas.thread_count()), *dtypes
    return _figures(key, len(HOST_SIDES), lambda: _timed_on_host(dtypes))


@functools.cache
def link_times(ordinal: int) -> tuple[float, ...]:
    """Return the seconds of copies of `LINK_BYTES` to a GPU, and back into new arrays, measured once in 30 days.

    The least sizes of staged arrays are passed to the GPU's link.
    """
    from gemmule.runtime.round_trip import link_of

    key = (
        f"round trip, after {_SPINNING_S} s",
        *get_device(ordinal).identity,
        platform.node(),
        str(usable_cpus()),
        __version__,
    )
    count = len(LINK_BYTES)
    found = _figures(key, 4 * count, lambda: _timed_copies(ordinal))
    driver, staged = found[: 2 * count], found[2 * count :]
    there, back = (_staged_from(driver[way : way + count], staged[way : way + count]) for way in (0, count))
    link_of(ordinal).staged_from = there, back
    return tuple(map(min, driver, staged))


def _staged_from(driver: Sequence[float], staged: Sequence[float]) -> float:
    """Return the least size from which on staging is faster than the driver's way; infinity where there is none."""
    slower = [place for place, (one, other) in enumerate(zip(driver, staged, strict=True)) if one <= other]
    first = slower[-1] + 1 if slower else 0
    return LINK_BYTES[first] if first < len(LINK_BYTES) else math.inf


def _figures(key: Sequence[str], count: int, probe: Callable[[], Sequence[float]]) -> tuple[float, ...]:
    from gemmule.outofcore.device.planner.probe_cache import ProbeCache, probes_file

    probes = ProbeCache(probes_file())
    found = probes.figures(key, count, probe)
    probes.save()
    return found


def _timed_on_host(dtypes: tuple[str, str, str]) -> list[float]:
    from gemmule.host.gemm import checked_gemm

    a_type, b_type, d_type = map(numpy_dtype, dtypes)
    found: list[float] = []
    for side in HOST_SIDES:
        if found and found[-1] > _LONG_S:
            # A larger one takes as long for each operation.
            found.append(found[-1] * (side / HOST_SIDES[len(found) - 1]) ** 3)
            continue
        a, b = np.ones((side, side), a_type), np.ones((side, side), b_type)
        out = np.empty((side, side), d_type)
        # As a call that is cached: the checks of the first are not in its time.
        run = functools.partial(checked_gemm(a, b, out).run, a, b, out, None)
        taken = _seconds_of(run, _PRODUCT_S)
        if found:
            # It takes no longer for each operation than a smaller one, but where BLAS's threads wait for other work.
            most = found[-1] * (side / HOST_SIDES[len(found) - 1]) ** 3
            for _ in range(_AGAIN):
                if taken <= most:
                    break
                taken = min(taken, _seconds_of(run, _PRODUCT_S))
            taken = min(taken, most)
        found.append(taken)
    return found


def _timed_copies(ordinal: int) -> list[float]:
    """Return the seconds of copies there and back by the driver, then of staged ones."""
    from gemmule.runtime.device import current
    from gemmule.runtime.driver import call
    from gemmule.runtime.round_trip import link_of

    link, found = link_of(ordinal), []
    time.sleep(_SPINNING_S)
    with link.lock, current(ordinal), link.room(LINK_BYTES[-1]) as address:

        def send(source: np.ndarray[Any, Any]) -> None:
            link.send([(source, address)])
            call("cuStreamSynchronize", link.stream)

        def receive(nbytes: int) -> None:
            # Its pages are new, as those of a result.
            link.receive(np.empty(nbytes, np.uint8), address)

        for staged_from in ((math.inf, math.inf), (0, 0)):
            link.staged_from = staged_from
            sources = [np.ones(nbytes, np.uint8) for nbytes in LINK_BYTES]
            found += [_seconds_of(functools.partial(send, source), _COPY_S) for source in sources]
            found += [_seconds_of(functools.partial(receive, nbytes), _COPY_S) for nbytes in LINK_BYTES]
    return found


def _seconds_of(run: Callable[[], Any], least_s: float) -> float:
    """Return the time of a few runs, of `least_s` in all at least.

    The first, which wakes threads and makes buffers, is left out.
    """
    run()
    taken: list[float] = []
    while len(taken) < _TIMES or sum(taken) < least_s:
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
        if taken[-1] > _LONG_S:
            break
    # Its lower quartile: what else the machine does makes some runs slower, and none faster.
    return sorted(taken)[len(taken) // 4]
