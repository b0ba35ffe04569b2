"""A product that passes through a GPU, as benchmarks name it, its error and its record."""

from __future__ import annotations

import dataclasses
import math
import statistics

import numpy as np

from gemmule.core.dtype import accumulator, dtype_named
from gemmule.outofcore.device.planner.choice import Scope, choose_plan
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.tiles.memory_budget import parse_bytes
from gemmule.outofcore.tiles.plan import Operand, Product


@dataclasses.dataclass(frozen=True)
class Cell:
    """A product: its type, its extents m, n and k, and the memory of each GPU that it may take."""

    dtype: str
    shape: tuple[int, int, int]
    device_memory: str

    @classmethod
    def parse(cls, text: str) -> Cell:
        """Return the product of ``type:extents:memory``, where one extent stands for all three."""
        dtype, extents, memory = text.split(":")
        m, n, k = (list(map(int, extents.split(","))) * 3)[:3]
        return cls(dtype, (m, n, k), memory)

    @property
    def numpy(self) -> np.dtype:
        """The type as NumPy has it."""
        return dtype_named(self.dtype).numpy()

    @property
    def sums(self) -> np.dtype:
        """The type that slices are summed in."""
        return accumulator(dtype_named(self.dtype), dtype_named(self.dtype)).numpy()

    @property
    def nbytes(self) -> int:
        """Bytes of all three matrices."""
        m, n, k = self.shape
        return (m * k + k * n + m * n) * self.numpy.itemsize

    @property
    def flop(self) -> int:
        """Multiplications and additions."""
        return 2 * math.prod(self.shape)

    def matrices(self, pool: np.ndarray) -> list[np.ndarray]:
        """Return A, B and the result in a pool of memory."""
        m, n, k = self.shape
        found, start = [], 0
        for rows, cols in ((m, k), (k, n), (m, n)):
            size = rows * cols * self.numpy.itemsize
            found.append(pool[start : start + size].view(self.numpy).reshape(rows, cols))
            start += size
        return found

    def plan(self, devices: int, rates: Rates, strategy: str | None = None):
        """Return what the planner chooses."""
        operand = Operand(self.numpy)
        product = Product(*self.shape, operand, operand, operand)
        memory = parse_bytes(self.device_memory)
        return choose_plan(product, self.sums, memory, rates, strategy=strategy, scope=Scope(devices))


def worst_error(a: np.ndarray, b: np.ndarray, out: np.ndarray, rows: np.ndarray) -> float:
    """Return the largest error of some rows in units of u (|A||B|) of the accumulator, output rounding taken off."""
    dtype = dtype_named(out.dtype.name)
    unit = accumulator(dtype, dtype).unit_roundoff
    worst = 0.0
    columns = np.linspace(0, b.shape[1] - 1, 512).astype(int)
    left = a[rows].astype(np.longdouble if dtype.itemsize == 8 else np.float64)
    right = b[:, columns].astype(left.dtype)
    expected, size = left @ right, np.abs(left) @ np.abs(right)
    error = np.abs(out[np.ix_(rows, columns)].astype(left.dtype) - expected)
    error = np.maximum(error - dtype.unit_roundoff * np.abs(expected) * 1.01, 0)
    worst = float((error / (unit * size)).max())
    return worst if np.isfinite(worst) else float("inf")


def record_of(options, source, chosen, runs, rates, incore, error) -> dict:
    """Return the record of some runs of one plan."""
    plan, prediction = chosen.plan, chosen.prediction
    wall = statistics.median(run.seconds for run in runs)
    run = min(runs, key=lambda one: abs(one.seconds - wall))
    return {
        "record": "stream",
        "strategy": plan.strategy,
        "source": source,
        "dtype": options.dtype,
        "m": plan.product.m, "n": plan.product.n, "k": plan.product.k,
        "budgets": {"device": options.device_memory, "pinned": options.pinned, "planned_bytes": plan.device_bytes},
        "tile": [plan.tile_m, plan.tile_n, plan.tile_k],
        "c_tiles": plan.c_tiles,
        "slots": list(plan.slots),
        "threads": options.threads,
        "devices": len(options.devices.split(",")),
        "wall_s": wall,
        "wall_samples_s": [one.seconds for one in runs],
        "device_s": run.device_seconds,
        "predicted_s": prediction.seconds,
        "predicted_exposed_share": prediction.exposed_share,
        "bottleneck": prediction.bottleneck,
        "exposed_copy_share": run.exposed_share,
        "bound_share": best_s(options, chosen, rates) / wall,
        "tflops": run.flop / wall / 1e12,
        "incore_tflops": incore / 1e12,
        "incore_rate_share": run.flop / wall / incore / len(options.devices.split(",")),
        "bytes": {"h2d": run.bytes_in, "d2h": run.bytes_out},
        "busy_s": {
            name: sum(one.duration_ns for one in run.activity if one.stream == name) / 1e9
            for name in sorted({one.stream for one in run.activity})
        },
        "rates": {name: value for name, value in dataclasses.asdict(rates).items() if value != float("inf")},
        "error_u": error,
    }  # fmt: skip


def best_s(options, chosen, rates) -> float:
    """Return the time of the bottleneck if it never waited: products at the rate in core, links at theirs."""
    devices = len(options.devices.split(","))
    return max(chosen.prediction.flop / rates.compute / devices, chosen.prediction.h2d_s, chosen.prediction.d2h_s,
               chosen.prediction.source_s, chosen.prediction.sink_s)  # fmt: skip
