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
import itertools
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from config_candidates import choices_of
from config_products import TYPES, draws, listed, lost, squares
from untuned_choices import Operands, Pool, jobs_of

from gemmule.compiler.pool import compile_all
from gemmule.core.errors import CompileError, UnsupportedError, WrongResultError
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.rates_table import rates_for
from gemmule.kernels.hopper.gemm.spec import SPEC as HOPPER_GEMM
from gemmule.kernels.hopper.refusals import HOPPER
from gemmule.kernels.mma_sync.spec import SPEC as MMA_SYNC
from gemmule.kernels.simt.gemm.spec import SPEC as SIMT_GEMM
from gemmule.lab import protocol
from gemmule.lab.experiment import experiment
from gemmule.lab.gemm_operation import named
from gemmule.lab.products import LAYOUTS
from gemmule.lab.records import RecordFile
from gemmule.runtime.bench import BenchGpu, bench_gpu
from gemmule.runtime.device import get_device
from gemmule.runtime.repeated import repeated
from gemmule.runtime.rotation import Rotation

#: Configs up to so many times the least prediction, and how many of them; tiles whose other clusters are tried, and
#: random ones among the rest up to a larger factor. Of other kernels all are timed up to `_FAR` times the least.
_FACTOR, _PLAUSIBLE, _TILES, _DRAWN, _DRAWN_FACTOR, _FAR = 1.25, 24, 4, 4, 2.0, 3.0
_OTHERS = {MMA_SYNC.name: (1.8, 24), SIMT_GEMM.name: (1.25, 8)}
#: The same of those whose warps share tiles along K, within their own least.
_SHARED = 1.6, 9
#: Seconds of a sample, rounds there and back, sizes of the L2 cache that all buffer sets have together, most of them,
#: and seconds of load before the first product.
_SAMPLE, _ROUNDS, _CACHES, _SETS, _WARM_UP = 0.7e-3, 2, 2, 256, 2.0
#: Kernels that spill more bytes a thread are left out.
_MOST_SPILLED = 24


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


def _products(given: argparse.Namespace) -> list[GemmProblem]:
    """Return the products that the options ask for."""
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
        found[:0] = squares(given.dtype)
    return found


def main() -> None:
    """Compile, measure, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=TYPES, default="bfloat16", help="type of A and B")
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
    choices = choices_of(given.dtype, rates_for(device.name, device.multiprocessors), registered=given.registered)
    found = _products(given)
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
            "record": "configs", "kernel": choices[0].spec.name, "kernels": [one.spec.name for one in choices],
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
