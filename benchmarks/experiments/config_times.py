"""Times of all plausible configs of random products, beside cuBLASLt's: what the cost model is fitted to.

For random products of a type in a drawn layout, extents log-uniform from 64 to 8192, the registered configs of the
kernel (`hopper_gemm`, of float32 `simt_gemm`, of float64 `float64_gemm`, of complex types theirs) and candidates that
are not registered are timed, interleaved with each other and with the eight algorithms that cuBLASLt's heuristic
names, in CUDA graphs over rotating buffers. A config is plausible if the cost model predicts little more than its
least, or if it differs from such a one in the cluster only; some others are drawn. Of the other kernels all that are
not far off are timed, and a third of the products of float32 and float64 has odd extents. ``--squares`` puts squares
from 256 to 4096 before them. Needs an NVIDIA GPU, PyTorch and the compiler.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import itertools
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from untuned_choices import Operands, Pool, jobs_of

from gemmule.compiler.pool import compile_all
from gemmule.core.config import Config
from gemmule.core.dtype import Precision
from gemmule.core.errors import ArgumentError, CompileError, UnsupportedError, WrongResultError
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice, KernelSpec
from gemmule.dispatch.kernel_names import on_gpu
from gemmule.dispatch.rates_table import rates_for
from gemmule.kernels.complex.complex64.spec import SPEC as COMPLEX64_GEMM
from gemmule.kernels.complex.complex128.spec import SPEC as COMPLEX128_GEMM
from gemmule.kernels.complex.config import Complex64Config, Complex128Config
from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.float64.gemm.spec import SPEC as FLOAT64_GEMM
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.config_lists import CONFIGS, FOR_FLOAT8
from gemmule.kernels.hopper.gemm.spec import SPEC as HOPPER_GEMM
from gemmule.kernels.hopper.gemm_k_major.spec import SPEC as K_MAJOR
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as REPACKED
from gemmule.kernels.hopper.refusals import HOPPER
from gemmule.kernels.mma_sync.config import MmaSyncConfig
from gemmule.kernels.mma_sync.spec import SPEC as MMA_SYNC
from gemmule.kernels.simt.config import SimtConfig
from gemmule.kernels.simt.gemm.spec import SPEC as SIMT_GEMM
from gemmule.kernels.simt.gemm_mn_major.spec import SPEC as MN_MAJOR
from gemmule.lab import protocol
from gemmule.lab.experiment import experiment
from gemmule.lab.gemm_operation import named
from gemmule.lab.products import LAYOUTS, gemm_problem
from gemmule.lab.records import RecordFile, read_records
from gemmule.runtime.bench import BenchGpu, bench_gpu
from gemmule.runtime.device import get_device
from gemmule.runtime.repeated import repeated
from gemmule.runtime.rotation import Rotation

_LEAST, _MOST = 64, 8192
#: By type: the outputs' type, precision, what extents are multiples of, layouts, and the most operations of a product.
#: Inputs of `tf32` are float32.
_TYPES: dict[str, tuple[str, str | None, int, tuple[str, ...], float]] = {
    "tf32": ("float32", "tf32", 4, ("nn", "tn", "tt"), 1e11),
    "bfloat16": ("bfloat16", None, 8, LAYOUTS, 2e12),
    "float8_e4m3fn": ("bfloat16", "float8", 16, ("nt",), 2e12),
    "float32": ("float32", None, 4, LAYOUTS, 1e11),
    "float64": ("float64", None, 2, LAYOUTS, 1e11),
    "float16": ("float16", None, 1, LAYOUTS, 1e11),
    "int8": ("int32", None, 16, ("nt",), 2e12),
    "complex64": ("complex64", None, 2, ("nn",), 5e10),
    "complex128": ("complex128", None, 1, ("nn",), 5e10),
}
_SQUARES = (4096, 2048, 1024, 512, 3072, 1536, 256)
#: Of float32, TF32 and float64 every so many-th product has odd extents.
_ONE_ODD_OF = 3
#: Registered and candidate tiles, `c` cooperative and `p` ping-pong, with clusters along M, N and K.
_CANDIDATES = {
    "c128x256": "11 21 41 22",
    "c256x128": "12 14 22",
    "c256x144": "12 21",
    "c256x160": "12 14 22",
    "c256x176": "12 21",
    "c256x192": "11 21 12 14 22",
    "c128x240": "11 21 12 22",
    "c128x224": "21 41 22",
    "c128x208": "11 21 12 22",
    "c128x192": "21 41",
    "c128x160": "21",
    "p128x192": "11 21 12 41 22 42",
    "p128x176": "11 21 12",
    "p128x160": "11 21 12 22 14 41",
    "p128x144": "11 21 12 14",
    "p128x128": "11 21 12 41 14 22 24 42",
    "p128x112": "11 21 12 14 24",
    "p128x96": "11 21 12 14 22 24 41",
    "p128x80": "11 12 21 14 24",
    "p128x64": "11 21 12 14 22 24 42 k4",
    "p192x128": "11 12 14 22",
    "p192x96": "11 12 14",
    "p192x64": "12 14",
    "p64x256": "11 41 22 42",
    "p64x224": "41 21 22",
    "p64x192": "11 21 41 22 42",
    "p64x160": "11 21 41 22 42",
    "p64x144": "21 12 22",
    "p64x128": "11 21 12 41 22 14 24 42 k4 k8",
    "p64x112": "11 21 12 14 24 22",
    "p64x96": "11 21 41 12 14 22 24 42 k3 k4",
    "p64x80": "11 21 12 14 22 24",
    "p64x64": "11 12 14 22 24 42 41 k4 k8",
    "p64x48": "11 21 12 14 24 k2 k3",
    "p64x32": "11 21 41 12 14 22 24 42 k2 k4",
    "p64x16": "11 21 12 14 k2",
    "p64x8": "11",
    "c128x128": "11 21 12 14 22 k2 k4",
    "c128x96": "k2 k4",
    "c128x64": "11 21 12 14 22 24 41 k2 k4 k8",
    # Widths that 16 does not divide: with cluster_m=1 alone, as each CTA of more would load 8 columns at least.
    **{f"p64x{n}": "11 12 14" for n in (24, 40, 56, 72, 88, 104, 120, 136, 152, 168)},
    **{f"p128x{n}": "11 12 14" for n in (56, 72, 88, 104, 120, 136, 152, 168, 184)},
    **{f"c256x{n}": "11 12" for n in (104, 112, 120, 136, 152, 168)},
    **{f"c128x{n}": "11 12" for n in (72, 88, 104, 120, 136, 152, 168, 216, 232)},
    **{f"p192x{n}": "11 12 14" for n in (72, 80, 104, 112, 120)},
}
_MOST_STAGES = 16
#: Configs up to so many times the least prediction, and how many of them; tiles whose other clusters are tried, and
#: random ones among the rest up to a larger factor. Of other kernels all are timed up to `_FAR` times the least.
_FACTOR, _PLAUSIBLE, _TILES, _DRAWN, _DRAWN_FACTOR, _FAR = 1.25, 24, 4, 4, 2.0, 3.0
_OTHERS = {MMA_SYNC.name: (1.8, 24), SIMT_GEMM.name: (1.25, 8)}
#: The same of those whose warps share tiles along K, within their own least.
_SHARED = 1.6, 9
#: Seconds of a sample, rounds there and back, sizes of the L2 cache that all buffer sets have together, most of them,
#: and seconds of load before the first product.
_SAMPLE, _ROUNDS, _CACHES, _SETS, _WARM_UP = 0.7e-3, 2, 2, 256, 2.0
#: Largest difference of the logarithms of similar products' extents.
_SIMILAR = 0.3
#: Kernels that spill more bytes a thread are left out.
_MOST_SPILLED = 24


#: Tiles of `simt_gemm`: rows, columns, k-tile, warps along M, N and K, stages, and the CTAs of clusters.
_SIMT = (
    (128, 128, 8, 4, 2, 1, 4, (1,)),
    (128, 128, 16, 4, 2, 1, 3, (1, 2)),
    (256, 128, 8, 4, 2, 1, 4, (1,)),
    (64, 128, 16, 2, 2, 1, 4, (3, 6)),
    (64, 32, 16, 2, 1, 1, 4, (2, 4)),
    (32, 32, 32, 1, 1, 4, 4, (1, 4, 6, 8, 16)),
    (32, 32, 64, 1, 1, 4, 3, (1, 4, 6, 8, 16)),
    (32, 32, 64, 1, 1, 8, 3, (8, 16)),
    (64, 32, 32, 2, 1, 2, 4, (1, 2, 4, 6, 8, 16)),
    (64, 32, 32, 2, 1, 4, 4, (4, 8, 16)),
    (64, 64, 16, 2, 1, 2, 4, (1, 2, 3, 4, 6, 8, 16)),
    (64, 64, 32, 2, 1, 2, 3, (1, 2, 3, 4, 6, 8, 16)),
    (64, 64, 32, 2, 2, 2, 3, (1, 2, 3, 4)),
    (128, 64, 32, 4, 1, 2, 3, (1, 2, 3, 4, 6, 8)),
    (64, 128, 32, 2, 2, 2, 3, (1, 2, 3, 4, 6, 8)),
)


#: Candidates of `mma_sync_gemm`: rows, columns, warps along M and N, and stages; and CTAs of a cluster.
_MMA_SYNC = {
    (64, 64, 2, 2, 4): (1, 2, 3, 4, 5, 6, 7, 8, 12, 16),
    (128, 64, 2, 2, 4): (1, 2, 4, 8),
    (128, 64, 4, 2, 4): (1, 2, 3, 4, 6, 8, 12, 16),
    (64, 128, 2, 2, 4): (2, 4, 8, 16),
    (64, 128, 2, 4, 4): (1, 2, 3, 4, 5, 6, 8, 16),
    (128, 128, 2, 4, 4): (1, 2, 3, 4, 5, 6, 8, 10, 12, 16),
    (128, 256, 2, 4, 4): (1, 2, 4, 5, 8, 11),
    (256, 128, 4, 2, 4): (2, 4, 5, 6, 8, 11, 16),
    (256, 64, 4, 1, 3): (1, 2, 4),
    (64, 256, 1, 4, 3): (1, 2, 4),
    # Warp tiles of 64 x 64, two CTAs an SM.
    (128, 128, 2, 2, 3): (2, 3, 4, 8),
    (64, 128, 1, 2, 4): (1, 2, 3, 4, 8),
    (64, 64, 2, 2, 6): (1, 2, 4, 8),
    # For small results.
    (32, 64, 1, 2, 4): (1, 2, 3, 4, 8),
    (64, 32, 2, 1, 4): (1, 2, 4, 6, 8, 16),
    (32, 32, 1, 1, 4): (1, 2, 4),
    (32, 128, 1, 4, 4): (1, 2, 4, 8),
}
_TWO_WARPS, _FOUR_WARPS = {"stages": 3, "mma_k": 8}, {"stages": 3, "mma_k": 8, "warps_m": 4, "warps_n": 1}
#: Candidates of `float64_gemm`, as what differs from the default.
_FLOAT64: tuple[dict[str, int], ...] = (
    # Others that were timed, of deeper k-tiles, more warps and larger clusters, were seldom the fastest by 1.5 %.
    *({"mma_k": 8, **fields} for fields in ({}, {"cluster_k": 3}, {"stream_k": 1}, {"cluster_k": 2, "stream_k": 1})),
    *({"warps_n": 4, "cluster_k": 2, "mma_k": k, "stream_k": 1} for k in (8, 16)),
    {"warps_n": 4, "mma_k": 8, "stream_k": 1},
    *({"tile_k": 32, "stages": 3, "mma_k": 8, "stream_k": shared} for shared in (0, 1)),
    {"stages": 3, "mma_k": 8, "stream_k": 1},
    *({side: 128, "stages": 3, "mma_k": 8} for side in ("tile_m", "tile_n")),
    {"tile_m": 128, "warps_m": 4, "mma_k": 8},
    # Tiles of 32 columns or rows, in warps of 32 x 32 and of half of that, and more CTAs an SM.
    *({"tile_n": 32, "mma_k": 8, "cluster_k": ctas, "stream_k": shared} for ctas in (1, 2) for shared in (0, 1)),
    *({side: 32, "stages": 3, "mma_k": 8} for side in ("tile_m", "tile_n")),
    *({side: 32, "mma_k": 8, "cluster_k": 2, "stream_k": 1} for side in ("tile_m", "tile_n")),
    *(
        {side: 32, warps: 1, "mma_k": 8, "cluster_k": ctas}
        for side, warps in (("tile_m", "warps_m"), ("tile_n", "warps_n"))
        for ctas in (1, 2)
    ),
    *(
        {"tile_m": 32, "tile_n": 128, **_TWO_WARPS, "warps_m": 1, "warps_n": 4, **fields}
        for fields in ({}, {"cluster_k": 2}, {"stream_k": 1})
    ),
    *({"tile_m": 128, "tile_n": 32, **_FOUR_WARPS, **fields} for fields in ({}, {"cluster_k": 2}, {"stream_k": 1})),
    {"tile_m": 32, "tile_n": 32, "tile_k": 32, "cluster_k": 2, "stream_k": 1},
    *({"tile_m": 32, "tile_n": 32, "mma_k": k} for k in (8, 16)),
    {"tile_m": 32, "tile_n": 32, "tile_k": 32, "stages": 3},
    # Sides between.
    *({side: 48, warps: 1, **_TWO_WARPS} for side, warps in (("tile_m", "warps_m"), ("tile_n", "warps_n"))),
    {"tile_m": 80, **_TWO_WARPS, "warps_m": 1, "warps_n": 4},
    {"tile_m": 96, "tile_n": 32, "mma_k": 8},
)


#: Candidates of `complex64_gemm`: rows, columns, k-tile, warps along M and N, stages, and further fields.
_COMPLEX64 = (
    (64, 64, 16, 2, 1, 4, 8, 2, 2),
    (64, 64, 16, 2, 1, 4, 8, 4, 2),
    (32, 64, 32, 1, 1, 4, 8, 1, 4),
    (32, 64, 32, 1, 1, 4, 8, 2, 4),
    (32, 64, 32, 1, 1, 4, 8, 4, 4),
    (64, 128, 16, 2, 2, 6, 8, 1, 2),
    (128, 64, 16, 4, 1, 6, 8, 1, 2),
    (64, 128, 16, 2, 2, 4),
)
#: Candidates of `complex128_gemm`, as what differs from the default.
_COMPLEX128: tuple[dict[str, int], ...] = (
    {"tile_n": 128, "warps_m": 4, "stages": 3},
    *({"tile_m": 128, "warps_m": 8, "warps_n": 1, "stages": 3, "stream_k": shared} for shared in (0, 1)),
    *({"tile_n": 128, "warps_m": 4, "tile_k": 16, "stages": 3, "stream_k": shared} for shared in (0, 1)),
    # Others were slower: one more stage, other warps and 128 rows with deeper k-tiles, 64 x 64 with stream-K.
)


def complex_candidates(spec: KernelSpec) -> tuple[Config, ...]:
    """Return the registered configs of a complex kernel, and the candidates."""
    further: tuple[Config, ...] = tuple(Complex128Config(**one) for one in _COMPLEX128)
    if spec is COMPLEX64_GEMM:
        further = tuple(Complex64Config(*fields) for fields in _COMPLEX64)
    return tuple(dict.fromkeys([*spec.configs, *further]))


def float64_candidates() -> tuple[Float64Config, ...]:
    """Return the registered configs, and those of `_FLOAT64`."""
    return tuple(dict.fromkeys([*FLOAT64_GEMM.configs, *(Float64Config(**one) for one in _FLOAT64)]))


def mma_sync_choices() -> tuple[Choice, ...]:
    """Return the configs of `mma_sync_gemm` that TF32 may need, and the kernel that transposes operands first."""
    found = list(MMA_SYNC.configs)
    for (tile_m, tile_n, warps_m, warps_n, stages), clusters in _MMA_SYNC.items():
        tile = MmaSyncConfig(tile_m=tile_m, tile_n=tile_n, warps_m=warps_m, warps_n=warps_n, stages=stages)
        found += [dataclasses.replace(tile, cluster_k=ctas) for ctas in clusters]
    transposed = [Choice(spec, one) for spec in (K_MAJOR, REPACKED) for one in spec.configs]
    transposed += [Choice(HOPPER_GEMM, one) for one in candidates() if one not in FOR_FLOAT8]
    return (*(Choice(MMA_SYNC, one) for one in dict.fromkeys(found)), *transposed)


def simt_candidates() -> tuple[SimtConfig, ...]:
    """Return the registered configs, and all of `_SIMT` that exist."""
    found = list(SIMT_GEMM.configs)
    for *tile, warps_k, stages, clusters in _SIMT:
        for cluster_k in clusters:
            with contextlib.suppress(ArgumentError):
                found.append(SimtConfig(*tile, stages, cluster_k=cluster_k, warps_k=warps_k))
    return tuple(dict.fromkeys(found))


def candidates() -> tuple[HopperGemmConfig, ...]:
    """Return the registered configs, and each candidate with as many stages as shared memory holds."""
    found = [one for one in CONFIGS if one not in FOR_FLOAT8]
    for (name, clusters), swap_ab in itertools.product(_CANDIDATES.items(), (0, 1)):
        tile_m, tile_n = map(int, name[1:].split("x"))
        for cluster in clusters.split():
            m, n, k = (1, 1, int(cluster[1:])) if cluster[0] == "k" else (int(cluster[0]), int(cluster[1]), 1)
            fields = {"pingpong": int(name[0] == "p"), "cluster_m": m, "cluster_n": n, "cluster_k": k}
            for stages in range(_MOST_STAGES, 2, -1):
                with contextlib.suppress(ArgumentError):
                    found.append(HopperGemmConfig(tile_m, tile_n, stages, swap_ab=swap_ab, **fields))
                    break
    return tuple(dict.fromkeys([*found, *FOR_FLOAT8]))


def draws(seed: int, dtype: str) -> Iterator[GemmProblem]:
    """Yield random products."""
    out, precision, unit, layouts, most = _TYPES[dtype]
    numbers = random.Random(seed)  # noqa: S311  # sizes, no secrets
    for number in itertools.count():
        logs = (numbers.uniform(math.log(_LEAST), math.log(_MOST)) for _ in range(3))
        m, n, k = (max(round(math.exp(log) / unit), 1) * unit for log in logs)
        layout = numbers.choice(layouts)
        if dtype in ("float32", "float64", "tf32") and number % _ONE_ODD_OF == _ONE_ODD_OF - 1:
            m, n, k = m | 1, n | 1, k | 1
            # Of TF32 with aligned rows, other kernels take K-major operands.
            layout = numbers.choice(LAYOUTS) if dtype == "tf32" else layout
        if 2.0 * m * n * k <= most:
            problem = gemm_problem(m, n, k, "float32" if dtype == "tf32" else dtype, out, layout)
            yield dataclasses.replace(problem, precision=Precision.parse(precision))


def lost(records: Sequence[Path], dtype: str, below: float, similar: int, seed: int) -> list[GemmProblem]:
    """Return the products of draws' records that were slower than cuBLASLt's top heuristic, the slowest first.

    `similar` products of a seed follow each, whose extents differ by up to a third.
    """
    out, precision, unit, layouts, _ = _TYPES[dtype]
    least: dict[tuple[int, int, int, str], float] = {}
    for path in records:
        for one in read_records(path):
            wanted = ("float32", "tf32") if dtype == "tf32" else (dtype, precision or "ieee")
            if one["record"] != "gemm" or (one["dtype"], one["precision"]) != wanted or one["chosen_by"] != "dispatch":
                continue
            ratio = one.get("yardstick_first_us", math.inf) / one["median_us"]
            aligned = not any(one[x] % unit for x in "mnk")
            if ratio < below and one["layout"] in layouts and (aligned or dtype in ("float32", "float64", "tf32")):
                key = one["m"], one["n"], one["k"], one["layout"]
                least[key] = min(ratio, least.get(key, ratio))
    numbers, found = random.Random(seed), list[GemmProblem]()  # noqa: S311  # sizes, no secrets
    for *extents, layout in sorted(least, key=least.__getitem__):
        sizes = [extents]
        for _ in range(similar):
            near = [round(x * math.exp(numbers.uniform(-_SIMILAR, _SIMILAR)) / unit) * unit for x in extents]
            sizes.append([max(x, unit) | extents[2] % unit for x in near])
        for m, n, k in sizes:
            problem = gemm_problem(m, n, k, "float32" if dtype == "tf32" else dtype, out, layout)
            found.append(dataclasses.replace(problem, precision=Precision.parse(precision)))
    return found


def listed(path: Path, dtype: str) -> list[GemmProblem]:
    """Return the products of a file: M, N, K and the layout, a line each."""
    out, precision, *_ = _TYPES[dtype]
    found = []
    for line in path.read_text().splitlines():
        *extents, layout = line.split()
        m, n, k = map(int, extents)
        problem = gemm_problem(m, n, k, "float32" if dtype == "tf32" else dtype, out, layout)
        found.append(dataclasses.replace(problem, precision=Precision.parse(precision)))
    return found


def costs_of(problem: GemmProblem, choices: Sequence[Choice], gpu: GpuRates) -> list[float]:
    """Return the predicted microseconds of each choice, or of kernels that do not take the product infinity."""
    found = []
    for one in choices:
        assert one.spec.costs is not None
        refused = one.spec.refuses is not None and one.spec.refuses(problem, HOPPER)
        found.append(math.inf if refused else one.spec.costs(problem, [one.config], gpu)[0])
    return found


def plausible(problem: GemmProblem, choices: Sequence[Choice], device: Any, seed: int, far: float) -> list[int]:
    """Return the numbers of the configs to time, those predicted to be fastest first."""
    costs = costs_of(problem, choices, rates_for(device.name, device.multiprocessors))
    order = sorted(range(len(choices)), key=costs.__getitem__)
    order = [x for x in order if costs[x] < math.inf]
    order = [x for x in order if choices[x].spec.why_not(problem, device.arch, choices[x].config) is None]
    if choices[0].spec is not HOPPER_GEMM:
        # Of a kernel that prepares operands for another one, its best config; of other ones the best.
        first = {choices[x].spec.name: x for x in reversed(order)}
        order = [x for x in order if costs[x] <= far * costs[order[0]]]
        order = [x for x in order if choices[x].spec.next_kernel is None or first[choices[x].spec.name] == x]
        if (spec := choices[0].spec) in (MMA_SYNC, SIMT_GEMM):
            factor, most = _OTHERS[spec.name]
            factor = min(factor, far)
            own = [x for x in order if choices[x].spec is spec and costs[x] <= factor * costs[order[0]]]
            kept = own[:most]
            if spec is SIMT_GEMM:
                shared = [x for x in order if getattr(choices[x].config, "warps_k", 1) > 1]
                kept = [x for x in own if x not in shared][:most]
                kept += [x for x in shared if costs[x] <= _SHARED[0] * costs[shared[0]]][: _SHARED[1]]
            order = [x for x in order if choices[x].spec is not spec or x in kept]
            by_registers = [x for x in order if choices[x].spec is HOPPER_GEMM]
            order = [x for x in order if choices[x].spec is not HOPPER_GEMM or x in by_registers[:most]]
        return order
    least = costs[order[0]]
    found = [x for x in order if costs[x] <= _FACTOR * least][:_PLAUSIBLE]

    def tile(x: int) -> tuple[int, ...]:
        one: Any = choices[x].config
        return one.tile_m, one.tile_n, one.pingpong, one.swap_ab, one.cluster_k

    tiles = list(dict.fromkeys(map(tile, found)))[:_TILES]
    found += [x for x in order if tile(x) in tiles and costs[x] <= _DRAWN_FACTOR * least]
    rest = [x for x in order if x not in found and costs[x] <= _DRAWN_FACTOR * least]
    found += random.Random(seed).sample(rest, min(_DRAWN, len(rest)))  # noqa: S311
    return list(dict.fromkeys(found))


class Timer:
    """Times works interleaved with each other."""

    def __init__(self, gpu: BenchGpu) -> None:
        self._gpu = gpu

    def __call__(self, works: Sequence[Callable[[], None]], expected: Sequence[float], sets: int) -> list[float]:
        """Return for each work the median of its samples, in microseconds a call.

        Parameters
        ----------
        works : sequence of callable
            Each was called before.
        expected : sequence of float
            Roughly the microseconds of a call.
        sets : int
            Buffer sets.
        """
        samples: list[list[float]] = [[] for _ in works]
        with contextlib.ExitStack() as stack:
            watches = []
            for work, one in zip(works, expected, strict=True):
                # A graph begins with the same buffer set each time.
                calls = max(1, round(_SAMPLE * 1e6 / one / sets)) * sets
                watches.append(stack.enter_context(self._gpu.stopwatch(work, calls, graph=True)))
            for _ in range(_ROUNDS):
                queued = [(index, watches[index].queue()) for index in protocol.turns(len(works))]
                for index, seconds_of in queued:
                    samples[index].append(seconds_of() * 1e6)
        return [round(statistics.median(one), 3) for one in samples]


class Session:
    """One run: a GPU, its memory, and what was found to be wrong."""

    def __init__(
        self, gpu: BenchGpu, lt: Any, dtype: str, choices: Sequence[Choice], failing: set[str], *, algorithms: int = 8
    ) -> None:
        self._gpu, self._lt, self._choices, self._failing, self._most = gpu, lt, choices, failing, algorithms
        self._pool, self._timer, self._checked = Pool(), Timer(gpu), set[tuple[int, str, bool]]()
        self._rates = rates_for(gpu.name, gpu.multiprocessors)
        self._pool.fill(dtype)

    def record(self, problem: GemmProblem, numbers: Sequence[int]) -> dict[str, Any]:
        """Time a product in its configs and by cuBLASLt; return its record."""
        layout, odd = problem.layout, problem.k % 2 == 1
        able = [x for x in numbers if not self._failing.intersection(self._jobs(problem, x))]
        with self._gpu.workspaces() as workspaces, contextlib.ExitStack() as stack:
            wanted = math.ceil(_CACHES * self._gpu.l2_bytes / problem.bytes_min)
            place = self._pool.inputs.data_ptr(), self._pool.outputs.data_ptr()
            operands = Operands(problem, min(_SETS, wanted), *place, workspaces)
            works = []
            for x in able:
                work = self._work(problem, x, operands)
                if (x, layout, odd) not in self._checked:
                    try:
                        self._pool.check(problem, operands.addresses(0), work, self._gpu)
                    except WrongResultError:
                        print(
                            f"wrong: {layout} {problem.m} {problem.n} {problem.k} {self._choices[x].config}", flush=True
                        )
                        self._failing.update(self._jobs(problem, x))
                        continue
                    self._checked.add((x, layout, odd))
                else:
                    work()
                works.append((x, work))
            algorithms = []
            with contextlib.suppress(UnsupportedError):
                # Of a type that it does not take there is no time.
                for one in itertools.islice(stack.enter_context(self._lt.algorithms(problem, operands)), self._most):
                    try:
                        one.work()
                        algorithms.append(one)
                    except UnsupportedError:
                        algorithms.append(None)
            costs = costs_of(problem, [self._choices[x] for x, _ in works], self._rates)
            runs = [one for one in algorithms if one is not None]
            every = [work for _, work in works] + [one.work for one in runs]
            times = self._timer(every, [*costs, *[min(costs)] * len(runs)], operands.sets)
            self._gpu.wait()
        lt_times = dict(zip(map(id, runs), times[len(works) :], strict=True))
        shown = ("tile", "stages", "cluster_shape", "splitk_num")
        return {
            "record": "config_times",
            **named(problem),
            "sets": operands.sets,
            "times_us": {str(x): t for (x, _), t in zip(works, times, strict=False)},
            "cublaslt_us": [None if one is None else lt_times[id(one)] for one in algorithms],
            "cublaslt": [[x.description.get(key) for key in shown] if x is not None else None for x in algorithms],
        }

    def _jobs(self, problem: GemmProblem, x: int) -> set[str]:
        return {str(job) for job in jobs_of(problem, self._choices[x], self._gpu.arch)}

    def _work(self, problem: GemmProblem, x: int, operands: Operands) -> Rotation:
        if self._choices[x].workspaces(problem):
            return self._gpu.kernel(problem, self._choices[x], operands)  # type: ignore[arg-type]
        names, stream = ("a", "b", "d"), self._gpu._stream
        places = [tuple(operands.addresses(s)[name] for name in names) for s in range(operands.sets)]
        queue = repeated(problem, self._choices[x], names, places[0], 0)
        assert queue is not None
        return Rotation([lambda at=at: queue(at, stream) for at in places])  # type: ignore[misc]


def main() -> None:
    """Compile, measure, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=_TYPES, default="bfloat16", help="type of A and B")
    parser.add_argument("--count", type=int, default=600, help="random products at most")
    parser.add_argument("--seed", type=int, default=1, help="of the products")
    parser.add_argument(
        "--lost", type=Path, nargs="*", default=[], metavar="RECORD", help="what lost, instead of draws"
    )
    parser.add_argument("--below", type=float, default=0.95, help="of cuBLASLt's top heuristic, in those records")
    parser.add_argument("--similar", type=int, default=0, help="products like each of those, of the seed")
    parser.add_argument("--seconds", type=float, default=200, help="time for measuring, after compiling")
    parser.add_argument("--kernels", type=int, default=1200, help="most kernels to compile: those needed most")
    parser.add_argument("--compilers", type=int, help="processes that compile; one a CPU by default")
    parser.add_argument("--registered", action="store_true", help="no config that is not registered")
    parser.add_argument("--algorithms", type=int, default=8, help="most of cuBLASLt's that are timed")
    parser.add_argument("--odd", action="store_true", help="of float32 and float64 products of odd extents only")
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="only random products in these")
    parser.add_argument("--least", type=float, default=0.0, help="fewest operations of a random product")
    parser.add_argument("--outputs", type=float, default=math.inf, help="most elements of a random product's result")
    parser.add_argument("--products", type=Path, help="file of products, M N K and layout a line, instead of draws")
    parser.add_argument("--far", type=float, default=_FAR, help="time configs up to so many times the least prediction")
    parser.add_argument("--squares", action="store_true", help="squares of 256 to 4096 before the random products")
    parser.add_argument("--compile-only", action="store_true", help="fill the cache of compiled kernels")
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    began, device = time.time(), get_device()
    own = {
        "float32": SIMT_GEMM, "float64": FLOAT64_GEMM, "complex64": COMPLEX64_GEMM, "complex128": COMPLEX128_GEMM,
        "tf32": MMA_SYNC, "float16": MMA_SYNC,
    }  # fmt: skip
    spec = own.get(given.dtype, HOPPER_GEMM)
    if "complex" in given.dtype:
        configs = complex_candidates(spec)
    else:
        configs = {"float32": simt_candidates, "float64": float64_candidates}.get(given.dtype, candidates)()
    if given.registered:
        configs = spec.configs
    choices = [Choice(spec, one) for one in configs]
    if given.dtype == "float32":
        choices += [Choice(one, config) for one in (MN_MAJOR, REPACKED) for config in one.configs]
    if given.dtype in ("tf32", "float16"):
        choices = list(mma_sync_choices())
    if given.dtype in ("float32", "tf32", "float16"):
        choices = list(on_gpu(choices, rates_for(device.name, device.multiprocessors)))
    every = draws(given.seed, given.dtype)
    wanted = (
        one
        for one in every
        if (one.k % 2 or not given.odd)
        and one.layout in given.layouts.split(",")
        and one.m * one.n <= given.outputs
        and 2.0 * one.m * one.n * one.k >= given.least
    )
    found = list(itertools.islice(wanted, given.count))
    if given.lost:
        found = lost(given.lost, given.dtype, given.below, given.similar, given.seed)[: given.count]
    if given.products:
        found = listed(given.products, given.dtype)
    if given.squares:
        out, precision, *_ = _TYPES[given.dtype]
        squares = (gemm_problem(side, side, side, given.dtype, out, "nn") for side in _SQUARES)
        found[:0] = [dataclasses.replace(one, precision=Precision.parse(precision)) for one in squares]
    trials = [(one, plausible(one, choices, device, number, given.far)) for number, one in enumerate(found)]
    jobs: dict[str, Any] = {}
    needed: collections.Counter[str] = collections.Counter()
    for problem, numbers in trials:
        for x in numbers:
            for job in jobs_of(problem, choices[x], device.arch):
                jobs[str(job)] = job
                needed[str(job)] += 1
    kept = [name for name, _ in needed.most_common(given.kernels)]
    failing = set(jobs) - set(kept)
    points = sum(len(numbers) for _, numbers in trials)
    covered = sum(needed[name] for name in kept) / sum(needed.values())
    print(f"{len(choices)} configs, {len(trials)} products, {points} points; {len(kept)} of {len(jobs)} kernels "
          f"compiled, {covered:.3f} of the points", flush=True)  # fmt: skip
    for job, result in compile_all([jobs[name] for name in kept], given.compilers):
        error = isinstance(result, CompileError)
        if error or result.resources.spill_bytes > _MOST_SPILLED:
            failing.add(str(job))
            reason = str(result)[:200] if error else f"spills {result.resources.spill_bytes} bytes a thread"
            print(f"left out: {job}: {reason}", flush=True)
    print(f"{time.time() - began:.0f} s: compiled", flush=True)
    trials = [
        (problem, able)
        for problem, numbers in trials
        if (
            able := [
                x for x in numbers if not failing.intersection(map(str, jobs_of(problem, choices[x], device.arch)))
            ]
        )
    ]
    if given.compile_only:
        return
    words = [word for word, before in zip(sys.argv[1:], sys.argv, strict=False) if "--record" not in (word, before)]
    block = experiment(" ".join(["python", "benchmarks/experiments/config_times.py", *words]), device.pci_bus_id)
    with RecordFile(given.record, block) as file, bench_gpu() as gpu, gpu.cublaslt() as lt:
        file.write({
            "record": "configs", "kernel": spec.name, "kernels": [one.spec.name for one in choices],
            "configs": [one.config.as_dict() for one in choices],
        })  # fmt: skip
        session = Session(gpu, lt, trials[0][0].a.dtype.name, choices, failing, algorithms=given.algorithms)
        warm = time.time()
        while time.time() - warm < _WARM_UP:
            session.record(*trials[0])
        ratios, started, told = [], time.time(), time.time()
        for number, (problem, numbers) in enumerate(trials):
            if time.time() - started > given.seconds:
                print(f"the time is over: {len(trials) - number} products are left", flush=True)
                break
            record = session.record(problem, numbers)
            file.write(record)
            own = min(record["times_us"].values())
            first = next(iter(record["cublaslt_us"]), None)
            if first is not None:
                ratios.append(first / own)
            if time.time() - told > 5 and ratios:
                told = time.time()
                print(f"{number + 1} products, {told - began:.0f} s: best config against cuBLASLt's top heuristic "
                      f"{statistics.geometric_mean(ratios):.4f}", flush=True)  # fmt: skip
    if ratios:
        print(f"{len(ratios)} products: {statistics.geometric_mean(ratios):.4f}, least {min(ratios):.3f}")


if __name__ == "__main__":
    main()
