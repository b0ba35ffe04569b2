"""Times of configs for linear layers as models run them in CUDA graphs: behind PyTorch's kernels, weights from memory.

``python benchmarks/experiments/layer_times.py RESULTS_FOLDER --sizes 256,5632,2048 …``. Timed back to back, launches of
a product overlap (PDL) and its input is read again; in a model a kernel of PyTorch's has just written the input, and
the weights of other layers have passed through the L2 cache since. Here a graph holds pairs of such a kernel and a
layer, with weights that do not fit into the cache together; what it takes without the layers is subtracted. All
plausible configs of `hopper_gemm`, and `torch.mm`, are interleaved. ``--twice`` names pairs of layers that share an
input, the second of which is a dependent launch. Writes `gemm` records with ``behind``, for the config that dispatch
chooses and for the fastest, which `tools/shipped_tables.py` prefers. Needs an NVIDIA GPU, PyTorch and the compiler.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from gemmule.compiler.pool import Job, compile_all
from gemmule.core.errors import CompileError
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.rates_table import rates_for
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.gemm.spec import SPEC, extra_configs
from gemmule.lab.bench_records import timed, times
from gemmule.lab.experiment import experiment
from gemmule.lab.gemm_operation import GEMM
from gemmule.lab.products import gemm_problem
from gemmule.lab.protocol import turns
from gemmule.lab.records import RecordFile
from gemmule.runtime.device import get_device
from gemmule.runtime.direct import serial_queue
from gemmule.runtime.repeated import repeated

#: Bytes of all weights, and fewest of them; seconds of a sample, and rounds there and back.
_WEIGHTS, _FEWEST, _SAMPLE, _ROUNDS = 160 << 20, 10, 0.9e-3, 8
#: Registered and other configs that are tried, those predicted to be fastest.
_REGISTERED, _OTHERS = 26, 22
#: What an element may be off by, as a share of the largest.
_OFF = 0.02


class Layer:
    """Layers of one size in a graph: their weights, an input that a kernel writes, and results that one reads.

    Parameters
    ----------
    problem : GemmProblem
        The product.
    together : int
        How many layers share an input.
    """

    def __init__(self, problem: GemmProblem, together: int) -> None:
        m, n, k = problem.m, problem.n, problem.k
        kind = getattr(torch, problem.a.dtype.name)
        self.problem, self.together = problem, together
        count = max(math.ceil(_WEIGHTS / (n * k * kind.itemsize)), _FEWEST if n * k < _WEIGHTS // 4 else 3)
        self.count = math.ceil(count / together) * together
        self._source = torch.randn(m, k, device="cuda", dtype=kind)
        self._x = torch.empty_like(self._source)
        self._weights = [torch.randn(n, k, device="cuda", dtype=kind) / math.sqrt(k) for _ in range(self.count)]
        self._results = [torch.empty(m, n, device="cuda", dtype=kind) for _ in range(self.count)]
        self._after = torch.empty(m, n, device="cuda", dtype=kind)
        self._expected = self._source.float() @ self._weights[0].float().T

    def graph(self, layer: Callable[[Any, Any, Any], None], first: Callable[[Any, Any, Any], None]) -> Any:
        """Return a graph of layers, the first of each input by another function; all were called before."""

        def body() -> None:
            for at in range(0, self.count, self.together):
                torch.mul(self._source, 1.0, out=self._x)
                for number in range(at, at + self.together):
                    (first if number == at else layer)(self._x, self._weights[number], self._results[number])
                torch.mul(self._results[at], self._results[at + self.together - 1], out=self._after)

        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            body()
        current.wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            body()
        return graph

    def configured(self, config: Any) -> Any:
        """Return the graph of a config, whose result is checked; None where it is wrong."""
        given = self._x, self._weights[0], self._results[0]
        places = tuple(one.data_ptr() for one in given)
        queue = repeated(self.problem, Choice(SPEC, config), ("a", "b", "d"), places, 0)
        assert queue is not None
        serial = serial_queue(queue)

        def called(queue: Any) -> Callable[[Any, Any, Any], None]:
            return lambda x, w, d: queue(
                (x.data_ptr(), w.data_ptr(), d.data_ptr()), torch.cuda.current_stream().cuda_stream
            )

        self._results[0].fill_(math.nan)
        self._x.copy_(self._source)
        called(queue)(*given)
        off = (self._results[0].float() - self._expected).abs().max()
        if not off <= _OFF * self._expected.abs().max():
            print(f"wrong: {self.problem.m} {self.problem.n} {self.problem.k} {config}", flush=True)
            return None
        return self.graph(called(queue), called(serial))


def samples_of(graphs: list[Any], each: float) -> list[list[float]]:
    """Return seconds of a replay of each graph, interleaved; `each` is roughly what one takes."""
    found: list[list[float]] = [[] for _ in graphs]
    calls = max(3, round(_SAMPLE / each))
    for graph in graphs:
        graph.replay()
    for _ in range(_ROUNDS):
        queued = []
        for index in turns(len(graphs)):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graphs[index].replay()
            start.record()
            for _ in range(calls):
                graphs[index].replay()
            end.record()
            queued.append((index, start, end))
        torch.cuda.synchronize()
        for index, start, end in queued:
            found[index].append(start.elapsed_time(end) * 1e-3 / calls)
    return found


def candidates(problem: GemmProblem, device: Any) -> Iterator[tuple[float, Any]]:
    """Yield the predicted microseconds of configs, and the configs."""
    rates = rates_for(device.name, device.multiprocessors)
    for configs, most in ((SPEC.configs_on(rates), _REGISTERED), (extra_configs(), _OTHERS)):
        able = [one for one in configs if SPEC.why_not(problem, device.arch, one) is None]
        assert SPEC.costs is not None
        yield from sorted(zip(SPEC.costs(problem, able, rates), able, strict=True), key=lambda one: float(one[0]))[
            :most
        ]


def records_of(problem: GemmProblem, together: int, own: Choice, configs: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield the records of what dispatch chooses for a layer, and of the fastest config."""
    layer = Layer(problem, together)

    def mm(x: Any, w: Any, d: Any) -> None:
        torch.mm(x, w.T, out=d)

    def nothing(*_: Any) -> None:
        return

    pairs = [(config, graph) for config in configs if (graph := layer.configured(config)) is not None]
    each = layer.count * 2.5 * problem.flop / 1e15
    *found, theirs, rest = samples_of(
        [*(graph for _, graph in pairs), layer.graph(mm, mm), layer.graph(nothing, nothing)], each
    )
    base = statistics.median(rest)
    net = {config: [(one - base) / layer.count for one in each] for (config, _), each in zip(pairs, found, strict=True)}
    baseline = [(one - base) / layer.count for one in theirs]
    fastest = min(net, key=lambda config: statistics.median(net[config]))
    # What dispatch chooses may be of those that were not compiled.
    for config in dict.fromkeys(one for one in (own.config, fastest) if one in net):
        samples, chosen_by = net[config], "dispatch" if config == own.config else "search"
        yield {
            **timed(GEMM, problem, Choice(SPEC, config), chosen_by),
            "record": "layer",
            **times(samples, "graph"),
            "samples_us": [round(1e6 * one, 3) for one in samples],
            "behind": "torch.mul",
            "together": together,
            "yardstick_first_us": round(1e6 * statistics.median(baseline), 3),
            "yardstick_first_samples_us": [round(1e6 * one, 3) for one in baseline],
            "ratio": round(statistics.median(baseline) / statistics.median(samples), 4),
            "configs_tried": len(net),
        }


def main() -> None:
    """Compile, measure, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--sizes", nargs="+", required=True, metavar="M,N,K", help="rows, outputs and inputs")
    parser.add_argument("--twice", nargs="*", default=[], metavar="M,N,K", help="those of two layers with one input")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"])
    parser.add_argument("--workers", type=int, help="processes that compile; one a CPU by default")
    parser.add_argument("--compile-s", type=float, default=math.inf, help="seconds after which no more is compiled")
    parser.add_argument("--seconds", type=float, default=math.inf, help="seconds after which no layer begins")
    given = parser.parse_args()
    began, device = time.time(), get_device()
    tried = []
    for size in (*given.sizes, *given.twice):
        m, n, k = map(int, size.split(","))
        problem = gemm_problem(m, n, k, given.dtype, given.dtype, "nt")
        own = choose(problem, device.arch, multiprocessors=device.multiprocessors, chip=device.name)
        assert own.spec is SPEC, own.spec.name
        found = [config for _, config in sorted(candidates(problem, device), key=lambda one: one[0])]
        tried.append((problem, 2 if size in given.twice else 1, own, list(dict.fromkeys((own.config, *found)))))
    compiled = set()
    in_turns = itertools.chain.from_iterable(itertools.zip_longest(*(configs for *_, configs in tried)))
    jobs = {}
    for config in dict.fromkeys(one for one in in_turns if one is not None):
        jobs[Job(SPEC, config, SPEC.signature(tried[0][0], config), device.arch)] = config
    results = compile_all(jobs, given.workers)
    for job, result in results:
        if not isinstance(result, CompileError):
            compiled.add(jobs[job])
        if time.time() - began > given.compile_s:
            break
    results.close()  # type: ignore[attr-defined]
    print(f"{len(compiled)} of {len(jobs)} configs compiled, {time.time() - began:.0f} s", flush=True)
    words = " ".join(f"--{name} {' '.join(value)}" for name, value in vars(given).items() if name in ("sizes", "twice"))
    block = experiment(f"python benchmarks/experiments/layer_times.py RESULTS_FOLDER {words}", device.pci_bus_id)
    with RecordFile(given.results, block) as file:
        for problem, together, own, configs in tried:
            if time.time() - began > given.seconds:
                print(f"{problem.m},{problem.n},{problem.k} and others left out", flush=True)
                break
            for record in records_of(problem, together, own, [one for one in configs if one in compiled]):
                file.write(record)
                print(
                    f"{record['m']} x {record['n']} x {record['k']}, {record['chosen_by']}: {record['median_us']} us, "
                    f"{record['ratio']} of torch.mm's rate, {record['config']}", flush=True,
                )  # fmt: skip
    print(file.path)


if __name__ == "__main__":
    main()
