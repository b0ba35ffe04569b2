"""Counters of the hardware for every kernel of the ladder, through ncu.

python benchmarks/records/hardware_counts.py --record benchmarks/results 4096 4096 4096

Needs an NVIDIA GPU, ncu (Nsight Compute) and the right to read the GPU's counters. Times under ncu are not those of a
run without it: only counts and shares are kept.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import LADDER, REGISTRY
from gemmule.lab.experiment import experiment
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import write_records
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel
from gemmule.runtime.memory import DeviceBuffer

STALLS = ("long_scoreboard", "short_scoreboard", "barrier", "dispatch_stall", "math_pipe_throttle", "wait",
          "mio_throttle", "lg_throttle", "no_instruction", "not_selected", "selected")  # fmt: skip
COUNTERS = (
    # Instructions: all, multiply-adds by thread, and by what they do to memory.
    "smsp__inst_executed.sum",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_dfma_pred_on.sum",
    "smsp__inst_executed_op_global_ld.sum",
    "smsp__inst_executed_op_global_st.sum",
    "smsp__inst_executed_op_shared_ld.sum",
    "smsp__inst_executed_op_shared_st.sum",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "sm__pipe_fp64_cycles_active.avg.pct_of_peak_sustained_active",
    # Occupancy: what the resources allow, and what there was.
    "launch__registers_per_thread",
    "sm__maximum_warps_per_active_cycle_pct",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__warps_active.avg.per_cycle_active",
    # Global memory at the L1 cache.
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_sector_hit_rate.pct",
    # Shared memory.
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    # Of the wavefronts: those that belong to no load or store, and those that wait for another to end.
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_misc.sum",
    "l1tex__data_bank_conflicts_type_arbitration.sum",
    # The L2 cache, and the device's memory.
    "lts__t_sectors_op_read.sum",
    "lts__t_sectors_op_write.sum",
    "lts__t_sector_hit_rate.pct",
    # Of these: what multiprocessors get and ask for, what the parts of the L2 cache ask each other for, what misses.
    "l1tex__m_xbar2l1tex_read_sectors.sum",
    "lts__t_sectors_srcunit_tex_op_read.sum",
    "lts__t_sectors_srcunit_tex_op_write.sum",
    "lts__t_sectors_srcunit_ltcfabric_op_read.sum",
    "lts__t_sectors_srcunit_ltcfabric_op_write.sum",
    "lts__t_sectors_op_read_lookup_hit.sum",
    "lts__t_sectors_op_read_lookup_miss.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    # What warps wait for.
    *(f"smsp__average_warps_issue_stalled_{stall}_per_issue_active.ratio" for stall in STALLS),
)


def choices(problem: GemmProblem) -> list[Choice]:
    """Return the rungs for that type, each with all its configs."""
    specs = {spec.name: spec for spec in REGISTRY}
    arch = get_device().arch
    return [
        Choice(specs[name], config)
        for name in LADDER
        for config in specs[name].configs
        if specs[name].why_not(problem, arch, config) is None
    ]


def run_once(m: int, n: int, k: int) -> None:
    """Run every kernel once."""
    rng = np.random.default_rng()
    for dtype in ("float32", "float64"):
        a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))
        buffers = {name: DeviceBuffer(size, 0, 0) for name, size in (("a", a.nbytes), ("b", b.nbytes))}
        buffers["d"] = DeviceBuffer(m * n * a.itemsize, 0, 0)
        buffers["a"].upload(a)
        buffers["b"].upload(b)
        problem = gemm_problem(m, n, k, dtype, dtype, "nn")
        for choice in choices(problem):
            run_kernel(problem, choice, {name: buffer.address for name, buffer in buffers.items()}, 0, 0)
        # A download waits for the kernels.
        buffers["d"].download(np.empty((m, n), dtype))
        for buffer in buffers.values():
            buffer.free()


def counts(m: int, n: int, k: int) -> list[dict[str, object]]:
    """Return a record for each kernel and counter."""
    ncu = shutil.which("ncu")
    if ncu is None:
        sys.exit("ncu was not found; it comes with the CUDA toolkit and with Nsight Compute")
    # Counts do not depend on clocks, and not every machine lets them be set.
    command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
               "--metrics", ",".join(COUNTERS), "-k", "regex:^[gd]0",
               sys.executable, __file__, "--run", str(m), str(n), str(k)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"ncu failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    table = "".join(line + "\n" for line in done.stdout.splitlines() if line.startswith('"'))
    # The first row gives the units.
    _, *rows = csv.DictReader(io.StringIO(table))
    ran = [(dtype, choice) for dtype in ("float32", "float64")
           for choice in choices(gemm_problem(m, n, k, dtype, dtype, "nn"))]  # fmt: skip
    if len(rows) != len(ran):
        sys.exit(f"ncu saw {len(rows)} kernels of {len(ran)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    found = []
    unknown = set()
    for row, (dtype, choice) in zip(rows, ran, strict=True):
        for counter in COUNTERS:
            value = number(row.get(counter, ""))
            if value is None:
                unknown.add(counter)
                continue
            found.append({
                "record": "counts",
                "kernel": choice.spec.name,
                "config": choice.config.as_dict(),
                "dtype": dtype,
                "shape": [m, n, k],
                "counter": counter,
                "hardware": value,
            })  # fmt: skip
    # A counter that another chip or version of ncu lacks is absent, not zero.
    for counter in sorted(unknown):
        print(f"ncu gave no number for {counter}; the record is without it", file=sys.stderr)
    return found


def number(text: str) -> float | None:
    """Return ncu's number; None if it gives none (n/a, nan, or nothing at all)."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def main() -> None:
    """Count, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extents", nargs=3, type=int, metavar=("M", "N", "K"))
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run_once(*options.extents)
        return
    command = " ".join(["python", "benchmarks/records/hardware_counts.py", *sys.argv[1:]])
    print(write_records(options.record, experiment(command, get_device().pci_bus_id), counts(*options.extents)))


if __name__ == "__main__":
    main()
