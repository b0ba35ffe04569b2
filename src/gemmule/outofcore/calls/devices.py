"""Opening the device that a large product passes through, and telling how fast it is."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import platform
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from gemmule import __version__
from gemmule.core.cpus import usable_cpus
from gemmule.core.dtype import Precision
from gemmule.core.errors import ArgumentError
from gemmule.executor.streams import DeviceStreams

from ..device.engine.host_memory import is_transpose, memory_of
from ..device.engine.staging_probe import Staged, pinned_within, staged_by
from ..device.planner.budgets import Budgets
from ..device.planner.disk_probe import DiskRate, copy_rate, read_rate, write_rate
from ..device.planner.probe_cache import ProbeCache
from ..device.planner.rates import Rates
from ..stores.arrays import ArraySink
from ..stores.matrix import AnyDType, Array, MatrixSink, MatrixSource
from ..stores.target import Target
from ..tiles.problem import StreamProblem
from ..tiles.result_rules import sum_dtype as host_sum_dtype

if TYPE_CHECKING:
    from gemmule.core.problem import GemmProblem
    from gemmule.core.spec import Choice
    from gemmule.runtime.device import Device

#: Bytes of a line at which a file is read and written at half the disk's rate.
_FILE_LINE = 64 << 10
#: Side of a product of half the rate, in the planner's model.
_HALF = 64
#: Bytes a second at which pageable matrices pass through large pinned buffers, there and back, what is left of that
#: while both do, and seconds in which a byte of such a buffer is made: measured with twelve threads on an H200's host.
_SOURCE, _SINK, _DUPLEX_SHARES, _PIN_S = 42e9, 37e9, (0.53, 0.74), 2.4e-10
#: The rate of copies from arrays from which on these are reached: where they are slower, these rates are, too. One to
#: six threads staged at 0.5 to 0.65 of the rate at which they copied, fourteen at 0.8.
_COPIED = 60e9
#: Matrices of fewer bytes in all are not worth the time of measuring that.
_LEAST_STAGED = 1 << 30
#: Seconds for which the host's products are timed.
_HOST_S = 0.1
#: Seconds that threads take to hand an operation over: on the host, and on a GPU where things are staged.
_HOST_LAUNCH_S, _STAGED_LAUNCH_S = 1e-3, 2e-4


@contextlib.contextmanager
def open_streams(name: str, precision: Precision, ordinal: int = 0) -> Iterator[DeviceStreams]:
    """Open a GPU, or a device made of host memory and threads."""
    if name == "gpu":
        from gemmule.dispatch.select import choose_streamed
        from gemmule.runtime.streams import GpuStreams

        with GpuStreams(choose_streamed, ordinal, precision) as gpu:
            yield gpu
    else:
        from gemmule.host.streams import HostStreams

        with HostStreams() as host:
            yield host


def check_devices(devices: Sequence[int], name: str) -> None:
    """Refuse a list of GPUs that cannot share a product.

    Raises
    ------
    ArgumentError
        If the product runs on the host, the list is empty or names a GPU twice, or there is no such GPU.
    """
    from gemmule.runtime.device import device_count

    if name != "gpu":
        raise ArgumentError(
            f"devices={list(devices)} names GPUs, and this product runs on the {name.upper()}; leave it out, or "
            "give executor='gpu' on a machine that has them"
        )
    count = device_count()
    if not devices or len(set(devices)) != len(devices) or not all(0 <= ordinal < count for ordinal in devices):
        raise ArgumentError(
            f"devices={list(devices)} must be numbers of GPUs from 0 to {count - 1}, each once; see `gemmule info`"
        )


def device_memory(name: str, ordinals: Sequence[int] = (0,)) -> int:
    """Return the default limit of each device's memory, in bytes."""
    if name == "gpu":
        from gemmule.runtime.memory import usable_memory

        return min(usable_memory(ordinal) for ordinal in ordinals)
    from ..tiles.memory_budget import available_memory

    return available_memory() // 4


def accumulator_dtype(name: str, a: AnyDType, b: AnyDType, out: AnyDType) -> AnyDType:
    """Return the type of the accumulators of a tile on that device."""
    if name == "gpu":
        from gemmule.runtime.stream_problems import sum_dtype

        return sum_dtype(a, b)
    # Integers wrap alike in every width; floats are summed as wide as they are multiplied.
    return out if out.kind in "iu" else np.promote_types(host_sum_dtype(a, b), out)


def threads_for_copies() -> int:
    """Return how many threads fill pinned buffers: a copy takes several to keep a link busy."""
    return max(min(usable_cpus(), 16) - 2, 1)


def measured_rates(
    name: str,
    problem: StreamProblem,
    place: MatrixSink | Target,
    sums: AnyDType,
    precision: Precision,
    budgets: Budgets,
    ordinal: int = 0,
    probes: ProbeCache | None = None,
) -> Rates:
    """Return how fast the device computes such a product and exchanges matrices.

    Host memory is taken within the `budgets`; `sums` is the type of the accumulators. Earlier measurements of this
    machine are read from `probes`, and new ones stored there: of links and reads, and where `probes`
    measures also of staging and writes, and from the start of kernels. Else the times that dispatch predicts, and usual
    rates, stand in for these.
    """
    probes = probes or ProbeCache()
    a, b, threads = problem.a, problem.b, threads_for_copies()
    path = None if isinstance(place, ArraySink) else place.name
    to = memory_of(place) if isinstance(place, ArraySink) else None
    files = a.path is not None or b.path is not None or to is None
    with ThreadPoolExecutor(1, "gemmule-disk") as pool:
        # The disk is timed while the GPU is.
        timed = pool.submit(_disk_rates, a, b, problem.dtype, path, probes) if files else None
        if name == "gpu":
            found = _gpu_rates(problem, to, sums, precision, threads, budgets, ordinal, probes)
        else:
            rate = _host_rate(problem.dtype)
            found = Rates(rate, rate, 5e9, 5e9, half=_HALF, launch=_HOST_LAUNCH_S)
        disk = timed.result() if timed is not None else None
    probes.save()
    found = dataclasses.replace(found, measured=not probes.stated)
    return found if disk is None else _with_disk(found, *disk)


def _disk_rates(
    a: MatrixSource, b: MatrixSource, out: AnyDType, path: str | None, probes: ProbeCache
) -> tuple[DiskRate | None, DiskRate | None]:
    """Return the rates at which operands are read, and the result is written, where these are files."""
    size, threads = a.shape[0] * b.shape[1] * out.itemsize, threads_for_copies()
    reads = None if a.path is None and b.path is None else read_rate([a.path, b.path], threads, stored=probes)
    if path is None:
        return reads, None
    return reads, write_rate(os.path.dirname(os.path.abspath(path)), size, threads, stored=probes)


def _with_disk(rates: Rates, reads: DiskRate | None, writes: DiskRate | None) -> Rates:
    """Return the rates of matrices that are read from a disk, and written to it."""
    found = {}
    for name, disk in (("source", reads), ("sink", writes)):
        staged = getattr(rates, name)
        rate = staged if disk is None else min(staged, disk.rate)
        varied = (1.0, 1.0) if disk is None else (min(disk.slow / rate, 1.0), max(min(disk.fast, staged) / rate, 1.0))
        found[name] = rate, *varied
    (source, *came), (sink, *left) = found["source"], found["sink"]
    return dataclasses.replace(
        rates, source=source, sink=sink, files=True, staged_line=_FILE_LINE, slow=(came[0], left[0]),
        fast=(came[1], left[1]),
    )  # fmt: skip


def _gpu_rates(
    problem: StreamProblem,
    to: Array | None,
    sums: AnyDType,
    precision: Precision,
    threads: int,
    budgets: Budgets,
    ordinal: int,
    probes: ProbeCache,
) -> Rates:
    """Measure a GPU: its kernels, its links, and what passes through pinned buffers."""
    from gemmule.dispatch.select import choose_streamed
    from gemmule.runtime.link_probe import (
        ALLOCATE_S,
        ISSUE_S,
        LINES,
        SHAPE,
        Operands,
        large_product,
        link_rates,
        part_seconds,
        product_rate,
        timed_choices,
    )
    from gemmule.runtime.streams import GpuStreams

    a, b, out = problem.a, problem.b, problem.dtype
    with GpuStreams(choose_streamed, ordinal, precision) as device:
        gpu = device.device.identity
        h2d, d2h = probes.figures(("link", *gpu), 2, lambda: link_rates(device))
        operands = Operands(a.dtype, b.dtype, out, a.order + b.order, (a.shape[0], b.shape[1]))

        def product_rates() -> tuple[float, float, float, float]:
            parts = part_seconds(device, operands)
            plain, added = (
                parts.multiplying(product_rate(device, dataclasses.replace(operands, d=one), added=added))
                for one, added in ((out, False), (sums, True))
            )
            return plain, added, parts.split, parts.join

        types = [dtype.name for dtype in (a.dtype, b.dtype, out, sums)]
        choices = timed_choices(device, operands, sums)
        kernels = [f"{choice.spec.name} {choice.config.as_dict()}" for choice, _ in choices]
        key = "product", *gpu, __version__, *types, operands.orders, precision.value, *kernels
        stated = _stated_rates(device.device, precision, choices)
        # Timing them would compile kernels that the product does not run, which takes seconds.
        compute, added, split, join = probes.figures(key, 4, product_rates, stated, close=True)
        large = large_product(operands)
        # A result needed as a whole uses no kernel for parts.
        waves, stairs = device.waves(large), device.stairs(large) if is_transpose(a, b) else 0
        direct = [array is not None and device.direct(array) for array in (memory_of(a), memory_of(b), to)]
    found = Rates(
        compute, added, h2d, d2h, half=_HALF,
        launch=5e-6 if all(direct) else _STAGED_LAUNCH_S,
        issue=ISSUE_S if all(direct) else 0.0, allocate=ALLOCATE_S, side=SHAPE[0], depth=SHAPE[1],
        waves=waves, stairs=stairs, lines=LINES, split=split, join=join,
    )  # fmt: skip
    if all(direct):
        return found
    size = a.shape[0] * b.shape[1] * out.itemsize
    size += sum(one.shape[0] * one.shape[1] * one.dtype.itemsize for one in (a, b))
    pinned = pinned_within(budgets.pinned, budgets.memory)
    figures: tuple[float, ...] = ()
    if size >= _LEAST_STAGED and pinned:

        def staging_rates() -> tuple[float, ...]:
            with GpuStreams(choose_streamed, ordinal, precision) as device, device.near():
                return staged_by(device, pinned, threads).figures

        figures = probes.figures(("staging", *gpu, platform.node(), str(pinned), str(threads)), 5, staging_rates, ())
    if figures:
        staged = Staged.of(figures, pinned, threads).applied_to(found)
    else:
        arrays = [array for array in (memory_of(a), memory_of(b)) if array is not None]
        copied = min((copy_rate(array, threads, stored=probes) for array in arrays), default=math.inf)
        staged = usual_staging(found, copied)
    return dataclasses.replace(
        staged, source=math.inf if all(direct[:2]) else staged.source, sink=math.inf if direct[2] else staged.sink
    )


def _stated_rates(
    device: Device, precision: Precision, choices: Sequence[tuple[Choice, GemmProblem]]
) -> tuple[float, ...] | None:
    """Return the FLOP/s of the plain and the added product by the times that dispatch predicts, and zeros for parts.

    None where the GPU's own rates are not known, and for emulation, whose parts take times of their own.
    """
    from gemmule.dispatch.choices.config_choice import predicted_us
    from gemmule.dispatch.rates_table import known_rates

    if precision not in (Precision.IEEE, Precision.TF32):
        return None
    times = [predicted_us(*one) for one in choices]
    if None in times or not known_rates(device.name, device.multiprocessors).own:
        return None
    works = [2.0 * problem.m * problem.n * problem.k for _, problem in choices]
    return *(work / (1e-6 * us) for work, us in zip(works, times, strict=True) if us), 0.0, 0.0


def usual_staging(rates: Rates, copied: float = _COPIED) -> Rates:
    """Return rates with those of pageable matrices where they are not measured, on a host of that rate of copies."""
    share = min(copied / _COPIED, 1.0)
    return dataclasses.replace(
        rates, source=share * _SOURCE, sink=share * _SINK, duplex_shares=_DUPLEX_SHARES, pin=_PIN_S
    )


@functools.cache
def _host_rate(out: AnyDType) -> float:
    """Return the FLOP/s of the BLAS that NumPy has, measured once in a process."""
    side = 1024
    matrix = np.ones((side, side), out if out.kind in "fc" else np.float64)
    result = np.empty_like(matrix)
    # The first one wakes the threads; what else the machine does makes some slower.
    best, begin = 0.0, time.perf_counter()
    while not best or time.perf_counter() - begin < _HOST_S:
        start = time.perf_counter()
        np.matmul(matrix, matrix, out=result)
        best = max(best, 2 * side**3 / max(time.perf_counter() - start, 1e-9))
    return best
