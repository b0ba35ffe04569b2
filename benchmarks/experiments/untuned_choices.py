"""What the cost model takes of products that nobody tuned, beside the best of a search.

For random sizes and types, all registered configs of the kernel that takes the product are timed in turns, and the
fastest of them once more beside what the cost model takes, in rotating buffers. Every config's result is held against
float64 on some rows. Sizes come in an order of their own, so that a run that its time limit ended is a fair sample;
``--first`` goes on where it ended. Needs an NVIDIA GPU, PyTorch and the compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gemmule.compiler.pool import Job, compile_all
from gemmule.core.dtype import FLOAT8_SEEN, Kind, Precision
from gemmule.core.errors import CompileError, WrongResultError
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.rates_table import rates_for
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.lab import protocol
from gemmule.lab.bench_records import us
from gemmule.lab.experiment import experiment
from gemmule.lab.gemm_operation import named
from gemmule.lab.products import gemm_problem, output_type
from gemmule.lab.records import RecordFile
from gemmule.lab.timing import estimate
from gemmule.lab.tuning.cells import preset
from gemmule.lab.tuning.search import candidates
from gemmule.runtime.bench import BenchGpu, bench_gpu
from gemmule.runtime.device import Device, get_device
from gemmule.runtime.workspaces import Workspaces

MMA_SYNC = next(spec for spec in REGISTRY if spec.name == "mma_sync_gemm")
#: Types and layouts, with how many of 100 products have them, and the most operations of one.
KINDS = (
    *(("bfloat16", layout, 16, 4e12) for layout in ("nn", "nt", "tn", "tt")),
    ("float16", "nt", 16, 4e12),
    ("float32-tf32", "nt", 6, 1e12),
    ("int8", "nt", 6, 4e12),
    ("float64", "nn", 4, 1e11),
    ("float32", "nn", 4, 1e11),
)
#: Share of products whose extents are no multiples of 8.
_RAGGED = 0.15
_RAGGED_KINDS = (("float16", "nt"), ("bfloat16", "tn"))
_INPUT_BYTES, _OUTPUT_BYTES = 6 << 30, 4 << 30
#: Configs predicted to take so many times the least are not tried; of the others so many are timed again.
_FACTOR, _AGAIN = 3.0, 3
#: Buffer sets and seconds of a sample, of the first look and of the second, and samples there and back.
_LOOK, _TIMED = (16, 0.6e-3, 1), (128, 1.5e-3, 4)
_ROWS, _ALIGNMENT, _LATE, _ESTIMATES = 48, 256, 1e-4, 3


def products(count: int, seed: int, *, ragged_only: bool = False) -> list[GemmProblem]:
    """Return random products in random order; or such whose lines the copy engine does not take."""
    sizes = list(preset(f"random:{count * 2}:{seed}"))
    numbers = random.Random(seed)  # noqa: S311  # sizes, no secrets
    numbers.shuffle(sizes)
    found = []
    for size in sizes:
        dtype, layout, _, most = numbers.choices(KINDS, [share for _, _, share, _ in KINDS])[0]
        if ragged_only:
            dtype, layout = numbers.choice(_RAGGED_KINDS)
        ragged = dtype in ("bfloat16", "float16") and (ragged_only or numbers.random() < _RAGGED)
        m, n, k = (extent - ragged * numbers.randrange(8) for extent in size)
        if 2.0 * m * n * k <= most and len(found) < count:
            found.append(product(m, n, k, dtype, layout))
    return found


def product(m: int, n: int, k: int, dtype: str, layout: str) -> GemmProblem:
    """Return a product of compact matrices."""
    kind, _, precision = dtype.partition("-")
    plain = gemm_problem(m, n, k, kind, output_type(kind, None), layout)
    return dataclasses.replace(plain, precision=Precision.parse(precision or None))


def cells() -> list[GemmProblem]:
    """Return the products that tables are tuned for."""
    return [product(*size, "bfloat16", "nn") for size in preset("cells")]


@dataclasses.dataclass(frozen=True)
class Trial:
    """A product, what the cost model takes, and what is tried beside it."""

    problem: GemmProblem
    taken: Choice
    tried: tuple[Choice, ...]


def jobs_of(problem: GemmProblem, choice: Choice, arch: Any) -> Iterator[Job]:
    """Yield what must be compiled."""
    chain, _ = choice.launches(problem)
    for one in chain:
        yield Job(one.spec, one.config, one.spec.signature(one.problem, one.config), arch)


def trial(problem: GemmProblem, device: Device) -> Trial:
    """Return what is tried for a product."""
    arch = device.arch
    facts: dict[str, Any] = {"multiprocessors": device.multiprocessors, "chip": device.name, "tuned": False}
    taken = choose(problem, arch, **facts)
    rates = rates_for(device.name, device.multiprocessors)
    found = candidates(problem, arch, REGISTRY, rates, factor=_FACTOR, most=99, extra_configs=False)
    # Of a kernel without a cost model, one config.
    found = tuple(x for x in found if x.spec.cost is not None)
    if any(x.spec.next_kernel is not None for x in found):
        found += (choose(problem, arch, (MMA_SYNC,), **facts),)
    every = {(one.spec.name, one.config): one for one in (*found, taken)}
    return Trial(problem, taken, tuple(every.values()))


class Operands:
    """Buffer sets of one product in memory that all products share: random inputs, and outputs beside them."""

    def __init__(self, problem: GemmProblem, sets: int, inputs: int, outputs: int, workspaces: Workspaces) -> None:
        size = {name: x.rows * x.cols * x.dtype.itemsize for name, x in problem.operands().items()}
        size = {name: -(-nbytes // _ALIGNMENT) * _ALIGNMENT for name, nbytes in size.items()}
        most = min(_INPUT_BYTES // (size["a"] + size["b"]), _OUTPUT_BYTES // size["d"])
        self.sets, self.workspaces = max(min(sets, most), 1), workspaces
        self._size, self._inputs, self._outputs = size, inputs, outputs

    def addresses(self, index: int) -> dict[str, int]:
        """Return the operands' addresses in a set."""
        a = self._inputs + index * (self._size["a"] + self._size["b"])
        return {"a": a, "b": a + self._size["a"], "d": self._outputs + index * self._size["d"]}


class Pool:
    """Memory of PyTorch with random values of one type."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self.inputs = torch.empty(_INPUT_BYTES, dtype=torch.uint8, device="cuda")
        self.outputs = torch.empty(_OUTPUT_BYTES, dtype=torch.uint8, device="cuda")
        self._filled = ""

    def fill(self, dtype: str) -> None:
        """Fill the inputs with random values of a type."""
        if dtype != self._filled:
            kind, torch = getattr(self._torch, dtype), self._torch
            part = self.inputs.view(kind)
            for one in part.split(1 << 28):
                if dtype == "int8":
                    one.random_(-128, 128)
                elif kind.itemsize == 1:
                    one.copy_(torch.randn(one.shape, device="cuda"))
                else:
                    one.normal_()
            torch.cuda.synchronize()
            self._filled = dtype

    def view(self, memory: Any, matrix: Any, address: int) -> Any:
        """Return a matrix as PyTorch has it."""
        typed = memory.view(getattr(self._torch, matrix.dtype.name))
        first = (address - memory.data_ptr()) // matrix.dtype.itemsize
        return typed.as_strided((matrix.rows, matrix.cols), (matrix.row_stride, matrix.col_stride), first)

    def check(self, problem: GemmProblem, addresses: dict[str, int], work: Any, gpu: BenchGpu) -> None:
        """Run into poisoned memory, and hold some rows against float64."""
        torch = self._torch
        a, b = (self.view(self.inputs, matrix, addresses[x]) for x, matrix in (("a", problem.a), ("b", problem.b)))
        d = self.view(self.outputs, problem.d, addresses["d"])
        d.view(torch.uint8).fill_(0xFF)
        torch.cuda.synchronize()
        work()
        gpu.wait()
        rows = torch.unique(torch.linspace(0, problem.m - 1, _ROWS, device="cuda").long())
        double = torch.complex128 if a.is_complex() else torch.float64
        some, wide = a[rows].to(double), b.to(double)
        exact, got = some @ wide, d[rows].to(double)
        bound = torch.zeros_like(exact.abs())
        if problem.a.dtype.kind is not Kind.INTEGER:
            unit = 2.0**-11 if problem.precision.value == "tf32" else 0.0
            # The reference has errors too, where it is no more exact; of complex numbers a part is a sum of 2 K.
            twice = problem.a.dtype.part.itemsize == 8
            terms = problem.k * (2 if a.is_complex() else 1)
            sums = (terms + 3) * problem.accumulator.unit_roundoff * (2 if twice else 1)
            sums += FLOAT8_SEEN if problem.precision is Precision.FLOAT8 else 0.0
            bound = (sums + 2 * unit) * 1.01 * (some.abs() @ wide.abs())
            bound += problem.d.dtype.unit_roundoff * exact.abs() * 1.01
        if not bool(((got - exact).abs() <= bound).all()):
            raise WrongResultError("a result is off by more than its bound")


def times(gpu: BenchGpu, works: Sequence[Any], sets: int, seconds: float, rounds: int) -> list[list[float]]:
    """Return samples of works in turns, there and back, of graphs of calls."""
    # A call that the host was late with would be taken for a slow one, and be timed call by call, at the host's pace.
    rough = [min(estimate(gpu, work) for _ in range(_ESTIMATES)) for work in works]
    graph = min(rough) < _LATE
    samples: list[list[float]] = [[] for _ in works]
    with contextlib.ExitStack() as stack:
        watches = []
        for work, one in zip(works, rough, strict=True):
            calls = max(1, min(round(seconds / one), 400))
            calls = calls if calls < sets else -(-calls // sets) * sets
            watches.append(stack.enter_context(gpu.stopwatch(work, calls, graph=graph)))
        for watch in watches[:1]:
            watch.queue()()
        for _ in range(rounds):
            queued = [(index, watches[index].queue()) for index in protocol.turns(len(works))]
            for index, seconds_of in queued:
                samples[index].append(seconds_of())
    return samples


def measured(gpu: BenchGpu, pool: Pool, one: Trial, failing: set[str]) -> dict[str, Any] | None:
    """Return the record of a product, or None where nothing of it runs."""
    problem = one.problem
    pool.fill(problem.a.dtype.name)
    looks: list[tuple[float, int]] = []
    with gpu.workspaces() as workspaces:

        def works_of(choices: Sequence[Choice], most: int) -> tuple[list[Any], Operands]:
            wanted = protocol.buffer_sets(problem.bytes_min, gpu.l2_bytes)
            place = pool.inputs.data_ptr(), pool.outputs.data_ptr()
            operands = Operands(problem, min(most, wanted), *place, workspaces)
            return [gpu.kernel(problem, choice, operands) for choice in choices], operands  # type: ignore[arg-type]

        able = [x for x in one.tried if not failing.intersection(map(str, jobs_of(problem, x, gpu.arch)))]
        if one.taken not in able:
            return None
        sets, seconds, rounds = _LOOK
        works, operands = works_of(able, sets)
        for work in works:
            # The first call is of the first set.
            pool.check(problem, operands.addresses(0), work, gpu)
        looked = times(gpu, works, operands.sets, seconds, rounds)
        looks = sorted((statistics.median(samples), number) for number, samples in enumerate(looked))
        again = [able[number] for _, number in looks[:_AGAIN]]
        again += [one.taken] if one.taken not in again else []
        sets, seconds, rounds = _TIMED
        works, operands = works_of(again, sets)
        for work in works:
            work()
        timed = [statistics.median(samples) for samples in times(gpu, works, operands.sets, seconds, rounds)]
        gpu.wait()
    best = min(range(len(again)), key=timed.__getitem__)
    own = again.index(one.taken)
    return {
        "record": "untuned",
        **named(problem),
        "kernel": one.taken.spec.name,
        "config": one.taken.config.as_dict(),
        "median_us": us(timed[own]),
        "best_kernel": again[best].spec.name,
        "best_config": again[best].config.as_dict(),
        "best_us": us(timed[best]),
        "share": round(timed[best] / timed[own], 4),
        "sets": operands.sets,
        "looked": [
            {"kernel": able[i].spec.name, "config": able[i].config.as_dict(), "median_us": us(t)} for t, i in looks
        ],
    }


def main() -> None:
    """Measure, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="random products")
    parser.add_argument("--first", type=int, default=0, help="number of the first to measure")
    parser.add_argument("--seed", type=int, default=1, help="of the sizes")
    parser.add_argument("--ragged", action="store_true", help="only products whose lines are no whole 16 bytes")
    parser.add_argument("--cells", action="store_true", help="the tuned cells in the place of random products")
    parser.add_argument("--seconds", type=float, default=3600, help="time for all")
    parser.add_argument("--compilers", type=int, help="processes that compile; one a CPU by default")
    parser.add_argument("--compile-only", action="store_true", help="fill the cache of compiled kernels")
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    began = time.time()
    device = get_device()
    found = (cells() if given.cells else products(given.count, given.seed, ragged_only=given.ragged))[given.first :]
    trials = [trial(problem, device) for problem in found]
    jobs = {str(job): job for one in trials for x in one.tried for job in jobs_of(one.problem, x, device.arch)}
    print(f"{len(trials)} products, {len(jobs)} kernels to compile", flush=True)
    failing = set()
    for job, result in compile_all(jobs.values(), given.compilers):
        if isinstance(result, CompileError):
            failing.add(str(job))
            print(f"left out: {job}: {str(result)[:200]}")
    print(f"{time.time() - began:.0f} s: compiled", flush=True)
    if given.compile_only:
        return
    # Where the record lies says nothing of the run.
    words = [word for word, before in zip(sys.argv[1:], sys.argv, strict=False) if "--record" not in (word, before)]
    block = experiment(" ".join(["python", "benchmarks/experiments/untuned_choices.py", *words]), device.pci_bus_id)
    shares, told = [], time.time()
    with RecordFile(given.record, block) as file, bench_gpu() as gpu:
        pool = Pool()
        # Products of one type at a time: the inputs are filled less often.
        for number, one in enumerate(trials):
            if time.time() - began > given.seconds:
                print(f"{len(trials) - number} products are left: --first {given.first + number}")
                break
            record = measured(gpu, pool, one, failing)
            if record is not None:
                file.write(record)
                shares.append(record["share"])
            if time.time() - told > 5:
                told = time.time()
                print(f"{len(shares)}: {statistics.geometric_mean(shares):.4f}, least {min(shares):.3f}", flush=True)
    print(f"{len(shares)} products: geometric mean {statistics.geometric_mean(shares):.4f}, least {min(shares):.3f}")


if __name__ == "__main__":
    main()
