"""Opening the device that a large product passes through, and telling how fast it is."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator, Sequence

import numpy as np

from gemmule.core.dtype import INT8_PRODUCTS, Precision
from gemmule.core.errors import ArgumentError
from gemmule.core.residues import HALF_SIDE
from gemmule.core.streams import DeviceStreams
from gemmule.outofcore.device.host_memory import memory_of
from gemmule.outofcore.device.rates import Rates
from gemmule.outofcore.disk_probe import read_rate, write_rate
from gemmule.outofcore.matrix import AnyDType, MatrixSink, MatrixSource
from gemmule.outofcore.result import sum_dtype as host_sum_dtype

#: Bytes of a line at which a file is read and written at half the disk's rate.
_FILE_LINE = 64 << 10
#: Side of a product of half the rate, in the planner's model.
_HALF = 64
#: Seconds that threads take to hand an operation over: on the host, and on a GPU where things are staged.
_HOST_LAUNCH_S, _STAGED_LAUNCH_S = 1e-3, 2e-4


@contextlib.contextmanager
def open_streams(name: str, precision: Precision, ordinal: int = 0) -> Iterator[DeviceStreams]:
    """Open a GPU, or a device made of host memory and threads."""
    if name == "gpu":
        from gemmule.dispatch.select import choose
        from gemmule.runtime.streams import GpuStreams

        with GpuStreams(choose, ordinal, precision) as gpu:
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
            f"devices={list(devices)} are GPUs, and this product runs on the {name}; leave devices out, or take "
            "executor='gpu' on a machine that has them"
        )
    count = device_count()
    if not devices or len(set(devices)) != len(devices) or not all(0 <= ordinal < count for ordinal in devices):
        raise ArgumentError(
            f"devices={list(devices)} must be numbers of GPUs from 0 to {count - 1}, each once; see `gemmule info`"
        )


def device_memory(name: str, ordinals: Sequence[int] = (0,)) -> int:
    """Return the bytes of each device's memory that may be taken where nobody says."""
    if name == "gpu":
        from gemmule.runtime.memory import usable_memory

        return min(usable_memory(ordinal) for ordinal in ordinals)
    from gemmule.outofcore.budget import available_memory

    return available_memory() // 4


def sums_of(name: str, a: AnyDType, b: AnyDType, out: AnyDType) -> AnyDType:
    """Return the type that slices are summed in on that device."""
    if name == "gpu":
        from gemmule.runtime.streams import sum_dtype

        return sum_dtype(a, b)
    # Integers wrap alike in every width; floats are summed as wide as they are multiplied.
    return out if out.kind in "iu" else np.promote_types(host_sum_dtype(a, b), out)


def threads_for_copies() -> int:
    """Return how many threads fill pinned buffers: a copy takes several to keep a link busy."""
    return max(min(os.cpu_count() or 1, 16) - 2, 1)


def measured_rates(
    name: str,
    a: MatrixSource,
    b: MatrixSource,
    sink: MatrixSink | None,
    out: AnyDType,
    sums: AnyDType,
    precision: Precision,
    threads: int,
    ordinal: int = 0,
    path: str | None = None,
) -> Rates:
    """Measure how fast the device computes such a product and exchanges matrices; takes about a second on a GPU.

    `path` is where the result goes, if that is a file.
    """
    source, to = ([memory_of(a), memory_of(b)], memory_of(sink) if sink is not None else None)
    files = a.path is not None or b.path is not None or to is None
    if name != "gpu":
        rate = _host_rate(out)
        return Rates(rate, rate, 5e9, 5e9, half=_HALF, launch=_HOST_LAUNCH_S, files=files, measured=True)
    from gemmule.dispatch.select import choose
    from gemmule.runtime.link_probe import (
        ALLOCATE_S,
        ISSUE_S,
        LINES,
        SHAPE,
        copy_rate,
        link_rates,
        product_rate,
        product_waves,
    )
    from gemmule.runtime.streams import GpuStreams

    with GpuStreams(choose, ordinal, precision) as device:
        h2d, d2h = link_rates(device)
        orders = a.order + b.order
        compute = product_rate(device, a.dtype, b.dtype, out, added=False, orders=orders)
        added = product_rate(device, a.dtype, b.dtype, sums, added=True, orders=orders)
        waves = product_waves(device, a.dtype, b.dtype, out, orders)
        direct = [array is not None and device.direct(array) for array in (*source, to)]
    staging = math.inf if all(direct) else copy_rate(threads)
    reads = min(staging, read_rate([a.path, b.path], threads)) if files else staging
    writes = staging
    if path is not None:
        result = a.shape[0] * b.shape[1] * out.itemsize
        writes = min(staging, write_rate(os.path.dirname(os.path.abspath(path)), result, threads))
    return Rates(
        compute, added, h2d, d2h,
        source=math.inf if all(direct[:2]) else reads, sink=math.inf if direct[2] else writes,
        half=HALF_SIDE if precision in INT8_PRODUCTS else _HALF,
        launch=5e-6 if all(direct) else _STAGED_LAUNCH_S, issue=ISSUE_S if all(direct) else 0.0,
        allocate=ALLOCATE_S, files=files, measured=True,
        side=SHAPE[0], depth=SHAPE[1], waves=waves, lines=LINES,
        staged_line=_FILE_LINE if files else 0,
    )  # fmt: skip


def _host_rate(out: AnyDType) -> float:
    """Return the FLOP/s of the BLAS that NumPy has."""
    side = 512
    matrix = np.ones((side, side), out if out.kind in "fc" else np.float64)
    matrix @ matrix
    start = time.perf_counter()
    matrix @ matrix
    return 2 * side**3 / max(time.perf_counter() - start, 1e-9)
