"""What transposes ask of caches and memory: the virtual GPU's counts and the hardware's counters beside each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gemmule.lab.kernel_labels import labels_of

from .counted import Counted, Counts, counted, scaled

Record = Mapping[str, Any]

_LSU = "l1tex__{}_pipe_lsu_mem_{}.sum"
_LOADS, _STORES = (_LSU.format("t_sectors", f"global_op_{way}") for way in ("ld", "st"))
_HITS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum"
_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
#: Columns: what a reader knows them by, and the counter.
COLUMNS = (
    ("sectors of loads", _LOADS),
    ("of them in L1", _HITS),
    ("sectors of stores", _STORES),
    ("wavefronts of shared reads", _WAVEFRONTS.format("ld")),
    ("of shared writes", _WAVEFRONTS.format("st")),
    ("bytes from memory", "dram__bytes_read.sum"),
    ("bytes to memory", "dram__bytes_write.sum"),
)


def counters_table(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: a launch a row; what both counted alike once, else the virtual GPU's / the hardware's."""
    launches = [one for one in counted(records) if len(one.shape) == 2]
    names = labels_of(one.key for one in launches)
    rows = [
        [names[one.key], _size(one), *(_cell(counter, one.virtual, one.hardware) for _, counter in COLUMNS)]
        for one in launches
    ]
    return ["kernel", "M x N", *(title for title, _ in COLUMNS)], rows


def throughput_table(records: Sequence[Record], times: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Return effective bandwidth beside what the hardware moved: sectors at L1, bytes at memory, in GB/s.

    Parameters
    ----------
    records : sequence of mapping
        Counters of launches.
    times : sequence of mapping
        Times of the same kernels and sizes, without counting.
    """
    measured = {_what(r["kernel"], r["config"], r["itemsize"], r["m"], r["n"]): r
                for r in times if r["record"] == "transpose"}  # fmt: skip
    launches = [one for one in counted(records) if len(one.shape) == 2]
    names = labels_of(one.key for one in launches)
    rows = []
    for one in launches:
        record = measured.get(_what(one.key[0], dict(one.key[1]), _item(one), *one.shape))
        if record is None:
            continue
        seconds = record["median_us"] * 1e-6
        moved: list[tuple[str, Callable[[float], float]]] = [
            (_LOADS, lambda sectors: 32 * sectors), (_STORES, lambda sectors: 32 * sectors),
            ("dram__bytes_read.sum", float), ("dram__bytes_write.sum", float),
        ]  # fmt: skip
        cells = [f"{of(one.hardware[name]) / seconds / 1e9:.0f}" if name in one.hardware else "" for name, of in moved]
        rows.append([names[one.key], _size(one), f"{record['gbps']:.0f}", *cells])
    return ["kernel", "M x N", "GB/s", "load GB/s", "store GB/s", "memory read GB/s", "memory written GB/s"], rows


def _what(kernel: str, config: Mapping[str, Any], itemsize: int, m: int, n: int) -> tuple[Any, ...]:
    return kernel, tuple(config.items()), itemsize, m, n


def _cell(counter: str, virtual: Counts, hardware: Counts) -> str:
    mine, theirs = virtual.get(counter), hardware.get(counter)
    if mine is None or theirs is None or mine == theirs:
        known = theirs if mine is None else mine
        return "" if known is None else scaled(known)
    return f"{scaled(mine)} / {scaled(theirs)}"


def _item(one: Counted) -> int:
    match = re.search(r"\d+", one.dtype)
    assert match is not None
    return int(match[0]) // 8


def _size(one: Counted) -> str:
    m, n = one.shape
    item = _item(one)
    return f"{m} x {n} of {'1 byte' if item == 1 else f'{item} bytes'}"
