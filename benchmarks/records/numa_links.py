"""Copies between each GPU and pinned memory on each NUMA node of the host; writes records.

``python benchmarks/records/numa_links.py RESULTS_FOLDER``. Memory is touched first by threads that are bound to the
processors of a node, and where it came to lie is asked for. Beside the links, the rate at which threads of that node
copy within host memory.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
from pathlib import Path

import numpy as np
from pinned_pool import copy_rate, pinned_pool, unpin

from gemmule.dispatch.select import choose
from gemmule.executor.streams import DeviceMatrix
from gemmule.lab.experiment import experiment
from gemmule.lab.records import RecordFile
from gemmule.runtime.device import device_count, get_device
from gemmule.runtime.numa import bound_to, processors_near
from gemmule.runtime.streams import GpuStreams

NBYTES, COPIES, THREADS = 256 << 20, 4, 12
#: get_mempolicy on x86-64, and what it is asked: the node of an address.
_GET_MEMPOLICY, _NODE_OF_ADDRESS = 239, 3


def nodes() -> dict[int, frozenset[int]]:
    """Return the processors of each node that this process may run on."""
    found = {}
    for place in sorted(Path("/sys/devices/system/node").glob("node[0-9]*")):
        listed: set[int] = set()
        for part in filter(None, (place / "cpulist").read_text().strip().split(",")):
            first, _, last = part.partition("-")
            listed.update(range(int(first), int(last or first) + 1))
        found[int(place.name.removeprefix("node"))] = frozenset(listed & os.sched_getaffinity(0))
    return found


def node_of(array: np.ndarray) -> int | None:
    """Return the node that the first page of an array lies on, None where the kernel does not say."""
    node = ctypes.c_int(-1)
    status = ctypes.CDLL(None).syscall(
        _GET_MEMPOLICY, ctypes.byref(node), None, ctypes.c_ulong(0), ctypes.c_void_p(array.ctypes.data),
        ctypes.c_ulong(_NODE_OF_ADDRESS),
    )  # fmt: skip
    return node.value if status == 0 else None


def link(device: GpuStreams, host: np.ndarray, *, both: bool) -> dict[str, float]:
    """Return the bytes a second that cross the link in each direction: one after the other, or together."""
    width = 1 << 16
    halves = host.reshape(2, -1, width)
    streams = [device.stream() for _ in halves]
    matrices = [
        DeviceMatrix.compact(device.allocate(half.nbytes), np.dtype(np.uint8), len(half), width) for half in halves
    ]
    found = {}
    for _ in range(2):
        events = []
        for name, stream, half, matrix in zip(("h2d", "d2h"), streams, halves, matrices, strict=True):
            start = device.record(stream)
            for _ in range(COPIES):
                if name == "h2d":
                    device.copy_in(stream, matrix, half)
                else:
                    device.copy_out(stream, half, matrix)
            events.append((name, start, device.record(stream)))
            if not both:
                device.synchronize(events[-1][2])
        for name, start, end in events:
            device.synchronize(end)
            found[name] = max(found.get(name, 0.0), COPIES * halves[0].nbytes / device.seconds(start, end))
    return found


def main() -> None:
    """Measure, print and write the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    options = parser.parse_args()
    places = nodes()
    with RecordFile(options.results, experiment(" ".join(sys.argv), get_device(0).pci_bus_id)) as file:
        for node, processors in places.items():
            if not processors:
                continue
            with bound_to(processors):
                pool = pinned_pool(NBYTES)
                staging = copy_rate(min(THREADS, len(processors)))
                for ordinal in range(device_count()):
                    bus = get_device(ordinal).pci_bus_id
                    with GpuStreams(choose, ordinal) as device:
                        alone, together = (link(device, pool, both=both) for both in (False, True))
                    record = {
                        "record": "numa", "nodes": len(places), "node": node, "memory_node": node_of(pool),
                        "processors": len(processors), "gpu": ordinal, "pci_bus_id": bus,
                        "near": sorted(processors_near(bus)), "alone": alone, "together": together,
                        "host_copies": staging,
                    }  # fmt: skip
                    print(json.dumps(record), flush=True)
                    file.write(record)
                unpin(pool)
    print(file.path)


if __name__ == "__main__":
    main()
