"""GEMM as an operation that is measured: the fields, rates and columns of its records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gemmule.core.chip import Chip
from gemmule.core.errors import UnsupportedError
from gemmule.core.problem import GemmProblem
from gemmule.core.roofline import fastest_unit

from .operation import Column, Operation, interval_text, percent

Record = Mapping[str, Any]

#: Units of rates, each with its factor from TFLOP/s.
RATES = {"TFLOP/s": 1.0, "GFLOP/s": 1e3}
#: Bytes from which an alignment is not recorded.
_ALIGNED = 16


def named(problem: GemmProblem) -> dict[str, Any]:
    """Return the fields that name a product."""
    return {
        "dtype": problem.a.dtype.name,
        "precision": problem.precision.value,
        "out_dtype": problem.d.dtype.name,
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "layout": problem.layout,
        "batch": list(problem.batch),
        **({"alignment": problem.a.alignment} if problem.a.alignment < _ALIGNED else {}),
        **({"own_transpose": True} if problem.own_transpose else {}),
    }


def rate_fields(problem: GemmProblem, seconds: float, chip: Chip | None) -> dict[str, Any]:
    """Return the rate of a product in so many seconds, and its share of the chip's peaks."""
    rate = problem.flop / seconds
    found: dict[str, Any] = {"tflops": round(rate / 1e12, 4)}
    if chip is None or problem.own_transpose:
        # Not all of a symmetric result is computed: the rate is no share of the peak.
        return found
    try:
        unit, peak = fastest_unit(chip, problem.a.dtype, problem.b.dtype, problem.precision)
    except UnsupportedError:
        return found
    found |= {"peak_share": round(rate / peak, 4), "peak_unit": unit, "peak_tflops": peak / 1e12}
    if unit == "fp64_tensor" and chip.peaks.fp64 is not None:
        # The peak of code without tensor cores.
        fma = chip.peaks.fp64
        found |= {"fma_share": round(rate / fma, 4), "fma_tflops": fma / 1e12}
    return found


def size_text(record: Record) -> str:
    """Return the size in words: M x N x K, and where matrices begin that are not aligned."""
    misaligned = f", at {record['alignment']} bytes" if "alignment" in record else ""
    return f"{record['m']} x {record['n']} x {record['k']}{misaligned}"


def layout_text(record: Record) -> str:
    """Return the layout of A and B of a record, and whether B is A itself, transposed."""
    return f"{record['layout']} own transpose" if record.get("own_transpose") else str(record["layout"])


def product_of(record: Record) -> tuple[Any, ...]:
    """Return the key of a record's product."""
    fields = ("m", "n", "k", "dtype", "precision", "out_dtype", "layout", "batch", "alignment", "own_transpose")
    return tuple(str(record.get(name)) for name in fields)


def rate_unit(records: Iterable[Record]) -> str:
    """Return the unit in which the rates of records are short: TFLOP/s, or GFLOP/s where all are below 1 TFLOP/s."""
    return "TFLOP/s" if any(record.get("tflops", 0) >= 1 for record in records) else "GFLOP/s"


def _columns(records: Sequence[Record], paired: bool) -> list[Column]:
    unit = rate_unit(records)

    def ratio(record: Record) -> str:
        if record["record"] == "yardstick":
            return "1"
        return interval_text(record, paired=paired) if "ratio" in record else ""

    columns = [
        Column(unit, lambda one: f"{one['tflops'] * RATES[unit]:.4g}"),
        Column("of peak", lambda one: percent(one.get("peak_share"))),
        Column("of FMA peak", lambda one: percent(one.get("fma_share"))),
        Column("vs cuBLASLt", ratio),
        Column("error u", lambda one: f"{one['error_u']:.2f}" if "error_u" in one else ""),
    ]
    beyond_fma = any("fma_share" in record for record in records)
    return [column for column in columns if beyond_fma or column.header != "of FMA peak"]


GEMM = Operation[GemmProblem](
    kind="gemm",
    field="k",
    size="M x N x K",
    fields=named,
    text=lambda problem: f"{problem.m} x {problem.n} x {problem.k} {problem.a.dtype} {problem.layout}",
    rate=rate_fields,
    size_text=size_text,
    layout_text=layout_text,
    columns=_columns,
)
