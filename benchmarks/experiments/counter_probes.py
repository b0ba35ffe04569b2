"""What ncu's counters count: launches of which each does one thing, and what the counters say of it.

python benchmarks/experiments/counter_probes.py --record benchmarks/results

Needs an NVIDIA GPU, CuPy, ncu (Nsight Compute) and the right to read the GPU's counters.
"""

from __future__ import annotations

import argparse
import csv
import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemmule.lab.experiment import experiment
from gemmule.lab.records import write_records
from gemmule.runtime.device import get_device

CODE = Path(__file__).with_suffix(".cu")
COUNTERS = (
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__m_xbar2l1tex_read_sectors.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_misc.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "l1tex__data_bank_conflicts_type_arbitration.sum",
    "lts__t_sectors_srcunit_tex_op_read.sum",
    "lts__t_sectors_srcunit_tex_op_write.sum",
    "lts__t_sectors_srcunit_ltcfabric_op_read.sum",
    "lts__t_sectors_srcunit_ltcfabric_op_write.sum",
    "lts__t_sectors_op_read.sum",
    "lts__t_sectors_op_write.sum",
    "lts__t_sectors_op_read_lookup_miss.sum",
    "dram__bytes_read.sum",
)
THREADS, WARP, ROUNDS = 256, 32, 8
MIB = 1 << 20
#: Sizes that are read again and again, in MiB.
SIZES = (16, 24, 28, 32, 36, 40, 44, 48, 56, 64)


def launches(multiprocessors: int) -> Iterator[tuple[dict[str, Any], int, int, int, tuple[Any, ...]]]:
    """Yield what each launch is, its grid, block and shared memory, and its arguments behind the operands."""
    copies = {"grid": multiprocessors, "warps": multiprocessors * THREADS // WARP, "rounds": ROUNDS}
    for name, size in (("copy_4", 4), ("copy_8", 8), ("copy_16_through_l1", 16), ("copy_16", 16)):
        for to_shift, from_shift in ((0, 0), (size, 0), (0, size), (32, 0), (64, 0), (512, 0)):
            what = {"probe": name, "to_shift": to_shift, "from_shift": from_shift, **copies}
            yield what, multiprocessors, THREADS, 48 << 10, (to_shift, from_shift, ROUNDS)
    for rounds in (1, 32):
        yield {"probe": "store", **copies, "rounds": rounds}, multiprocessors, THREADS, 0, (rounds,)
    for name in ("shared_stores", "shared_stores_beside_loads_past_l1", "shared_stores_beside_loads"):
        yield {"probe": name, **copies, "rounds": 256}, multiprocessors, THREADS, 4 * THREADS, (256,)
    for name, turns in (("read_share", 4), ("read_all", 2)):
        for size in SIZES:
            count = size * MIB // 16
            yield {"probe": name, "bytes": size * MIB, "turns": turns}, multiprocessors, 1024, 0, (count, turns)


def run_once() -> None:
    """Launch every probe once."""
    import cupy
    import numpy as np

    module = cupy.RawModule(code=CODE.read_text())
    source = cupy.asarray(np.random.default_rng().random(32 * MIB, np.float32))
    sink = cupy.zeros(1, np.float32)
    for what, grid, block, shared, numbers in launches(get_device().multiprocessors):
        operands = (source,) if what["probe"].startswith(("copy", "store")) else (source, sink)
        last = [np.int64(n) if what["probe"].startswith("read") and i == 0 else np.int32(n)
                for i, n in enumerate(numbers)]  # fmt: skip
        module.get_function(what["probe"])((grid,), (block,), (*operands, *last), shared_mem=shared)
    cupy.cuda.runtime.deviceSynchronize()


def probes() -> list[dict[str, Any]]:
    """Return a record for each launch."""
    ncu = shutil.which("ncu")
    if ncu is None:
        sys.exit("ncu was not found; it comes with the CUDA toolkit and with Nsight Compute")
    names = sorted({what["probe"] for what, *_ in launches(1)})
    command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--metrics",
               ",".join(COUNTERS), "-k", f"regex:^({'|'.join(names)})$", sys.executable, __file__, "--run"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"ncu failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    table = "".join(line + "\n" for line in done.stdout.splitlines() if line.startswith('"'))
    # The first row gives the units.
    _, *rows = csv.DictReader(io.StringIO(table))
    ran = [what for what, *_ in launches(get_device().multiprocessors)]
    if [row["Kernel Name"] for row in rows] != [what["probe"] for what in ran]:
        sys.exit(f"ncu saw other kernels than were launched:\n{done.stdout[-2000:]}")
    return [
        {"record": "probe", **what, **{name: float(row[name].replace(",", "")) for name in COUNTERS}}
        for what, row in zip(ran, rows, strict=True)
    ]


def main() -> None:
    """Count, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run_once()
        return
    command = "python benchmarks/experiments/counter_probes.py"
    print(write_records(options.record, experiment(command, get_device().pci_bus_id), probes()))


if __name__ == "__main__":
    main()
