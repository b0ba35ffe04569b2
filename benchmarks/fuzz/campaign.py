"""Random problems on a GPU, a share for each kernel: ``python benchmarks/fuzz/campaign.py --seed 1 --out results``.

Templates are drawn from a seed, the kernel first, then types, shapes and layouts that dispatch gives to it. Their
kernels are compiled in processes; then processes that share the GPU check the problems, each with shapes, offsets,
scalars, values, outputs and a library of its own, through `gemmule.gemm`, `matmul`, `grouped_gemm`, `scaled_gemm`,
`quantize`, `transpose` and `matrix_transpose`, and functions of `gemmule.torch`. (Kernels of block lower triangles,
which only streamed products use, run by dispatch and launch alone.) Outputs and the memory around all arrays are
poisoned; what must not be read is NaN. Every element is held against a reference in float64, or of about 120 bits for
float64, with a bound of its own; integers, transposes and scales of quantisation exactly.

A problem that fails is printed as the command that repeats it. Writes a `check` record for each kernel that ran, after
the time is over for the problems done by then. ``--executor vgpu`` or ``cpu`` needs no GPU.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.util
import secrets
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from planning import Planned, Setting, Target, problem_numbered
from recipes import KERNELS, KINDS
from workers import Verdict, Workers, check, prepare_process

from gemmule.compiler.pool import Job, compile_all
from gemmule.core.errors import CompileError, GemmuleError

_PROGRESS_SECONDS, _MOST_PRINTED, _MOST_RECORDED = 5.0, 40, 5
#: Greatest extent, and templates, where kernels run on the CPU.
_SMALL, _FEW = 40, len(KINDS)


def pool(planned: Iterable[Planned]) -> list[Job]:
    """Return the kernels to compile: those that most templates need first, one of each name before the others."""
    jobs: dict[str, Job] = {}
    uses: collections.Counter[str] = collections.Counter()
    for one in planned:
        jobs |= one.jobs
        uses.update(one.jobs.keys())
    ordered = [name for name, _ in uses.most_common()]
    first = {jobs[name].spec.name: name for name in reversed(ordered)}
    return [jobs[name] for name in dict.fromkeys((*first.values(), *ordered))]


def compiled(jobs: Sequence[Job], processes: int | None) -> list[str]:
    """Compile kernels; return what the compiler refused."""
    with contextlib.closing(compile_all(jobs, processes)) as results:  # type: ignore[type-var]
        return [f"{job}: {result}" for job, result in results if isinstance(result, CompileError)]


class Tally:
    """What was found so far."""

    def __init__(self, problems: int, command: str) -> None:
        self.problems, self._command = problems, command
        self.done, self.wrong = collections.Counter[str](), collections.defaultdict[str, list[str]](list)
        self.worst = collections.defaultdict[str, float](float)
        self.by: dict[str, dict[str, collections.Counter[str]]] = {}
        self._printed = time.time()

    @property
    def total(self) -> int:
        """Problems that were checked."""
        return sum(self.done.values())

    @property
    def failures(self) -> int:
        """Problems that are wrong."""
        return sum(map(len, self.wrong.values()))

    def add(self, verdicts: Sequence[Verdict]) -> None:
        """Count verdicts, and print the failures."""
        for one in verdicts:
            self.done[one.kernel] += 1
            self.worst[one.kernel] = max(self.worst[one.kernel], one.share)
            counts = self.by.setdefault(one.kernel, {})
            for what, name in one.labels.items():
                counts.setdefault(what, collections.Counter())[name] += 1
            if one.failure:
                line = f"{self._command} --only {one.index}: {one.kernel}: {one.failure}"
                if self.failures < _MOST_PRINTED:
                    print(f"WRONG: {line}", flush=True)
                self.wrong[one.kernel].append(line)
        if time.time() - self._printed > _PROGRESS_SECONDS:
            self._printed = time.time()
            print(f"{self.total} of {self.problems} checked, {self.failures} wrong", flush=True)

    def records(self, common: dict[str, Any]) -> list[dict[str, Any]]:
        """Return a record for each kernel, those that were wanted and did not run included."""
        found = []
        for kernel in sorted({*self.done, *KERNELS}):
            done, wrong = self.done[kernel], self.wrong[kernel]
            found.append({
                "record": "check", "what": f"fuzz {kernel or 'none'}", "passed": done - len(wrong),
                "failed": len(wrong), "skipped": 0, "problems": done, "wrong": len(wrong),
                "worst_share": round(self.worst[kernel], 4), **common,
                "by": {what: dict(names.most_common()) for what, names in self.by.get(kernel, {}).items()},
                "failures": wrong[:_MOST_RECORDED],
            })  # fmt: skip
        return found


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=50_000, help="problems to check")
    parser.add_argument("--seed", type=int, help="fresh by default")
    parser.add_argument("--only", type=int, metavar="N", help="run problem N of the seed alone")
    parser.add_argument("--seconds", type=float, default=3600, help="time for all of it; the problems done count")
    parser.add_argument("--templates", type=int, help="sketches that problems are made of; bounds what is compiled")
    parser.add_argument("--workers", type=int, default=14, help="processes that share the GPU")
    parser.add_argument("--compilers", type=int, help="processes that compile; one for each CPU by default")
    parser.add_argument("--executor", choices=("cpu", "vgpu"), help="instead of the GPU")
    parser.add_argument("--libraries", nargs="+", metavar="NAME", help="torch and others of cupy, jax, numpy")
    parser.add_argument("--prepare", action="store_true", help="compile, and check nothing")
    parser.add_argument("--out", type=Path, help="folder for the record file and the list of failures")
    return parser.parse_args()


def setting_of(given: argparse.Namespace) -> tuple[Setting, str]:
    """Return the run, and the command that repeats it."""
    seed = given.seed if given.seed is not None else secrets.randbelow(2**31)
    wanted = given.libraries or ("torch", "cupy", "jax", "numpy")
    packages = [name for name in wanted if importlib.util.find_spec(name) is not None]
    libraries = tuple(name for name in packages if name != "cupy" or given.executor is None)
    small = given.executor is not None
    default = Setting(seed)
    setting = Setting(
        seed, given.templates or (_FEW if small else default.templates), _SMALL if small else default.most,
        libraries, Target.here(given.executor),
    )  # fmt: skip
    command = f"python benchmarks/fuzz/campaign.py --seed {seed} --templates {setting.templates}"
    command += f" --libraries {' '.join(libraries)}"
    return setting, command + (f" --executor {given.executor}" if small else "")


def main() -> None:
    """Run the problems, and write the records."""
    given, began = options(), time.time()
    try:
        setting, command = setting_of(given)
    except GemmuleError as error:
        sys.exit(f"{error}; without a GPU pass --executor vgpu or --executor cpu")
    if given.only is not None:
        sys.exit(_alone(setting, given.only))
    print(command, flush=True)
    workers = Workers(setting, given.workers)
    planned = workers.plan()
    jobs = pool(planned) if setting.target.executor != "cpu" else []
    drawn = collections.Counter(one.kernel for one in planned)
    print(f"{time.time() - began:.0f} s: {len(planned)} templates, {len(jobs)} kernels to compile: {dict(drawn)}")
    refused = compiled(jobs, given.compilers)
    for failure in refused:
        print(f"not compiled: {failure[:400]}")
    prepared = round(time.time() - began, 1)
    print(f"{prepared} s: {len(jobs) - len(refused)} kernels compiled", flush=True)
    tally = Tally(given.problems, command)
    if not given.prepare:
        for verdicts in workers.run(given.problems, began + given.seconds):
            tally.add(verdicts)
    seconds = round(time.time() - began, 1)
    print(f"{tally.total} of {given.problems} checked in {seconds} s, {tally.failures} wrong")
    for kernel in sorted(tally.done):
        print(f"{kernel:24} {tally.done[kernel]:7} {len(tally.wrong[kernel]):5} wrong, worst {tally.worst[kernel]:.3f}")
    if given.out is not None:
        common = {
            "seed": setting.seed, "templates": setting.templates, "wanted": given.problems, "checked": tally.total,
            "kernels_compiled": len(jobs) - len(refused), "prepared_s": prepared, "seconds": seconds,
            "executor": setting.target.executor or "gpu",
        }  # fmt: skip
        _write(given.out, command, tally, common)
    workers.end()
    sys.exit(1 if tally.failures else 0)


def _write(out: Path, command: str, tally: Tally, common: dict[str, Any]) -> None:
    from gemmule.lab.experiment import experiment
    from gemmule.lab.records import write_records
    from gemmule.runtime.device import get_device

    bus = get_device().pci_bus_id if common["executor"] == "gpu" else None
    print(write_records(out, experiment(command, bus), tally.records(common)))
    if tally.failures:
        lines = [line for of_kernel in tally.wrong.values() for line in of_kernel]
        (out / f"wrong-{common['seed']}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _alone(setting: Setting, index: int) -> int:
    prepare_process()
    print(problem_numbered(setting, index).describe())
    (found,) = check(setting, [index])
    print(f"{found.kernel}: {found.failure or f'right: greatest error {found.share:.3g} of its bound'}")
    return 1 if found.failure else 0


if __name__ == "__main__":
    main()
