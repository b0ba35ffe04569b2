"""Explanations beside the hardware's own counters: a row for each kernel that was counted by both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..counted import SECTOR, Counts, counted, percent, scaled
from ..gemm_tables import labels
from ..tables import markdown


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure that both give: its name, the counters of either, and how it is written."""

    name: str
    virtual: str
    hardware: str
    written: Callable[[float], str] = scaled


def _bytes(count: float) -> str:
    return scaled(SECTOR * count)


def _share(count: float) -> str:
    return percent(count / 100)


def _same(name: str, counter: str, written: Callable[[float], str] = scaled) -> Figure:
    return Figure(name, counter, counter, written)


#: The figures in three tables: instructions and warps, requests, and what passes between caches and memory.
FIGURES = (
    (
        _same("instructions, of warps", "smsp__inst_executed.sum"),
        _same("FFMA, of threads", "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"),
        _same("DFMA, of threads", "smsp__sass_thread_inst_executed_op_dfma_pred_on.sum"),
        Figure(
            "occupancy",
            "sm__maximum_warps_per_active_cycle_pct",
            "sm__warps_active.avg.pct_of_peak_sustained_active",
            _share,
        ),
    ),
    (
        _same("global loads", "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"),
        _same("sectors of global loads", "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"),
        _same("wavefronts of shared memory", "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"),
        _same("of them conflicts", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"),
    ),
    (
        _same("bytes read from L2", "lts__t_sectors_op_read.sum", _bytes),
        _same("bytes written to L2", "lts__t_sectors_op_write.sum", _bytes),
        _same("bytes read from device memory", "dram__bytes_read.sum"),
        _same("bytes written to device memory", "dram__bytes_write.sum"),
    ),
)


def measured_block(records: Sequence[Mapping[str, Any]]) -> str:
    """Return tables of what was explained, what the hardware counted, and the ratio of the first to the second."""
    names = labels(record for record in records if record["record"] == "counts")
    tables = []
    for figures in FIGURES:
        rows = [
            [names[one.key], *(_cell(figure, one.virtual, one.hardware) for figure in figures)]
            for one in counted(records)
        ]
        tables.append(markdown(["explained / measured = ratio", *(figure.name for figure in figures)], rows))
    return "\n\n".join(tables)


def _cell(figure: Figure, virtual: Counts, hardware: Counts) -> str:
    explained, measured = virtual.get(figure.virtual), hardware.get(figure.hardware)
    if explained is None or measured is None:
        return ""
    if not explained and not measured:
        return "none"
    text = f"{figure.written(explained)} / {figure.written(measured)}"
    return f"{text} = {explained / measured:.2f}" if measured else text
