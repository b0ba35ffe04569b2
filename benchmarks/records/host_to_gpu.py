"""From which size a GPU pays for host arrays: ``python benchmarks/records/host_to_gpu.py RESULTS_FOLDER``.

For square float32 products of NumPy arrays, times gm.matmul on the host and through the GPU, interleaved, and writes
the medians. The constant HOST_TO_GPU_FLOP of gemmule.api.planning.choice comes from such a record.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import numpy as np

import gemmule as gm
from gemmule.lab.experiment import experiment
from gemmule.lab.records import write_records
from gemmule.runtime.device import get_device

SIZES = (256, 512, 1024, 1536, 2048, 3072, 4096, 8192)


def seconds(a, b, executor):
    """Time one product."""
    start = time.perf_counter()
    gm.matmul(a, b, executor=executor)
    return time.perf_counter() - start


def main() -> None:
    """Measure and write the record."""
    rng = np.random.default_rng()
    records = []
    for n in SIZES:
        a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
        samples = {"cpu": [], "gpu": []}
        for executor in samples:
            seconds(a, b, executor)
        for _ in range(7 if n < 4096 else 3):
            for executor, times in samples.items():
                times.append(seconds(a, b, executor))
        host, gpu = (statistics.median(times) for times in samples.values())
        record = {"record": "host_to_gpu", "dtype": "float32", "m": n, "n": n, "k": n}
        record |= {
            "host_ms": round(host * 1e3, 3),
            "gpu_ms": round(gpu * 1e3, 3),
            "host_over_gpu": round(host / gpu, 3),
        }
        records.append(record)
        print(record)
    print(write_records(Path(sys.argv[1]), experiment(" ".join(sys.argv), get_device(0).pci_bus_id), records))


if __name__ == "__main__":
    main()
