"""SM cycles of a k-tile of scaled 8-bit products: ``python benchmarks/records/k_tile_cycles.py FOLDER``.

Operands are zeros, so that power does not limit the clock. Of every tile a product has two whole waves, once with a
short and once with a long K: the difference is of k-tiles alone. Cycles are microseconds by the clock that a small
kernel reads after each graph. ``compile`` instead of a folder compiles what will run. About 10 s of a GPU.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from graph_times import graph_of
from scaled import HOPPER, Cell

from gemmule.compiler.pool import Job, compile_all
from gemmule.core.block_scales import BLOCK
from gemmule.core.spec import Choice
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.kernels.parts.hopper_facts import SMS

#: Kinds of scales, and columns of a tile with its stages.
TILES = (
    ("row", 128, 6), ("row", 176, 4), ("row", 192, 4), ("row", 208, 4), ("row", 256, 4), ("block", 192, 4),
    ("block", 256, 4),
)  # fmt: skip
#: Short and long K; rows of tiles, which divide the SMs, waves, rounds, and microseconds of a graph about.
KS, ROWS, WAVES, ROUNDS, GRAPH_US = (3584, 14336), 12, 2, 5, 4000
#: Cycles of the tensor cores for a row and a column of a k-tile.
CYCLES = 2 * BLOCK / 8192
_PROBE = r"""
extern "C" __global__ void probe(unsigned long long* out) {
  unsigned long long begin, end;
  long long first = clock64(), last;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do { last = clock64(); } while (last - first < 200000);
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(end));
  out[0] = last - first;
  out[1] = end - begin;
}"""


def cells() -> Iterator[tuple[Cell, HopperGemmConfig]]:
    """Yield products and their configs, a short K and a long one in turn."""
    for kind, tile_n, stages in TILES:
        config = HopperGemmConfig(tile_m=BLOCK, tile_n=tile_n, stages=stages, cluster_m=1)
        for k in KS:
            yield Cell(kind, ROWS * BLOCK, SMS // ROWS * WAVES * tile_n, k), config


def clock() -> Callable[[], float]:
    """Return a function that reads the clock of an SM, in MHz."""
    import cupy
    import torch

    probe, out = cupy.RawKernel(_PROBE, "probe"), torch.zeros(2, dtype=torch.int64, device="cuda")

    def read() -> float:
        probe((1,), (1,), (out.data_ptr(),))
        torch.cuda.synchronize()
        cycles, nanoseconds = out.tolist()
        return float(cycles / nanoseconds * 1e3)

    return read


def operands_of(cell: Cell) -> tuple[Any, ...]:
    """Return zeros, scales of ones, and a result."""
    import torch

    def filled(value: float, *shape: int, dtype: Any = torch.float32) -> Any:
        return torch.full(shape, value, device="cuda").to(dtype)

    m, n, blocks = cell.m, cell.n, cell.k // BLOCK
    a, b = (filled(0, lines, cell.k, dtype=torch.float8_e4m3fn) for lines in (m, n))
    scales = (filled(1, m, 1), filled(1, 1, n))
    if cell.kind == "block":
        scales = (filled(1, blocks, m).T, filled(1, -(-n // BLOCK), blocks).T)
    return a, b.T, *scales, torch.empty((m, n), device="cuda", dtype=torch.bfloat16)


def measured(cell: Cell, config: HopperGemmConfig, mhz: Callable[[], float]) -> dict[str, Any]:
    """Return the times of a product, the clock, and the cycles."""
    import torch

    from gemmule.runtime.repeated import repeated

    operands = operands_of(cell)
    places = tuple(x.data_ptr() for x in operands)
    queue = repeated(cell.problem(), Choice(SPEC, config), cell.names, places, 0)
    assert queue is not None
    calls = int(GRAPH_US * 1.5e9 / cell.problem().flop) + 1
    replay = graph_of(lambda _: queue(places, torch.cuda.current_stream().cuda_stream), calls)
    replay()
    samples, clocks = zip(*((replay(), mhz()) for _ in range(ROUNDS)), strict=True)
    us, of_clock = statistics.median(samples), statistics.median(clocks)
    return {
        "record": "k_tile_cycles", **dataclasses.asdict(cell), "tile_n": config.tile_n, "us": round(us, 3),
        "mhz": round(of_clock, 1), "cycles": round(us * of_clock), "config": config.as_dict(),
        "samples_us": [round(x, 3) for x in samples], "clocks_mhz": [round(x, 1) for x in clocks],
    }  # fmt: skip


def main() -> None:
    """Compile, or measure and record."""
    every = list(cells())
    jobs = dict.fromkeys(Job(SPEC, config, SPEC.signature(cell.problem(), config), HOPPER) for cell, config in every)
    list(compile_all(list(jobs)))
    folder = sys.argv[1]
    if folder == "compile":
        return
    from gemmule.lab.experiment import experiment
    from gemmule.lab.records import RecordFile
    from gemmule.runtime.device import get_device

    mhz, tiles_of_k = clock(), WAVES * (KS[1] - KS[0]) // BLOCK
    with RecordFile(Path(folder), experiment(" ".join(sys.argv), get_device(0).pci_bus_id)) as file:
        shorter = 0
        for cell, config in every:
            record = measured(cell, config, mhz)
            if cell.k == KS[1]:
                each = (record["cycles"] - shorter) / tiles_of_k
                ideal = CYCLES * BLOCK * config.tile_n
                record |= {"k_tile_cycles": round(each), "of_ideal": round(each / ideal, 3)}
            shorter = record["cycles"]
            file.write(record)
            print({x: record[x] for x in record if x not in ("samples_us", "clocks_mhz", "config")}, flush=True)


if __name__ == "__main__":
    main()
