"""Times of squares in the four layouts as untuned calls run them, beside cuBLASLt's: all of one size interleaved.

The four products of a size, and the algorithms that cuBLASLt's heuristic names for each, are timed in turns, in CUDA
graphs over rotating buffers, so that a drift of the clock meets all alike. Every result is held against float64 on some
rows. Records are as of `config_times.py`. Needs an NVIDIA GPU, PyTorch and the compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import time
from pathlib import Path
from typing import Any

from config_times import Session
from untuned_choices import Operands, jobs_of

from gemmule.compiler.pool import compile_all
from gemmule.core.errors import CompileError, UnsupportedError
from gemmule.dispatch.select import choose
from gemmule.lab.experiment import experiment
from gemmule.lab.gemm_operation import named
from gemmule.lab.products import LAYOUTS, gemm_problem
from gemmule.lab.records import RecordFile
from gemmule.runtime.bench import bench_gpu
from gemmule.runtime.device import get_device

#: Sizes of the L2 cache that all buffer sets have together, and most of them; seconds of load before the first figure;
#: and FLOP a microsecond that are expected, which decides how many calls a sample has.
_CACHES, _SETS, _WARM_UP, _RATE = 2, 256, 2.0, 5e7


class Layouts(Session):
    """One run."""

    def together(self, problems: list[Any]) -> list[dict[str, Any]]:
        """Return the records of products of one size, which have the numbers of their choices."""
        with self._gpu.workspaces() as workspaces, contextlib.ExitStack() as stack:
            wanted = math.ceil(_CACHES * self._gpu.l2_bytes / problems[0][0].bytes_min)
            place = self._pool.inputs.data_ptr(), self._pool.outputs.data_ptr()
            works, algorithms = [], []
            for problem, number in problems:
                operands = Operands(problem, min(_SETS, wanted), *place, workspaces)
                work = self._work(problem, number, operands)
                self._pool.check(problem, operands.addresses(0), work, self._gpu)
                found = []
                for one in itertools.islice(stack.enter_context(self._lt.algorithms(problem, operands)), self._most):
                    with contextlib.suppress(UnsupportedError):
                        one.work()
                        found.append(one)
                works.append(work)
                algorithms.append(found)
            every = works + [one.work for found in algorithms for one in found]
            m, n, k = problems[0][0].m, problems[0][0].n, problems[0][0].k
            times = iter(self._timer(every, [2.0 * m * n * k / _RATE + 2] * len(every), operands.sets))
            self._gpu.wait()
            own = [next(times) for _ in works]
            shown = ("tile", "stages", "cluster_shape", "splitk_num")
            return [
                {
                    "record": "config_times",
                    **named(problem),
                    "sets": operands.sets,
                    "times_us": {str(number): mine},
                    "cublaslt_us": [next(times) for _ in found],
                    "cublaslt": [[one.description.get(key) for key in shown] for one in found],
                }
                for (problem, number), mine, found in zip(problems, own, algorithms, strict=True)
            ]


def main() -> None:
    """Compile, measure, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="512,1023,1024,2048,4095,4096,8192", help="M = N = K, in this order")
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--algorithms", type=int, default=8, help="most of cuBLASLt's that are timed")
    parser.add_argument("--seconds", type=float, default=60, help="no further size after so many")
    parser.add_argument("--compilers", type=int, help="processes that compile; one a CPU by default")
    parser.add_argument("--compile-only", action="store_true", help="fill the cache of compiled kernels")
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    device = get_device()
    facts: dict[str, Any] = {"multiprocessors": device.multiprocessors, "chip": device.name, "tuned": False}
    sizes, layouts = list(map(int, given.sizes.split(","))), given.layouts.split(",")
    choices: list[Any] = []
    trials = []
    for size in sizes:
        trial = []
        for layout in layouts:
            problem = gemm_problem(size, size, size, given.dtype, given.dtype, layout)
            choice = choose(problem, device.arch, **facts)
            if choice not in choices:
                choices.append(choice)
            trial.append((problem, choices.index(choice)))
        trials.append(trial)
    jobs = {
        str(job): job for trial in trials for problem, x in trial for job in jobs_of(problem, choices[x], device.arch)
    }
    for job, result in compile_all(list(jobs.values()), given.compilers):
        if isinstance(result, CompileError):
            raise SystemExit(f"{job}: {result}")
    if given.compile_only:
        return
    command = f"python benchmarks/experiments/layout_times.py --sizes {given.sizes} --dtype {given.dtype}"
    block = experiment(command, device.pci_bus_id)
    with RecordFile(given.record, block) as file, bench_gpu() as gpu, gpu.cublaslt() as lt:
        file.write({
            "record": "configs", "kernel": choices[0].spec.name, "kernels": [one.spec.name for one in choices],
            "configs": [one.config.as_dict() for one in choices],
        })  # fmt: skip
        session = Layouts(gpu, lt, given.dtype, choices, set(), algorithms=given.algorithms)
        warm = time.time()
        while time.time() - warm < _WARM_UP:
            session.together(trials[min(3, len(trials) - 1)])
        started = time.time()
        for size, trial in zip(sizes, trials, strict=True):
            if time.time() - started > given.seconds:
                print(f"the time is over before {size}", flush=True)
                break
            records = session.together(trial)
            for one in records:
                file.write(one)
            own = [next(iter(one["times_us"].values())) for one in records]
            firsts = [one["cublaslt_us"][0] / mine for one, mine in zip(records, own, strict=True)]
            bests = [min(one["cublaslt_us"]) / mine for one, mine in zip(records, own, strict=True)]
            shown = ", ".join(
                f"{layout} {mine:.1f} us ({first:.3f}, {best:.3f})"
                for layout, mine, first, best in zip(layouts, own, firsts, bests, strict=True)
            )
            print(f"{size}: {shown}; slowest over fastest {max(own) / min(own):.4f}", flush=True)


if __name__ == "__main__":
    main()
