"""Streamed products of several shapes beside cuBLASXt with the block size that suits it best; writes records.

``python benchmarks/records/stream_peers.py RESULTS_FOLDER gemm:float64:24576 added:float32:40000,40000,4096``

``added`` is a product that is added to a matrix, ``gram`` a matrix times its own transpose. cuBLASXt is given a range
of block sizes; the best, and the best of those that take no more device memory than gemmule may, are run again, and the
fastest run counts. Elements of every result are held against a higher precision.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from cublasxt import CublasXt, MemoryTaken
from pinned_pool import fill, pinned_pool, poison, unpin

from gemmule.core.dtype import FEWEST_INT8_PRODUCTS, Precision, accumulator, dtype_named
from gemmule.dispatch.select import choose
from gemmule.lab.experiment import experiment
from gemmule.lab.records import RecordFile
from gemmule.outofcore.calls.device_engine import memory_beside_workspaces
from gemmule.outofcore.device.engine.buffers import Buffers
from gemmule.outofcore.device.engine.staging_probe import staged_by
from gemmule.outofcore.device.engine.streaming import Settings, stream_product
from gemmule.outofcore.device.planner.choice import Chosen, choose_plan
from gemmule.outofcore.device.planner.operation import Multiply
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.device.planner.rings import cut_rings, staged_rates
from gemmule.outofcore.device.planner.schedule import operations
from gemmule.outofcore.stores.arrays import ArraySink, ArraySource
from gemmule.outofcore.tiles.memory_budget import parse_bytes
from gemmule.outofcore.tiles.plan import Operand, Product
from gemmule.runtime.device import get_device
from gemmule.runtime.link_probe import (
    ALLOCATE_S,
    ISSUE_S,
    LINES,
    Operands,
    large_product,
    link_rates,
    part_seconds,
    product_rate,
)
from gemmule.runtime.streams import GpuStreams

#: Sides and depth of the product in core, and the depth at which adding to a sum is measured.
SIDE, DEPTH = 16384, 4096
#: What is near enough for the kernels to be made ready before anything is measured.
NOMINAL = {"float64": 48e12, "float32": 51e12}
#: What the matrix that is added is multiplied by.
BETA = 0.5
THREADS = 12


@dataclasses.dataclass(frozen=True)
class Cell:
    """A product: what it is, its type, and its extents m, n and k."""

    operation: str
    dtype: str
    shape: tuple[int, int, int]
    precision: Precision = Precision.IEEE

    @classmethod
    def parse(cls, text: str) -> Cell:
        """Return the product of ``operation:type:extents``, where one extent stands for all three.

        ``:bf16x6``, ``:ozaki`` or ``:ozaki-15`` behind it is how gemmule multiplies float32 or float64.
        """
        operation, dtype, extents, *precision = text.split(":")
        m, n, k = (list(map(int, extents.split(","))) * 3)[:3]
        return cls(operation, dtype, (m, n, k), *map(Precision, precision))

    def streams(self) -> GpuStreams:
        """Return the GPU, for products of this precision."""
        return GpuStreams(choose, 0, self.precision)

    @property
    def numpy(self) -> np.dtype:
        """The type as NumPy has it."""
        return np.dtype(self.dtype)

    @property
    def orders(self) -> str:
        """The orders of the factors."""
        return "FC" if self.operation == "gram" else "CC"

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Of the factors, the result, and the matrix to add; the second factor of a Gram matrix is the first one."""
        m, n, k = self.shape
        first = [(k, n)] if self.operation == "gram" else [(m, k), (k, n)]
        return [*first, (m, n), *[(m, n)] * (self.operation == "added")]

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        return sum(rows * cols for rows, cols in self.shapes) * self.numpy.itemsize

    def matrices(self, pool: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """Return A, B, the result and the matrix to add in a pool of memory."""
        found, start = [], 0
        for rows, cols in self.shapes:
            size = rows * cols * self.numpy.itemsize
            found.append(pool[start : start + size].view(self.numpy).reshape(rows, cols))
            start += size
        if self.operation == "gram":
            found.insert(0, found[0].T)
        return found[0], found[1], found[2], found[3] if self.operation == "added" else None

    @property
    def operands(self) -> Operands:
        """Types and orders of the matrices, as rates are measured of them."""
        return Operands(self.numpy, self.numpy, self.numpy, self.orders)

    def least(self) -> tuple[int, int, int]:
        """Return the operations, and the bytes to the GPU and back, that no order of work does without."""
        m, n, k = self.shape
        results = m * (n + 1) // 2 if self.operation == "gram" else m * n
        given = sum(rows * cols for rows, cols in self.shapes) - m * n
        return 2 * results * k, given * self.numpy.itemsize, results * self.numpy.itemsize

    def plan(self, rates: Rates, memory: int) -> Chosen:
        """Return what the planner chooses."""
        dtype = self.numpy
        a, b = (Operand(dtype, order) for order in self.orders)
        added = Operand(dtype) if self.operation == "added" else None
        return choose_plan(
            Product(*self.shape, a, b, Operand(dtype), added),
            dtype,
            memory_beside_workspaces(memory, self.precision),
            rates,
            symmetric=self.operation == "gram",
        )

    def blocks(self) -> list[int]:
        """Return the block sizes that cuBLASXt is given: powers of two, and those that cut the result evenly."""
        m, n, _ = self.shape
        largest = min(max(m, n), 40_000)
        even = [-(-largest // parts // 8) * 8 for parts in (2, 3, 4)]
        # Smaller ones are slow, and larger ones cut it in two very different parts.
        return sorted({block for block in (4096, 8192, 16_384, *even) if block <= largest / 2 or block == min(m, n)})


def error_of(cell: Cell, matrices, rows: np.ndarray) -> float:
    """Return the largest error of some elements on and above the diagonal, in units of u (|A||B| + |C|)."""
    a, b, out, c = matrices
    wide = np.longdouble if cell.dtype == "float64" else np.float64
    first = int(rows.max()) if cell.operation == "gram" else 0
    columns = np.linspace(first, b.shape[1] - 1, 256).astype(int)
    left, right = a[rows].astype(wide), b[:, columns].astype(wide)
    expected, size = left @ right, np.abs(left) @ np.abs(right)
    if c is not None:
        added = c[np.ix_(rows, columns)].astype(wide) * BETA
        expected, size = expected + added, size + np.abs(added)
    unit = accumulator(dtype_named(cell.dtype), dtype_named(cell.dtype)).unit_roundoff
    worst = float((np.abs(out[np.ix_(rows, columns)] - expected) / (unit * size)).max())
    return worst if np.isfinite(worst) else float("inf")


def compute_rate(cell: Cell) -> float:
    """Return the FLOP/s of large products in core, for about as long as streamed ones take."""
    with cell.streams() as device:
        return product_rate(device, cell.operands, added=False, side=SIDE, depth=SIDE, seconds=1.5)


def rates_of(cell: Cell, compute: float, source: str) -> Rates:
    """Return what the planner is told."""
    with cell.streams() as device:
        h2d, d2h = link_rates(device)
        kernel = kernel_of(cell, device)
        parts = part_seconds(device, cell.operands)
        plain, added = (product_rate(device, cell.operands, added=one, side=SIDE, depth=DEPTH) for one in (False, True))
    compute = parts.multiplying(compute, SIDE, SIDE)
    plain, added = (parts.multiplying(rate, SIDE, DEPTH) for rate in (plain, added))
    rates = nominal(compute, compute * min(added / plain, 1), h2d, d2h, *kernel)
    rates = dataclasses.replace(rates, split=parts.split, join=parts.join)
    if source == "pinned":
        return rates
    with cell.streams() as device, device.near():
        staged = staged_by(device, 256 << 20, THREADS)
    rings = cut_rings(("a", "b", "out"), 256 << 20, THREADS, 1)
    return staged_rates(dataclasses.replace(staged.applied_to(rates), launch=2e-4), rings, THREADS, THREADS)


def kernel_of(cell: Cell, device: GpuStreams) -> tuple[tuple[int, int, int], int]:
    """Return what the planner is told of the kernel of large products: its waves, and the stairs that it knows."""
    large = large_product(cell.operands)
    return device.waves(large), device.stairs(large)


def nominal(compute: float, added: float, h2d: float, d2h: float, waves: tuple[int, int, int], stairs: int) -> Rates:
    """Return rates in the form that the planner takes."""
    return Rates(
        compute, added, h2d, d2h, half=16, issue=ISSUE_S,
        allocate=ALLOCATE_S, measured=True, side=SIDE, depth=DEPTH, waves=waves, stairs=stairs, lines=LINES,
    )  # fmt: skip


def make_ready(cell: Cell, memory: int) -> None:
    """Compile and keep the kernels that plans of such a product take."""
    with cell.streams() as device:
        kernel = kernel_of(cell, device)
        rate = 80e12 if cell.precision in FEWEST_INT8_PRODUCTS else NOMINAL[cell.dtype]
        plan = cell.plan(nominal(rate, rate * 0.98, 53e9, 49e9, *kernel), memory).plan
        buffers, stream = Buffers(plan, device), device.stream()
        for op in operations(plan):
            if isinstance(op, Multiply):
                for product in buffers.products(op, 1, BETA if cell.operation == "added" else 0):
                    device.prepare(stream, product)


def checked(cell: Cell, matrices, name: str) -> float:
    """Return the error of a result, which must be within its bound."""
    rows = np.random.default_rng().integers(0, cell.shape[0] // 2, 4)
    error = error_of(cell, matrices, rows)
    if not error <= cell.shape[2]:
        sys.exit(f"{cell}: {name} is wrong: {error} u (|A||B|)")
    return error


def peer_call(cell: Cell, matrices, library: CublasXt, *, fresh: bool = False) -> float:
    """Return the seconds of one product by cuBLASXt, which adds in place; `fresh` for one that is checked."""
    a, b, out, c = matrices
    if fresh and c is None:
        poison(out)
    elif fresh:
        np.copyto(out, c)
    if cell.operation == "gram":
        return library.gram(b, out)
    return library.gemm(a, b, out, 0 if c is None else BETA)


def peers(cell: Cell, matrices, memory: int, blocks: list[int], *, pinning: bool = False) -> list[dict[str, object]]:
    """Return what cuBLASXt takes with blocks of several sizes."""
    found = []
    if not blocks:
        return found
    # The very first may still load kernels.
    for number, block in enumerate([blocks[-1], *blocks]):
        with CublasXt(block, pinning=pinning) as library, MemoryTaken() as taken:
            seconds = peer_call(cell, matrices, library)
        if number:
            found.append({"block": block, "pinning": pinning, "first_s": seconds, "device_bytes": taken.nbytes})
            print(found[-1], flush=True)
    order = sorted(found, key=lambda one: one["first_s"])
    again = [*order[:2], *[one for one in order if one["device_bytes"] <= memory][:1]]
    for one in {id(one): one for one in again}.values():
        with CublasXt(one["block"], pinning=pinning) as library:
            one["wall_samples_s"] = [peer_call(cell, matrices, library, fresh=last) for last in (False, False, True)]
        one["wall_s"] = min(one["wall_samples_s"])
        one["error_u"] = checked(cell, matrices, f"cuBLASXt with blocks of {one['block']}")
    return found


def measure(cell: Cell, pool: np.ndarray, options, file: RecordFile, source: str) -> None:
    """Measure one product and write its record."""
    memory = parse_bytes(options.device_memory)
    matrices = a, b, out, c = cell.matrices(pool)
    for seed, matrix in enumerate((a.T if cell.operation == "gram" else a, b, c)):
        if matrix is not None:
            fill(matrix, seed)
    before = compute_rate(cell)
    rates = rates_of(cell, before, source)
    chosen = cell.plan(rates, memory)
    sources = {"a": ArraySource(a), "b": ArraySource(b)} | ({} if c is None else {"c": ArraySource(c)})
    runs = []
    for repeat in range(options.repeats + 1):
        if repeat == options.repeats:
            poison(out)
        with cell.streams() as device:
            beta, settings = 0 if c is None else BETA, Settings(256 << 20, THREADS)
            runs.append(stream_product(chosen.plan, sources, ArraySink(out), device, beta=beta, settings=settings))
        print(cell, source, round(runs[-1].seconds, 4), round(chosen.prediction.seconds, 4), flush=True)
    error = checked(cell, matrices, "gemmule")
    # The first may still load kernels.
    samples = [run.seconds for run in runs[1:]]
    wall = statistics.median(samples)
    run = min(runs[1:], key=lambda one: abs(one.seconds - wall))
    others = peers(cell, matrices, memory, cell.blocks() if options.blocks is None else options.blocks)
    if source == "pageable" and options.pinning:
        best = sorted(others, key=lambda one: one["first_s"])[:2]
        others += peers(cell, matrices, memory, [one["block"] for one in best], pinning=True)
    after = compute_rate(cell)
    flop, given, taken = cell.least()
    record = {
        "record": "stream", "operation": cell.operation, "source": source, "dtype": cell.dtype,
        "precision": cell.precision.value,
        **dict(zip("mnk", cell.shape, strict=True)),
        "budgets": {"device": options.device_memory, "device_bytes": memory, "planned_bytes": chosen.plan.device_bytes},
        "strategy": chosen.plan.strategy, "tile": [chosen.plan.tile_m, chosen.plan.tile_n, chosen.plan.tile_k],
        "wall_s": wall, "wall_samples_s": samples, "predicted_s": chosen.prediction.seconds,
        "exposed_copy_share": run.exposed_share, "bytes": {"h2d": run.bytes_in, "d2h": run.bytes_out},
        "incore_flops_s": [before, after],
        "rates": {name: value for name, value in dataclasses.asdict(rates).items() if value != float("inf")},
        "least_s": {"compute": 2 * flop / (before + after), "H2D": given / rates.h2d, "D2H": taken / rates.d2h},
        "error_u": error, "peers": others,
    }  # fmt: skip
    print(json.dumps({name: record[name] for name in ("strategy", "tile", "wall_s", "least_s")}), flush=True)
    file.write(record)


def main() -> None:
    """Measure, print and write the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("cells", nargs="+", help="operation:type:extent, or operation:type:m,n,k")
    parser.add_argument("--device-memory", default="8GiB", help="what gemmule may take of it")
    parser.add_argument("--pageable", nargs="*", default=[], help="products whose matrices lie in pageable memory")
    parser.add_argument("--pinning", action="store_true", help="let cuBLASXt pin pageable matrices, too")
    parser.add_argument("--blocks", type=int, nargs="*", help="block sizes of cuBLASXt, or none of it")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--until", type=float, default=1e9, help="seconds after which nothing more is begun")
    parser.add_argument("--make-ready", action="store_true", help="only compile the kernels")
    options = parser.parse_args()
    pinned, pageable = ([Cell.parse(text) for text in texts] for texts in (options.cells, options.pageable))
    if options.make_ready:
        for cell in pinned:
            make_ready(cell, parse_bytes(options.device_memory))
        return
    begin = time.perf_counter()
    common = [__file__, str(options.results), "--make-ready", "--device-memory", options.device_memory]
    others = [subprocess.Popen([sys.executable, *common, text]) for text in {*options.cells, *options.pageable}]
    pool = pinned_pool(max(cell.nbytes for cell in (*pinned, *pageable)))
    print(f"pinned: {time.perf_counter() - begin:.1f} s", flush=True)
    for other in others:
        other.wait()
    print(f"kernels: {time.perf_counter() - begin:.1f} s", flush=True)
    with RecordFile(options.results, experiment(" ".join(sys.argv), get_device(0).pci_bus_id)) as file:
        for source, cells in (("pinned", pinned), ("pageable", pageable)):
            if source == "pageable" and cells:
                unpin(pool)
            for cell in cells:
                if time.perf_counter() - begin < options.until:
                    measure(cell, pool, options, file, source)
                    print(f"{cell}: {time.perf_counter() - begin:.1f} s", flush=True)
    print(file.path)


if __name__ == "__main__":
    main()
