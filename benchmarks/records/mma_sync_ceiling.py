"""What the main loop of mma_sync_gemm can reach: its products alone, then with fragments, copies and waits.

python benchmarks/records/mma_sync_ceiling.py --record benchmarks/results

Needs an NVIDIA GPU and CuPy. Inputs are normal(0, 1) in bfloat16, as in a measured product. Clocks are counted by the
multiprocessors; the rate in TFLOP/s is that of long runs, in which the chip lowers its clock for power.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from gemmule.lab.experiment import experiment
from gemmule.lab.records import write_records
from gemmule.runtime.device import get_device
from gemmule.runtime.sensors import Sensors

CODE = Path(__file__).with_suffix(".cu")
PARTS = (
    "products", "products_and_fragments", "products_fragments_and_waits", "products_fragments_and_copies", "all_of_it",
    "all_of_it_with_waits_split",
)  # fmt: skip
THREADS, STAGE, STAGES, TILES_READ = 256, 384 * 128, 4, 16
#: FLOP of a slice of a CTA, slices of a launch, and seconds of load before and while figures are taken.
FLOP, SLICES, WARM_SECONDS, SECONDS = 2 * 128 * 256 * 64, 4096, 0.3, 0.35


def parts() -> list[dict[str, Any]]:
    """Return a record for each part."""
    device = get_device()
    ctas, sensors = device.multiprocessors, Sensors(device.pci_bus_id)
    module = cupy.RawModule(code=CODE.read_text(), options=("--std=c++17",))
    values = np.random.default_rng(0).standard_normal(TILES_READ * STAGE // 2, np.float32)
    source = cupy.asarray((values.view(np.uint32) >> 16).astype(np.uint16))
    out, clocks = cupy.zeros(ctas * THREADS, np.float32), cupy.zeros(ctas, np.int64)
    found = []
    for part in PARTS:
        kernel = module.get_function(part)
        kernel.max_dynamic_shared_size_bytes = STAGES * STAGE
        times: list[float] = []
        counts: list[float] = []

        def timed(kernel: Any = kernel) -> float:
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record()
            kernel((ctas,), (THREADS,), (source, out, clocks, np.int32(SLICES)), shared_mem=STAGES * STAGE)
            end.record()
            end.synchronize()
            return float(cupy.cuda.get_elapsed_time(begin, end)) / 1e3

        until = time.perf_counter() + WARM_SECONDS
        while time.perf_counter() < until:
            timed()
        with sensors.readings() as readings:
            until = time.perf_counter() + SECONDS
            while time.perf_counter() < until:
                times.append(timed())
                counts.append(float(cupy.median(clocks)) / SLICES)
        assert bool(cupy.isfinite(out).all())
        seconds, per_slice = statistics.median(times), statistics.median(counts)
        found.append(
            {
                "record": "ceiling",
                "part": part,
                "ctas": ctas,
                "slices": SLICES,
                "tflops": round(ctas * SLICES * FLOP / seconds / 1e12, 1),
                "clocks_per_slice": round(per_slice, 1),
                "flop_per_clock": round(FLOP / per_slice, 1),
                "samples_us": [round(1e6 * one, 1) for one in times],
                **readings.summary(),
            }
        )
        print({name: value for name, value in found[-1].items() if name != "samples_us"})
    return found


def main() -> None:
    """Measure, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    block = experiment("python benchmarks/records/mma_sync_ceiling.py", get_device().pci_bus_id)
    print(write_records(options.record, block, parts()))


if __name__ == "__main__":
    main()
