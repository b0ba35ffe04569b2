"""Random products on a GPU against float64: ``python benchmarks/random_problems.py --record benchmarks/results``.

Shapes from 0 to 5000, types, layouts, strides, alignments, batches, alpha and beta with their special values, and
epilogues are drawn from a seed, which is printed, and go through `gemmule.matmul` and `gemmule.gemm`. Outputs are
poisoned, and so is the memory around all arrays; what must not be read is NaN. Every element is held against a product
in float64, with a bound for each, integers exactly. A problem that fails is printed with the command that repeats it.

Kernels are compiled before, the ones that most problems need first, and a problem whose kernel was not compiled by then
is left out, and counted. Needs an NVIDIA GPU, PyTorch and the compiler; ``--executor host`` or ``vgpu`` needs no GPU.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.util
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from random_draw import draw
from random_workers import Planned, Setting, Verdict, Workers, check

from gemmule.compiler.pool import Job, compile_all
from gemmule.core.errors import CompileError

_TOLD, _MOST_TOLD = 5.0, 40


def by_use(planned: Planned) -> list[Job]:
    """Return kernels to compile: one of each name, types and epilogue first, then those that most problems need."""
    uses = collections.Counter(name for _, names in planned.kernels.values() for name in names)
    groups: dict[tuple[Any, ...], str] = {}
    ordered = [name for name, _ in uses.most_common()]
    for name in ordered:
        job = planned.jobs[name]
        signature = dict(job.signature)
        groups.setdefault((job.spec.name, signature.get("a"), signature.get("b"), signature.get("epilogue")), name)
    return [planned.jobs[name] for name in dict.fromkeys((*groups.values(), *ordered))]


def compiled(jobs: Sequence[Job], deadline: float, workers: int | None) -> tuple[set[str], list[str]]:
    """Compile until a deadline; return the names of what was compiled, and what the compiler refused."""
    done: set[str] = set()
    refused = []
    with contextlib.closing(compile_all(jobs, workers)) as results:  # type: ignore[type-var]
        for job, result in results:
            if isinstance(result, CompileError):
                refused.append(f"{job}: {result}")
            else:
                done.add(str(job))
            if time.time() > deadline:
                break
    return done, refused


class Tally:
    """What was found so far."""

    def __init__(self, count: int, kernels: Mapping[int, str], command: str) -> None:
        self.count, self._kernels, self._command = count, kernels, command
        self.checked, self.worst, self.failures = 0, 0.0, dict[int, str]()
        self.counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self._told = time.time()

    def add(self, verdicts: Sequence[Verdict]) -> None:
        """Count verdicts, and print those that failed."""
        for one in verdicts:
            self.checked += 1
            self.worst = max(self.worst, one.share)
            for what, name in {**one.labels, "kernel": self._kernels.get(one.index, "")}.items():
                self.counts[what][name] += 1
            if one.failure:
                self.fail(one.index, one.failure)
        if time.time() - self._told > _TOLD:
            self._told = time.time()
            print(f"{self.checked} of {self.count} checked, {len(self.failures)} wrong", flush=True)

    def fail(self, index: int, failure: str) -> None:
        """Keep a failure, and print how it is repeated."""
        self.failures[index] = failure
        if len(self.failures) <= _MOST_TOLD:
            kernel = self._kernels.get(index, "")
            print(f"WRONG: {self._command} --only {index}: {kernel}: {failure}", flush=True)


def options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="problems to check")
    parser.add_argument("--seed", type=int, help="fresh by default")
    parser.add_argument("--only", type=int, help="index of one problem to run alone")
    parser.add_argument("--most", type=int, default=5000, help="greatest extent")
    parser.add_argument("--seconds", type=float, default=3600, help="time for all; what was checked by then counts")
    parser.add_argument("--compile-seconds", type=float, default=1800, help="time for compiling")
    parser.add_argument("--drawn", type=float, default=1.6, help="problems drawn for each that is to be checked")
    parser.add_argument("--workers", type=int, default=10, help="processes that share the GPU")
    parser.add_argument("--compilers", type=int, help="processes that compile; one a CPU by default")
    parser.add_argument("--executor", choices=("host", "vgpu"), help="instead of the GPU")
    parser.add_argument("--no-cupy", action="store_true", help="no arrays of CuPy, which can be walked backwards")
    parser.add_argument("--record", type=Path, help="folder for a record file")
    return parser.parse_args()


def setting_of(given: argparse.Namespace) -> tuple[Setting, str]:
    """Return the run, and the command that repeats it."""
    seed = given.seed if given.seed is not None else secrets.randbelow(2**31)
    cupy = given.executor is None and not given.no_cupy and importlib.util.find_spec("cupy") is not None
    setting = Setting(seed, given.most, cupy, "cpu" if given.executor else "cuda", given.executor)
    command = f"python benchmarks/random_problems.py --seed {seed} --most {given.most}"
    command += f" --executor {given.executor}" if given.executor else ""
    return setting, command + ("" if cupy or given.executor else " --no-cupy")


def main() -> None:
    """Run the problems, and write a record."""
    given, began = options(), time.time()
    setting, command = setting_of(given)
    if given.only is not None:
        sys.exit(_alone(setting, given.only))
    print(f"seed {setting.seed}", flush=True)
    workers = Workers(setting, given.workers)
    indices = range(round(given.count * given.drawn))
    planned = workers.plan(indices, began + given.compile_seconds / 2)
    jobs = by_use(planned)
    print(f"{time.time() - began:.0f} s: {len(planned.kernels)} planned, {len(jobs)} kernels to compile", flush=True)
    done, refused = compiled(jobs, began + given.compile_seconds, given.compilers)
    ready = [index for index, (_, needed) in sorted(planned.kernels.items()) if done.issuperset(needed)]
    print(f"{time.time() - began:.0f} s: {len(done)} compiled, for {len(ready)} problems", flush=True)
    tally = Tally(min(given.count, len(ready)), {index: name for index, (name, _) in planned.kernels.items()}, command)
    for index, failure in planned.raised.items():
        tally.fail(index, failure)
    for failure in refused:
        print(f"not compiled: {failure[:400]}")
    for verdicts in workers.run(ready[: given.count], began + given.seconds):
        tally.add(verdicts)
    workers.end()
    seconds = round(time.time() - began, 1)
    record = {
        "record": "random_problems",
        "seed": setting.seed,
        "most": setting.most,
        "planned": len(planned.kernels),
        "checked": tally.checked,
        "wrong": len(tally.failures),
        "not_compiled": len(planned.kernels) - len(ready),
        "kernels_compiled": len(done),
        "worst_share": round(tally.worst, 4),
        "seconds": seconds,
        "by": {what: dict(names.most_common()) for what, names in tally.counts.items()},
        "failures": {str(index): failure for index, failure in list(tally.failures.items())[:_MOST_TOLD]},
    }
    print(f"{tally.checked} checked in {seconds} s, {len(tally.failures)} wrong, worst {tally.worst:.3f} of its bound")
    if given.record is not None:
        from gemmule.lab.experiment import experiment
        from gemmule.lab.records import write_records
        from gemmule.runtime.device import get_device

        bus = get_device().pci_bus_id if setting.executor is None else None
        print(write_records(given.record, experiment(command, bus), [record]))
    sys.exit(1 if tally.failures else 0)


def _alone(setting: Setting, index: int) -> int:
    problem = draw(setting.seed, index, most=setting.most, cupy=setting.cupy)
    print(problem.describe())
    (found,) = check(setting, [index])
    print(found.failure or f"right: greatest error {found.share:.3g} of its bound")
    return 1 if found.failure else 0


if __name__ == "__main__":
    main()
