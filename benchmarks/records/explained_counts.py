"""What `gemmule explain` counts of every kernel of a record of the hardware's counters, under the same names.

python benchmarks/records/explained_counts.py benchmarks/results/DATE-GPU-COMMIT.jsonl --record benchmarks/results

Needs no GPU: the hardware's values are copied from the record, and the virtual GPU counts beside them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gemmule.commands.explain import explanation
from gemmule.core.chips import chip_named
from gemmule.dispatch.registry import REGISTRY
from gemmule.lab.experiment import experiment
from gemmule.lab.explain import Explanation
from gemmule.lab.records import read_records, write_records

_SECTOR = 32
_LOADS = ("load global", "load generic", "async copy")
_SHARED_LOADS, _SHARED_STORES = ("load shared", "matrix load"), ("store shared",)


def counters(explained: Explanation) -> dict[str, float]:
    """Return what an explanation says, by the name of the hardware's counter for the same."""
    totals, kinds = explained.totals, explained.totals.by_class
    memory = explained.behind_l2
    l2_written = _SECTOR * totals.total("sectors", "store global")
    # A copy of cp.async counts among the requests to global memory and among the wavefronts.
    wavefronts = totals.total("wavefronts")
    found: dict[str, float] = {
        "smsp__inst_executed.sum": totals.warps,
        "smsp__inst_executed_op_global_ld.sum": totals.total("warps", "load global", "load generic"),
        "smsp__inst_executed_op_global_st.sum": totals.total("warps", "store global"),
        "smsp__inst_executed_op_shared_ld.sum": totals.total("warps", *_SHARED_LOADS),
        "smsp__inst_executed_op_shared_st.sum": totals.total("warps", *_SHARED_STORES),
        "launch__registers_per_thread": explained.registers,
        "sm__maximum_warps_per_active_cycle_pct": 100 * explained.occupancy.occupancy,
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": totals.total("requests", *_LOADS),
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": totals.total("sectors", *_LOADS),
        "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": totals.total("requests", "store global"),
        "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": totals.total("sectors", "store global"),
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": wavefronts,
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": totals.total("wavefronts", *_SHARED_LOADS),
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum": totals.total("wavefronts", *_SHARED_STORES),
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": totals.load_conflicts + totals.store_conflicts,
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": totals.load_conflicts,
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum": totals.store_conflicts,
        "lts__t_sectors_op_read.sum": (totals.l2_bytes - l2_written) / _SECTOR,
        "lts__t_sectors_op_write.sum": l2_written / _SECTOR,
        "dram__bytes_read.sum": memory.bytes - memory.written,
        "dram__bytes_write.sum": memory.written,
    }
    for name, kind in (("ffma", "fma f32"), ("dfma", "fma f64")):
        found[f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum"] = kinds.get(kind, (0, 0))[1]
    if explained.l2_hit_rates is not None:
        found["lts__t_sector_hit_rate.pct"] = 100 * explained.l2_hit_rates[0]
    else:
        # Of a transpose: what its loads ask for, and L2 is not asked for.
        read = found["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] - found["lts__t_sectors_op_read.sum"]
        found["l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum"] = read
    return found


def apart(explained: Explanation) -> dict[str, float]:
    """Return what an explanation says of CTAs of a multiprocessor that are apart."""
    if explained.l2_hit_rates is None:
        return {}
    memory = explained.behind_l2
    return {
        "dram__bytes_read.sum": memory.apart_bytes - memory.written,
        "lts__t_sector_hit_rate.pct": 100 * explained.l2_hit_rates[1],
    }


def beside(hardware: list[dict[str, Any]], chip: str, names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the hardware's records, those of counters that an explanation knows with its value as ``virtual``.

    What CTAs of a multiprocessor that are apart have is ``virtual_apart``. With `names`, only kernels whose names begin
    with one of these.
    """
    done: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    specs = {spec.name: spec for spec in REGISTRY}
    for record in hardware:
        if record["record"] != "counts" or (names and not record["kernel"].startswith(tuple(names))):
            continue
        configs = [config.as_dict() for config in specs[record["kernel"]].configs]
        if record["config"] not in configs:
            sys.exit(f"{record['kernel']} has no config {record['config']} any more; count it on the hardware anew")
        kernel = f"{record['kernel']}[{configs.index(record['config'])}]"
        if (key := json.dumps([kernel, record["shape"], record["dtype"]])) not in done:
            shape = ",".join(map(str, record["shape"]))
            # The operands of a product lie in rows; a transpose has two extents.
            layout = "nn" if len(record["shape"]) == 3 else None
            explained = explanation(kernel, shape, chip, dtype=record["dtype"], layout=layout)
            done[key] = counters(explained), apart(explained)
            print(kernel, shape, file=sys.stderr)
        # Counters that no explanation knows stay: they tell what the others mean.
        found = [values.get(record["counter"]) for values in done[key]]
        named = zip(("virtual", "virtual_apart"), found, strict=True)
        yield record | {name: value for name, value in named if value is not None}


def main() -> None:
    """Count, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hardware", type=Path, metavar="FILE", help="record of the hardware's counters")
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginnings of kernels' names; all by default")
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    first, *rest = read_records(options.hardware)
    command = " ".join(["python benchmarks/records/explained_counts.py", options.hardware.name, *options.names])
    block = experiment(command) | {"hardware": options.hardware.name}
    print(write_records(options.record, block, list(beside(rest, chip_named(first["gpu"]).name, options.names))))


if __name__ == "__main__":
    main()
