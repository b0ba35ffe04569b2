"""The transpose as an operation that is measured: the fields, rates and columns of its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemmule.core.chip import Chip
from gemmule.core.problem import TransposeProblem

from .operation import Column, Operation, interval_text, percent

Record = Mapping[str, Any]

_PEERS = {"torch": "PyTorch", "cupy": "CuPy"}


def named(problem: TransposeProblem) -> dict[str, Any]:
    """Return the fields that name a transpose: m rows of n elements become n rows of m."""
    batch = {"batch": list(problem.batch)} if problem.batch else {}
    return {"itemsize": problem.itemsize, **batch, "m": problem.cols, "n": problem.rows}


def effective_gbps(problem: TransposeProblem, seconds: float) -> float:
    """Return the effective bandwidth in GB/s: bytes read and bytes written, in 10**9, over the time."""
    return round(problem.bytes_min / seconds / 1e9, 2)


def rate_fields(problem: TransposeProblem, seconds: float, chip: Chip | None) -> dict[str, Any]:
    """Return the effective bandwidth, and its share of the chip's theoretical one."""
    gbps = effective_gbps(problem, seconds)
    if chip is None:
        return {"gbps": gbps}
    peak = chip.memory_bandwidth / 1e9
    return {"gbps": gbps, "peak_gbps": round(peak, 1), "peak_share": round(gbps / peak, 4)}


def size_text(record: Record) -> str:
    """Return the size in words: the matrices of a batch, M x N, and the bytes of an element."""
    bytes_text = "1 byte" if record["itemsize"] == 1 else f"{record['itemsize']} bytes"
    return f"{' x '.join(map(str, (*record.get('batch', ()), record['m'], record['n'])))} of {bytes_text}"


def _columns(records: Sequence[Record], paired: bool) -> list[Column]:
    def number(field: str, places: int) -> tuple[Column, ...]:
        """Return a column that not every record has, if one has it."""
        header = "/ faster copy" if field.startswith("faster") else f"x {_PEERS[field.removesuffix('_ratio')]}"
        found = Column(header, lambda one: f"{one[field]:.{places}f}" if field in one else "")
        return (found,) if any(field in record for record in records) else ()

    return [
        Column("GB/s", lambda one: f"{one['gbps']:.0f}"),
        Column("of theoretical", lambda one: percent(one.get("peak_share"))),
        Column("/ copy", lambda one: interval_text(one, paired=paired)),
        *number("faster_copy_ratio", 3),
        *(column for peer in _PEERS for column in number(f"{peer}_ratio", 2)),
    ]


TRANSPOSE = Operation[TransposeProblem](
    kind="transpose",
    field="itemsize",
    size="M x N",
    fields=named,
    text=lambda problem: size_text(named(problem)),
    rate=rate_fields,
    size_text=size_text,
    layout_text=lambda _: "",
    columns=_columns,
)
