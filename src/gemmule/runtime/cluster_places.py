"""Where a GPU places the clusters of a launch: a probe, run once, before the first kernel whose tiles go by GPC.

L2 coalesces what SMs of a GPC load at the same time. Which SMs these are differs from chip to chip, as some are
disabled. A cluster is in one GPC, so that clusters of up to 16 CTAs say which SMs are in the same; those of a launch
say the order in which the GPU places them. A wrong answer costs time only.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gemmule.core.cluster_order import Place, order_by_place
from gemmule.core.launch import ClusterOrderParam

from .device import current, get_device
from .driver import call, driver
from .memory import Array, DeviceBuffer

_PTX = b"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry place(.param .u64 sms, .param .u64 nanoseconds) {
    .reg .pred %p<3>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<7>;
    mov.u32 %r1, %tid.x;
    setp.ne.s32 %p1, %r1, 0;
    @%p1 bra end;
    ld.param.u64 %rd1, [sms];
    ld.param.u64 %rd2, [nanoseconds];
    mov.u64 %rd3, %globaltimer;
    mov.u32 %r2, %smid;
    mov.u32 %r3, %ctaid.x;
    mul.wide.u32 %rd4, %r3, 4;
    add.s64 %rd5, %rd1, %rd4;
    st.global.u32 [%rd5], %r2;
wait:
    mov.u64 %rd6, %globaltimer;
    sub.s64 %rd6, %rd6, %rd3;
    setp.lt.s64 %p2, %rd6, %rd2;
    @%p2 bra wait;
end:
    ret;
}
"""
#: Threads and shared memory of a CTA, of which an SM holds one, and nanoseconds that it waits for the others.
_THREADS, _SHARED_BYTES, _WAIT = 384, 200 << 10, 20_000
#: CTAs of clusters that show which SMs are in one GPC, and launches of the same clusters that are to agree.
_SIZES, _LAUNCHES = (16, 14, 12, 10, 8, 6, 4, 2), 3
#: SMs of a TPC, and parts of a GPC: every third of its TPCs is in the same (a CPC).
_TPC, _PARTS = 2, 3


def order_bytes(param: ClusterOrderParam, ordinal: int) -> bytes:
    """Return the bytes of a word of the permutation on a GPU; of the identity where its launches differ."""
    order = _order(ordinal, param.clusters, param.cluster_size, param.run)
    return param.pack({}) if order is None else param.bytes_of(order)


@functools.lru_cache(maxsize=512)
def _order(ordinal: int, clusters: int, cluster_size: int, run: int) -> tuple[int, ...] | None:
    """Return the permutation of a launch's clusters, or None where it is not known."""
    places = _places(ordinal, clusters, cluster_size)
    return order_by_place(places, run) if places else None


@functools.cache
def _places(ordinal: int, clusters: int, cluster_size: int) -> tuple[Place, ...]:
    """Return the places of clusters in the order in which they are launched; nothing where launches differ."""
    of_sm = _places_of_sms(ordinal)
    with _probe(ordinal) as probe:
        found = [probe.sms(clusters, cluster_size) for _ in range(_LAUNCHES)]
    if any((one != found[0]).any() for one in found):
        return ()
    return tuple(of_sm[sm] for sm in found[0][:, 0].tolist())


@functools.cache
def _places_of_sms(ordinal: int) -> tuple[Place, ...]:
    """Return the place of each SM: those that clusters have in common are in one GPC.

    TPCs without such a cluster are of the smallest GPC: L2 coalesces what they load with it.
    """
    count = get_device(ordinal).multiprocessors
    gpcs = [{sm} for sm in range(count)]
    with _probe(ordinal) as probe:
        for size in _SIZES:
            for cluster in probe.sms(count // size, size).tolist():
                near = set().union(*(gpc for gpc in gpcs if not gpc.isdisjoint(cluster)))
                gpcs = [gpc for gpc in gpcs if gpc.isdisjoint(cluster)] + [near]
    whole = [gpc for gpc in gpcs if len(gpc) > _TPC] or gpcs
    min(whole, key=len).update(*(gpc for gpc in gpcs if gpc not in whole))
    return _numbered(whole)


def _numbered(gpcs: Sequence[set[int]]) -> tuple[Place, ...]:
    """Return the GPC and the part of it of each SM."""
    found = {}
    for number, gpc in enumerate(gpcs):
        found.update({sm: (number, index // _TPC % _PARTS) for index, sm in enumerate(sorted(gpc))})
    return tuple(place for _, place in sorted(found.items()))


class _Probe:
    """The kernel on a stream."""

    def __init__(self, ordinal: int, stream: int) -> None:
        self._ordinal, self._stream = ordinal, stream
        self._function = call("cuModuleGetFunction", call("cuModuleLoadData", _PTX), b"place")
        attributes = driver().CUfunction_attribute
        for attribute, value in (
            (attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
            (attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, _SHARED_BYTES),
        ):
            call("cuFuncSetAttribute", self._function, attribute, value)

    def sms(self, clusters: int, cluster_size: int) -> Array:
        """Return the SMs of so many clusters, a row each."""
        found = np.empty((clusters, cluster_size), np.int32)
        with DeviceBuffer(found.nbytes, self._ordinal, self._stream) as buffer:
            values: list[Any] = [ctypes.c_uint64(buffer.address), ctypes.c_uint64(_WAIT)]
            addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
            config = self._config(clusters, cluster_size)
            call("cuLaunchKernelEx", config, self._function, ctypes.addressof(addresses), 0)
            buffer.download(found)
        return found

    def _config(self, clusters: int, cluster_size: int) -> Any:
        bindings = driver()
        config, attribute = bindings.CUlaunchConfig(), bindings.CUlaunchAttribute()
        config.gridDimX, config.gridDimY, config.gridDimZ = clusters * cluster_size, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = _THREADS, 1, 1
        config.sharedMemBytes, config.hStream = _SHARED_BYTES, self._stream
        attribute.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dimension = attribute.value.clusterDim
        dimension.x, dimension.y, dimension.z = cluster_size, 1, 1
        config.attrs, config.numAttrs = [attribute], 1
        return config


@contextlib.contextmanager
def _probe(ordinal: int) -> Iterator[_Probe]:
    """Give the kernel on a stream of its own, whose use breaks no capture of another stream."""
    bindings = driver()
    with current(ordinal):
        before = call("cuThreadExchangeStreamCaptureMode", bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        stream = int(call("cuStreamCreate", int(bindings.CUstream_flags.CU_STREAM_NON_BLOCKING)))
        try:
            yield _Probe(ordinal, stream)
        finally:
            call("cuStreamDestroy", stream)
            call("cuThreadExchangeStreamCaptureMode", before)
