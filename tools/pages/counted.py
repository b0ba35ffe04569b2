"""What counters say of a kernel, in words: rows of figures that are made from `counts` records only.

A counter has ncu's name, whoever counted: the hardware (``hardware``), or the virtual GPU (``virtual``, and
``virtual_apart`` if CTAs of an SM are not in step).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gemmule.lab.kernel_labels import Key, key_of

Counts = Mapping[str, float]
Shape = tuple[int, ...]

#: Bytes of a sector, the unit in which caches and memory move data, and threads of a warp.
SECTOR = 32
WARP = 32
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
#: What a warp waits for, by the name that the counter gives it. Being chosen, or ready, is not waiting.
_STALLS = {
    "long_scoreboard": "global memory",
    "short_scoreboard": "shared memory",
    "barrier": "a barrier",
    "dispatch_stall": "the dispatcher",
    "math_pipe_throttle": "a busy arithmetic pipe",
    "wait": "a fixed latency",
    "mio_throttle": "the queue to shared memory",
    "lg_throttle": "the queue to global memory",
    "no_instruction": "instructions",
}


@dataclasses.dataclass(frozen=True)
class Counted:
    """The counts of a kernel at one size.

    Attributes
    ----------
    key : Key
        The kernel and its config.
    dtype : str
        Element type.
    shape : tuple of int
        M, N and K of a product; rows and columns of a transpose.
    layout : str
        How the operands lie in memory, as in records of products.
    hardware, virtual, apart : mapping
        Value by counter, of the hardware, of the virtual GPU, and of that with CTAs apart.
    """

    key: Key
    dtype: str
    shape: Shape
    layout: str
    hardware: Counts
    virtual: Counts
    apart: Counts


def counted(records: Sequence[Mapping[str, Any]]) -> list[Counted]:
    """Return the counts by kernel, config, type, size and layout; of a counter that comes twice, the later value."""
    found: dict[tuple[Key, str, Shape, str], tuple[dict[str, float], ...]] = {}
    for record in records:
        if record["record"] == "counts":
            what = (key_of(record), record["dtype"], tuple(record["shape"]), record.get("layout", "nn"))
            of = found.setdefault(what, ({}, {}, {}))
            for values, name in zip(of, ("hardware", "virtual", "virtual_apart"), strict=True):
                if name in record:
                    values[record["counter"]] = record[name]
    return [Counted(*what, *values) for what, values in found.items()]


def dram_bytes(counts: Counts) -> float | None:
    """Return the bytes between the chip and its memory; only those read where those written were not counted."""
    read = counts.get("dram__bytes_read.sum")
    return None if read is None else read + counts.get("dram__bytes_write.sum", 0.0)


def l2_bytes(counts: Counts) -> float | None:
    """Return the bytes between the L2 cache and the SMs; only those read as for `dram_bytes`."""
    read = counts.get("lts__t_sectors_op_read.sum")
    return None if read is None else SECTOR * (read + counts.get("lts__t_sectors_op_write.sum", 0.0))


def fma_share(counts: Counts) -> float | None:
    """Return the multiply-adds (FFMA, DFMA) among the executed instructions."""
    lanes = [counts.get(f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum") for name in ("ffma", "dfma")]
    executed = counts.get("smsp__inst_executed.sum")
    known = [value for value in lanes if value is not None]
    return sum(known) / WARP / executed if known and executed else None


def issue_share(counts: Counts) -> float | None:
    """Return the share of a scheduler's cycles in which it issues."""
    return _share(counts, "smsp__issue_active.avg.pct_of_peak_sustained_active")


def occupancy_share(counts: Counts) -> float | None:
    """Return the warps that were there, as a share of those that an SM holds."""
    return _share(counts, "sm__warps_active.avg.pct_of_peak_sustained_active")


def conflict_share(counts: Counts) -> float | None:
    """Return the wavefronts of shared memory that bank conflicts add, as a share of all wavefronts."""
    return _over(
        counts, "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
    )


def waits(counts: Counts, most: int = 2) -> str | None:
    """Return what warps wait for most, with the warps that do so for each instruction that a scheduler issues."""
    values = {text: counts.get(_STALL.format(name)) for name, text in _STALLS.items()}
    known = sorted(((value, text) for text, value in values.items() if value), reverse=True)[:most]
    return ", ".join(f"{text} ({value:.1f})" for value, text in known) or None


def _share(counts: Counts, counter: str) -> float | None:
    return counts[counter] / 100 if counter in counts else None


def _over(counts: Counts, counter: str, other: str) -> float | None:
    return counts[counter] / counts[other] if counter in counts and counts.get(other) else None


def scaled(value: float) -> str:
    """Return a count with three figures and its thousands as K, M, G or T."""
    rounded = float(f"{value:.3g}")
    for power, letter in ((12, "T"), (9, "G"), (6, "M"), (3, "K")):
        if abs(rounded) >= 10**power:
            return f"{rounded / 10**power:g} {letter}"
    return f"{rounded:g}"


def percent(value: float) -> str:
    """Return a share as a percentage."""
    return f"{100 * value:.1f} %"


@dataclasses.dataclass(frozen=True)
class Row:
    """A figure made from counts: its name, how it is made, and how it is written."""

    name: str
    of: Callable[[Counts], float | str | None]
    written: Callable[[float], str] = scaled

    def text(self, counts: Counts) -> str:
        """Return the figure in words; nothing if a counter that it needs is absent."""
        value = self.of(counts)
        if value is None:
            return ""
        return value if isinstance(value, str) else self.written(value)


def _counter(name: str) -> Callable[[Counts], float | None]:
    return lambda counts: counts.get(name)


def _ratio(counter: str, other: str) -> Callable[[Counts], float | None]:
    return lambda counts: _over(counts, counter, other)


def _hits(counter: str) -> Callable[[Counts], float | None]:
    return lambda counts: _share(counts, counter)


_LSU = "l1tex__{}_pipe_lsu_mem_{}.sum"
#: What pages and reports show of counts, in the order of a value's way: instructions, warps, caches, memory.
ROWS = (
    Row("instructions, of warps", _counter("smsp__inst_executed.sum")),
    Row("of them multiply-adds", fma_share, percent),
    Row("cycles in which a scheduler issues", issue_share, percent),
    Row("registers per thread", _counter("launch__registers_per_thread")),
    Row("warps of an SM", _counter("sm__warps_active.avg.per_cycle_active")),
    Row("occupancy, possible", _hits("sm__maximum_warps_per_active_cycle_pct"), percent),
    Row("occupancy, achieved", occupancy_share, percent),
    Row("warps wait for", waits),
    Row("global loads", _counter(_LSU.format("t_requests", "global_op_ld"))),
    Row(
        "sectors per global load",
        _ratio(_LSU.format("t_sectors", "global_op_ld"), _LSU.format("t_requests", "global_op_ld")),
    ),
    Row(
        "sectors per global store",
        _ratio(_LSU.format("t_sectors", "global_op_st"), _LSU.format("t_requests", "global_op_st")),
    ),
    Row("L1 hit rate", _hits("l1tex__t_sector_hit_rate.pct"), percent),
    Row("wavefronts of shared memory", _counter("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum")),
    Row("of them by bank conflicts", conflict_share, percent),
    Row("bank conflicts of loads", _counter(_LSU.format("data_bank_conflicts", "shared_op_ld"))),
    Row("bank conflicts of stores", _counter(_LSU.format("data_bank_conflicts", "shared_op_st"))),
    Row("bytes read from the L2 cache", lambda counts: _sectors(counts, "read")),
    Row("bytes written to the L2 cache", lambda counts: _sectors(counts, "write")),
    Row("L2 hit rate", _hits("lts__t_sector_hit_rate.pct"), percent),
    Row("bytes read from device memory", _counter("dram__bytes_read.sum")),
    Row("bytes written to device memory", _counter("dram__bytes_write.sum")),
)


def _sectors(counts: Counts, way: str) -> float | None:
    counter = f"lts__t_sectors_op_{way}.sum"
    return SECTOR * counts[counter] if counter in counts else None


def table(columns: Sequence[tuple[str, Counts]]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: a figure a row and a kernel a column; figures that no column has are left out."""
    rows = [[row.name, *(row.text(counts) for _, counts in columns)] for row in ROWS]
    return ["", *(name for name, _ in columns)], [row for row in rows if any(row[1:])]
