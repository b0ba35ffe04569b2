"""Traffic of the copy engine (TMA) and of shared memory: counters of the hardware beside the virtual GPU's counts.

python benchmarks/records/hopper_counts.py --record benchmarks/results

Needs a Hopper GPU, ncu (Nsight Compute) and the right to read the GPU's counters. The cases are fixed, so that the
virtual GPU's side can be repeated from the record, without a GPU.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import dataclasses
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from faithfulness import ALIGNED_SHAPES, ARCH, Case, is_hopper, run_on_hardware

from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.vgpu import Counter, Counts, Options, launch
from gemmule.vgpu.engine.observer import AgentAccess, Observer, TmaGlobalAccess

Array = np.ndarray[Any, np.dtype[Any]]

#: Bytes of a sector, and of a wavefront of shared memory.
SECTOR, WAVEFRONT = 32, 128
#: Besides the default, configs whose CTAs share slices, and those of the smallest tiles.
CONFIGS = 4


def cases() -> list[Case]:
    """Return the launches: bfloat16, some configs of each kernel, on whole tiles and on others."""
    found = []
    for spec in REGISTRY:
        if not is_hopper(spec) or spec.next_kernel is not None:
            continue
        shared = [x for x in spec.configs if x.as_dict().get("cluster_m", 1) * x.as_dict().get("cluster_n", 1) > 1]
        configs = dict.fromkeys([spec.default, *shared[:CONFIGS], min(spec.configs, key=lambda x: x.tile_elements)])
        seed = 0
        for config in configs:
            for shape in ALIGNED_SHAPES:
                seed += 2
                case = Case(Choice(spec, config), "bfloat16", "bfloat16", shape, "nn", seed)
                if spec.why_not(case.problem(), ARCH, config) is None:
                    found.append(case)
    return found


class CopyTraffic(Observer):
    """What bulk copies move, in sectors, as each of the CTAs that get a box sees them.

    The hardware counts zeros for what lies outside of a tensor among what arrives, 32 bytes of a row at a time.

    Attributes
    ----------
    alone, arrived : int
        Sectors that arrive by copies for one CTA, and by multicasts, in every CTA that gets them; zeros too.
    asked : int
        Sectors of global memory that copies ask for, once for each copy.
    stored : int
        Sectors of global memory that copies out of shared memory touch.
    """

    def __init__(self) -> None:
        self.alone = self.arrived = self.asked = self.stored = 0
        self._box: TmaGlobalAccess | None = None

    def tma_global_access(self, access: TmaGlobalAccess) -> None:
        """Count the sectors of each copy."""
        self._box = access
        touched = int(_touched(access).sum())
        if access.write:
            self.stored += touched
        else:
            self.asked += touched

    def agent_access(self, access: AgentAccess) -> None:
        """Count them where they arrive; told right behind the copies' boxes."""
        if access.agent != "load":
            return
        assert self._box is not None
        size = self._box.size
        zeros = access.size // size.shape[1] - size
        sectors = int((_touched(self._box) - -zeros // SECTOR).sum())
        if "multicast::cluster" in access.instruction.modifiers:
            self.arrived += sectors * (len(access.rows) // len(size))
        else:
            self.alone += sectors


def _touched(access: TmaGlobalAccess) -> Array:
    """Return the sectors of global memory that each row of boxes touches."""
    last = access.start + access.size - 1
    found: Array = np.where(access.size > 0, last // SECTOR - access.start // SECTOR + 1, 0)
    return found


@dataclasses.dataclass(frozen=True)
class Both:
    """What the virtual GPU counts of a launch."""

    counts: Counts
    copies: CopyTraffic

    def total(self, name: str, *opcodes: str) -> int:
        """Return the sum of a column over instructions that begin with one of the opcodes."""
        rows = (row for row in self.counts.instructions if row.text.split(".")[0].split()[-1] in opcodes)
        return sum(getattr(row, name) for row in rows)

    def boxes(self, name: str, what: str) -> int:
        """Return the sum of a column over copies of boxes, ``bulk load`` or ``bulk store``."""
        return sum(getattr(row, name) for row in self.counts.instructions if row.kind == what and row.requests)

    def products(self, name: str) -> int:
        """Return the sum of a column over products of warpgroups."""
        return sum(getattr(row, name) for row in self.counts.instructions if "mma_async" in row.text)


#: Counter of the hardware, and what the virtual GPU has in its place.
COUNTERS: dict[str, Callable[[Both], int]] = {
    "smsp__sass_inst_executed_op_tma_ld.sum": lambda b: b.boxes("requests", "bulk load"),
    "smsp__sass_inst_executed_op_tma_st.sum": lambda b: b.boxes("requests", "bulk store"),
    "l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum": lambda b: b.copies.alone + b.copies.arrived,
    "l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld_dest_self.sum": lambda b: b.copies.alone,
    "l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld_dest_multicast.sum": lambda b: b.copies.arrived,
    "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum": lambda b: SECTOR * (b.copies.alone + b.copies.arrived),
    "l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_st.sum": lambda b: b.copies.stored,
    "l1tex__m_l1tex2xbar_write_bytes_mem_global_op_tma_st.sum": lambda b: SECTOR * b.copies.stored,
    "lts__t_sectors_srcunit_tex_op_read.sum": lambda b: (
        b.copies.asked + b.counts.total("sectors", "load global", "async copy")
    ),
    "lts__t_sectors_srcunit_tex_op_write.sum": lambda b: b.copies.stored + b.counts.total("sectors", "store global"),
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": lambda b: b.counts.total("sectors", "load global", "async copy"),
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": lambda b: b.counts.total("sectors", "store global"),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": lambda b: b.counts.total("wavefronts", "load shared"),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum": lambda b: (
        b.counts.total("wavefronts", "store shared") + b.total("wavefronts", "stmatrix")
    ),
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldsm.sum": lambda b: b.total("wavefronts", "ldmatrix"),
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_stsm.sum": lambda b: b.total("wavefronts", "stmatrix"),
    "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_stsm.sum": lambda b: (
        b.total("wavefronts", "stmatrix") - b.total("ideal_wavefronts", "stmatrix")
    ),
    "sm__inst_executed_pipe_tensor_op_gmma.sum": lambda b: b.products("warps"),
    "smsp__sass_data_bytes_mem_shared_op_gmma.sum": lambda b: b.products("engine_bytes"),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma.sum": lambda b: b.products("engine_bytes") // WAVEFRONT,
}


def virtual(case: Case) -> dict[str, int]:
    """Return what the virtual GPU has for every counter."""
    from gemmule.compiler.cache import artifact_for

    problem, spec, config = case.problem(), case.choice.spec, case.choice.config
    artifact = artifact_for(spec, config, spec.signature(problem, config), ARCH, with_ptx=True)
    counter, copies = Counter(), CopyTraffic()
    launch(artifact, spec.launch(problem, config), case.arrays(), options=Options(), observers=(counter, copies))
    both = Both(counter.counts, copies)
    return {name: count(both) for name, count in COUNTERS.items()}


def known_counters(ncu: str) -> set[str]:
    """Return the names of the counters that this chip has, without what ncu may take of them."""
    done = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in done.stdout.splitlines() if "__" in line.split(" ", 1)[0]}


def hardware(number: int, also: str) -> list[dict[str, float]]:
    """Return the hardware's counters for each of the cases; `also` names more of them, as a regular expression."""
    ncu = shutil.which("ncu")
    if ncu is None:
        sys.exit("ncu was not found; it comes with the CUDA toolkit and with Nsight Compute")
    known = known_counters(ncu)
    wanted = [name for name in COUNTERS if not known or name.rpartition(".")[0] in known]
    if also:
        wanted += sorted({f"{name}.sum" for name in known if re.search(also, name)} - set(wanted))
    for name in sorted(set(COUNTERS) - set(wanted)):
        print(f"this chip has no {name}; the record is without it", file=sys.stderr)
    command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "-k", "regex:^h[01]",
               "--metrics", ",".join(wanted), sys.executable, __file__, "--run"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"ncu failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    # The first row gives the units.
    _, *rows = csv.DictReader(io.StringIO("".join(x + "\n" for x in done.stdout.splitlines() if x.startswith('"'))))
    if len(rows) != number:
        sys.exit(f"ncu saw {len(rows)} kernels of {number}:\n{done.stdout[-2000:]}")
    return [
        {name: float(row[name].replace(",", "")) for name in wanted if row.get(name, "n/a") not in ("", "n/a", "nan")}
        for row in rows
    ]


def records(only: list[Case], counted: list[dict[str, int]], also: str) -> Iterator[dict[str, Any]]:
    """Yield a record for each case and counter."""
    for case, here, there in zip(only, counted, hardware(len(only), also), strict=True):
        for counter, value in there.items():
            found = {"virtual": here[counter]} if counter in here else {}
            yield {"record": "counts", **case.label(), "counter": counter, **found, "hardware": value}


def beside(hardware: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the hardware's records of counters, with what the virtual GPU counts now."""
    own = {json.dumps(case.label()): case for case in cases()}
    kept = next(iter(own.values())).label()
    counted: dict[str, dict[str, int]] = {}
    for record in hardware:
        key = json.dumps({name: record[name] for name in kept})
        if key not in counted:
            counted[key] = virtual(own[key])
        here = counted[key]
        found = {"virtual": here[record["counter"]]} if record["counter"] in here else {}
        yield {name: value for name, value in record.items() if name != "virtual"} | found


def main() -> None:
    """Count, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=Path, metavar="FILE", help="count here beside a record's hardware")
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--also", default="", metavar="REGEX", help="more counters of the hardware, by name")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    only = cases()
    if options.run:
        run_on_hardware(only)
        return
    from gemmule.lab.experiment import experiment
    from gemmule.lab.records import read_records, write_records
    from gemmule.runtime.device import get_device

    if options.beside:
        _, *rest = read_records(options.beside)
        command = f"python benchmarks/records/hopper_counts.py --beside {options.beside.name}"
        found = beside([record for record in rest if record["record"] == "counts"])
        print(write_records(options.record, experiment(command) | {"hardware": options.beside.name}, found))
        return
    # What is compiled here is in the cache when ncu runs the same.
    with concurrent.futures.ProcessPoolExecutor() as pool:
        counted = list(pool.map(virtual, only))
    found = list(records(only, counted, options.also))
    command = " ".join(["python", "benchmarks/records/hopper_counts.py", *sys.argv[1:]])
    print(write_records(options.record, experiment(command, get_device().pci_bus_id), found))


if __name__ == "__main__":
    main()
