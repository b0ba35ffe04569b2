"""Explanations beside the hardware's own counters: a row for each kernel that was counted by both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gemmule.lab.kernel_labels import labels

from .counted import SECTOR, WARP, Counted, Counts, counted, percent, scaled
from .markdown import markdown

Reader = Callable[[Counts], float | None]

_INSTRUCTIONS = "smsp__inst_executed.sum"
_FMA = tuple(f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum" for name in ("ffma", "dfma"))
_MEMORY_READ, _HIT_RATE = "dram__bytes_read.sum", "lts__t_sector_hit_rate.pct"


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure that both give: its name, how it is read from the counters of either, and how it is written."""

    name: str
    virtual: Reader
    hardware: Reader
    written: Callable[[float], str] = scaled


def _counter(name: str) -> Reader:
    return lambda counts: counts.get(name)


def _bytes(count: float) -> str:
    return scaled(SECTOR * count)


def _share(count: float) -> str:
    return percent(count / 100)


def _same(name: str, counter: str, written: Callable[[float], str] = scaled) -> Figure:
    return Figure(name, _counter(counter), _counter(counter), written)


def _fma_share(counts: Counts) -> float | None:
    """Return the multiply-adds of whole warps for each instruction."""
    found = [counts.get(name) for name in _FMA]
    issued = counts.get(_INSTRUCTIONS)
    return sum(value for value in found if value is not None) / WARP / issued if issued and any(found) else None


#: The figures in three tables: instructions and warps, requests, and what passes between caches and memory.
FIGURES = (
    (
        _same("instructions, of warps", _INSTRUCTIONS),
        _same("FFMA, of threads", _FMA[0]),
        _same("DFMA, of threads", _FMA[1]),
        Figure("multiply-adds among the instructions", _fma_share, _fma_share, percent),
        Figure(
            "occupancy",
            _counter("sm__maximum_warps_per_active_cycle_pct"),
            _counter("sm__warps_active.avg.pct_of_peak_sustained_active"),
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
        _same("bytes written to device memory", "dram__bytes_write.sum"),
    ),
)


def measured_block(records: Sequence[Mapping[str, Any]]) -> str:
    """Return tables of what was explained, what the hardware counted, and the ratio of the first to the second.

    The last has what lies between two figures: those of CTAs in step, and of CTAs apart.
    """
    names = labels(record for record in records if record["record"] == "counts")
    tables = []
    for figures in FIGURES:
        rows = [
            [names[one.key], *(_cell(figure, one.virtual, one.hardware) for figure in figures)]
            for one in counted(records)
        ]
        tables.append(markdown(["explained / measured = ratio", *(figure.name for figure in figures)], rows))
    header = ["in step to apart, measured", "bytes read from device memory", "", "L2 hit rate", ""]
    rows = [
        [names[one.key], *_between(one, _MEMORY_READ, scaled), *_between(one, _HIT_RATE, _share)]
        for one in counted(records)
    ]
    return "\n\n".join([*tables, markdown(header, rows)])


def _cell(figure: Figure, virtual: Counts, hardware: Counts) -> str:
    explained, measured = figure.virtual(virtual), figure.hardware(hardware)
    if explained is None or measured is None:
        return ""
    if not explained and not measured:
        return "none"
    text = f"{figure.written(explained)} / {figure.written(measured)}"
    return f"{text} = {explained / measured:.2f}" if measured else text


def _between(one: Counted, counter: str, written: Callable[[float], str]) -> tuple[str, str]:
    """Return the two figures of a counter, and the measured one."""
    figures = [values.get(counter) for values in (one.virtual, one.apart)]
    text = " to ".join(written(value) for value in figures if value is not None)
    measured = one.hardware.get(counter)
    return text, written(measured) if measured is not None else ""
