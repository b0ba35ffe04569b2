"""Roofline arithmetic: the least time of given work on a chip.

After Williams, Waterman and Patterson: Roofline: an insightful visual performance model for multicore architectures,
Communications of the ACM 52 (4), 2009. All rates are in operations a second, all intensities in operations a byte.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gemmule.core.dataclass import dataclass

from .chip import Chip
from .dtype import BF16_PRODUCTS, FEWEST_INT8_PRODUCTS, GUARDED_COMPLEX64, GUARDED_PRODUCTS, DType, Kind, Precision
from .errors import ArgumentError, UnsupportedError
from .problem import GemmProblem, Problem

_FP64 = ("fp64", "fp64_tensor")
_FP32 = ("fp32", *_FP64)
_TF32 = ("tf32_tensor", *_FP32)

# Units that multiply operands of a type without rounding them, the native one first.
_UNITS = {
    "float64": _FP64,
    "float32": _FP32,
    "float16": ("fp16_tensor", *_TF32),
    "bfloat16": ("bf16_tensor", *_TF32),
    "float8_e4m3fn": ("fp8_tensor", "fp16_tensor", "bf16_tensor", *_TF32),
    "float8_e5m2": ("fp8_tensor", "fp16_tensor", "bf16_tensor", *_TF32),
    "int8": ("int8_tensor", "int32"),
    "int32": ("int32",),
}
#: Those that multiply integers by floats.
_INTEGERS_BY_FLOATS = {"int8": ("fp16_tensor", "bf16_tensor", *_TF32), "int32": _FP64}


@dataclass(frozen=True)
class Level:
    """A level of the memory hierarchy."""

    name: str  #: E.g. ``memory`` or ``shared memory``.
    bandwidth: float  #: Bytes a second, of the whole chip.


@dataclass(frozen=True)
class Bound:
    """The least time of given work."""

    operations: int  #: Number of operations.
    compute_seconds: float  #: Time of the arithmetic alone, in seconds.
    level_seconds: tuple[tuple[str, float], ...]  #: Time of the traffic through each level alone, in seconds.

    @property
    def seconds(self) -> float:
        """Least time in seconds, with arithmetic and all traffic overlapped."""
        return max(self.compute_seconds, *(seconds for _, seconds in self.level_seconds), 0.0)

    @property
    def limited_by(self) -> str:
        """``compute``, or the name of the slowest level."""
        slowest = max(self.level_seconds, key=lambda level: level[1], default=("", 0.0))
        return slowest[0] if slowest[1] > self.compute_seconds else "compute"

    @property
    def verdict(self) -> str:
        """``compute-bound`` or ``memory-bound``."""
        return "compute-bound" if self.limited_by == "compute" else "memory-bound"

    @property
    def rate(self) -> float:
        """Attainable rate in operations a second; 0 without work."""
        return self.operations / self.seconds if self.seconds else 0.0


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise ArgumentError(f"{name}={value} is not positive")
    return value


def ridge(peak: float, bandwidth: float) -> float:
    """Return the ridge point in FLOP a byte, above which `peak` (FLOP/s) limits, not `bandwidth` (B/s)."""
    return _positive("peak", peak) / _positive("bandwidth", bandwidth)


def attainable(intensity: float, peak: float, bandwidth: float) -> float:
    """Return the attainable rate in FLOP/s at an intensity (FLOP a byte), a peak (FLOP/s) and a bandwidth (B/s)."""
    return min(_positive("peak", peak), _positive("intensity", intensity) * _positive("bandwidth", bandwidth))


def tile_intensity(tile_m: int, tile_n: int, a_itemsize: int, b_itemsize: int | None = None) -> float:
    """Return the intensity, in FLOP a byte read, of a product in tiles of (`tile_m`, `tile_n`).

    For each step of k, a tile reads a column of `tile_m` and a row of `tile_n` elements and does 2 `tile_m` `tile_n`
    operations. `a_itemsize` and `b_itemsize` are bytes an element, by default equal.
    """
    if min(tile_m, tile_n, a_itemsize) < 1 or (b_itemsize is not None and b_itemsize < 1):
        raise ArgumentError(
            f"tile_m={tile_m}, tile_n={tile_n}, a_itemsize={a_itemsize}, b_itemsize={b_itemsize}: all must be positive"
        )
    b_bytes = a_itemsize if b_itemsize is None else b_itemsize
    return 2 * tile_m * tile_n / (tile_m * a_itemsize + tile_n * b_bytes)


def levels(chip: Chip) -> tuple[Level, ...]:
    """Return the levels of `chip` with a published bandwidth, slowest first: host link, memory, shared memory.

    Shared memory requires the chip's clock. No L2 bandwidth is published; measure it and pass your own `Level`.
    """
    found = [Level("host link", chip.host_bandwidth), Level("memory", chip.memory_bandwidth)]
    if chip.boost_hz is not None:
        found.append(Level("shared memory", chip.sms * chip.sm.shared_bytes_per_clock * chip.boost_hz))
    return tuple(found)


def fastest_unit(chip: Chip, a: DType, b: DType, precision: Precision = Precision.IEEE) -> tuple[str, float]:
    """Return the fastest unit of `chip` that may multiply `a` by `b`, and its peak rate in operations a second.

    A unit must represent both types exactly, unless `precision` allows the rounding. Emulated precisions have the
    tensor cores' rate divided by the number of products, if that is more.

    Raises
    ------
    UnsupportedError
        If the chip has no such unit of known rate.
    """
    also = _units(b, a, precision)
    rates = {name: getattr(chip.peaks, name) for name in _units(a, b, precision) if name in also}
    rates = {name: rate for name, rate in rates.items() if rate is not None}
    # A real times a complex matrix is a product of real ones.
    same = a if a.name == b.name else a.part if a.part.name == b.part.name else None
    bf16x6 = precision in (Precision.BF16X6, Precision.OZAKI) and same is not None and same.name == "float32"
    if bf16x6 and chip.peaks.bf16_tensor is not None:
        rates["bf16_tensor"] = chip.peaks.bf16_tensor / BF16_PRODUCTS
    if same is not None and chip.peaks.int8_tensor is not None and (products := _int8_products(same, precision)):
        rates["int8_tensor"] = chip.peaks.int8_tensor / products
    if not rates:
        raise UnsupportedError(f"no unit of {chip.name} with a known peak rate multiplies {a} by {b}")
    return max(rates.items(), key=lambda item: item[1])


def _int8_products(dtype: DType, precision: Precision) -> float:
    """Return how many products of int8 emulate a real one at least, or 0."""
    if precision is Precision.OZAKI and dtype.kind is Kind.COMPLEX:
        # Three of each residue for four real ones.
        return 3 / 4 * (GUARDED_COMPLEX64 if dtype.part.name == "float32" else GUARDED_PRODUCTS)[0]
    return FEWEST_INT8_PRODUCTS.get(precision, 0) if dtype.name == "float64" else 0


def _units(dtype: DType, other: DType, precision: Precision) -> tuple[str, ...]:
    """Return the units that multiply values of a type by those of another one."""
    if dtype.kind is Kind.INTEGER is not other.kind:
        return _INTEGERS_BY_FLOATS.get(dtype.name, ())
    if dtype.name == "float32" and precision is Precision.TF32:
        return _TF32
    return _UNITS.get(dtype.part.name, ())


def bound(operations: int, peak: float, traffic: Mapping[Level, int]) -> Bound:
    """Return the bound of `operations` at `peak` (a second) with `traffic` (bytes through each level)."""
    if operations < 0 or any(size < 0 for size in traffic.values()):
        raise ArgumentError(f"operations={operations} or a traffic of {list(traffic.values())} bytes is negative")
    times = tuple((level.name, size / _positive("bandwidth", level.bandwidth)) for level, size in traffic.items())
    return Bound(operations, operations / _positive("peak", peak), times)


def problem_bound(problem: Problem, chip: Chip, *, from_host: bool = False) -> Bound:
    """Return the bound of a problem on a chip: each input read once, the output written once.

    Parameters
    ----------
    problem : GemmProblem or TransposeProblem
        The problem. A transpose has no arithmetic.
    from_host : bool
        Whether operands and result are in host memory. The host link is full-duplex: the direction with more bytes
        counts.
    """
    host, memory = levels(chip)[:2]
    if isinstance(problem, GemmProblem):
        outgoing = problem.m * problem.n * math.prod(problem.batch) * problem.d.dtype.itemsize
    else:
        outgoing = problem.bytes_min // 2
    traffic = {memory: problem.bytes_min}
    if from_host:
        traffic[host] = max(outgoing, problem.bytes_min - outgoing)
    if not isinstance(problem, GemmProblem):
        return Bound(0, 0.0, tuple((level.name, size / level.bandwidth) for level, size in traffic.items()))
    _, peak = fastest_unit(chip, problem.a.dtype, problem.b.dtype, problem.precision)
    return bound(problem.flop_min, peak, traffic)
