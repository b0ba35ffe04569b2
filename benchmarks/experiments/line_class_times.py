"""Times of `hopper_gemm_small_repacked` in every config, beside the kernels that calls chose before and cuBLASLt.

For random products of odd extents, most of one small extent, the copy of the small operand and the product are timed in
CUDA graphs over rotating buffers, interleaved with what is chosen without that kernel and with cuBLASLt's
algorithms. Needs an NVIDIA GPU, PyTorch and the compiler.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import random
import sys
import time
from pathlib import Path
from typing import Any

from config_times import Session
from untuned_choices import jobs_of

from gemmule.compiler.pool import compile_all
from gemmule.core.errors import CompileError
from gemmule.core.launch import Launch, TensorMapParam
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.gemm_kernels import GEMM_KERNELS
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.gemm_line_classes.spec import SPEC as LINE_CLASSES
from gemmule.kernels.hopper.gemm_line_classes.spec import oriented
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as REPACKED
from gemmule.kernels.hopper.gemm_small_repacked import spec as small_repacked
from gemmule.kernels.hopper.next_kernel import NextProduct
from gemmule.kernels.hopper.refusals import HOPPER
from gemmule.lab.experiment import experiment
from gemmule.lab.products import LAYOUTS, gemm_problem
from gemmule.lab.records import RecordFile

_CHIP, _SMS = "NVIDIA H200", 132
_WARM_UP = 1.5
_NEW = (LINE_CLASSES.name, small_repacked.SPEC.name)


def _log(numbers: random.Random, least: float, most: float) -> int:
    return round(math.exp(numbers.uniform(math.log(least), math.log(most)))) | 1


def products(seed: int, counts: tuple[int, ...], dtype: str, long: int) -> list[tuple[str, GemmProblem]]:
    """Return products of a small M or N, of a small K, and others, and the kind of each."""
    numbers, found = random.Random(seed), []  # noqa: S311  # sizes, no secrets
    for kind, count, least, most in (("skinny", counts[0], 17, 160), ("middle", counts[1], 160, 700)):
        for number in range(count):
            small, large, k = _log(numbers, least, most), _log(numbers, long, 8192), _log(numbers, long, 8192)
            m, n = (large, small) if number % 2 else (small, large)
            found.append((kind, (m, n, k), LAYOUTS[number // 2 % 4]))
    for _ in range(counts[2]):
        sizes = _log(numbers, 500, 8192), _log(numbers, 500, 8192), _log(numbers, 65, 160)
        found.append(("short", sizes, numbers.choice(LAYOUTS)))
    found += [
        ("any", tuple(_log(numbers, 64, 8192) for _ in range(3)), numbers.choice(LAYOUTS)) for _ in range(counts[3])
    ]
    numbers.shuffle(found)
    return [(kind, gemm_problem(*sizes, dtype, dtype, layout)) for kind, sizes, layout in found]


def _promoted(problem: GemmProblem, config: Any) -> Launch:
    """Return the launch recipe with an L2 promotion of 256 bytes of the large operand."""
    recipe, large = LINE_CLASSES.launch(problem, config), oriented(problem)[2]
    params = (
        dataclasses.replace(one, promotion=256) if isinstance(one, TensorMapParam) and one.operand == large else one
        for one in recipe.params
    )
    return dataclasses.replace(recipe, params=tuple(params))


@functools.cache
def _product(config: Any, promoted: bool) -> NextProduct:
    spec = dataclasses.replace(LINE_CLASSES, configs=(config,))
    return NextProduct(small_repacked._prepared, (dataclasses.replace(spec, launch=_promoted) if promoted else spec,))


@dataclasses.dataclass(frozen=True)
class Next:
    """The product in one config; can be pickled."""

    config: Any
    promoted: bool

    def __call__(self, problem: GemmProblem, config: Any, gpu: Any) -> Any:
        """Return the next kernel, as `KernelSpec.next_kernel`."""
        del config
        return _product(self.config, self.promoted).kernel(problem, gpu)


@functools.cache
def with_config(config: Any, promoted: bool = False) -> Choice:
    """Return the choice whose product has that config."""
    spec = small_repacked.SPEC
    spec = dataclasses.replace(spec, next_kernel=Next(config, promoted), configs=spec.configs[:1], build=REPACKED.build)
    return Choice(spec, spec.default)


def former_choice(problem: GemmProblem) -> Choice:
    """Return what is chosen without that kernel."""
    registry = tuple(one for one in GEMM_KERNELS if one.name not in _NEW)
    return choose(problem, HOPPER, registry, multiprocessors=_SMS, chip=_CHIP, tuned=False)


def trials(problem: GemmProblem, former: bool) -> dict[str, Choice]:
    """Return what is timed for a product, by name."""
    found = {"chosen": former_choice(problem)}
    if former or small_repacked.SPEC.is_refused(problem, HOPPER):
        return found
    small, k_tiles = min(problem.m, problem.n), -(-problem.k // 64)
    for config in LINE_CLASSES.configs:
        if (config.tile_m == 128) == (small <= 64) or config.cluster_k > k_tiles / 2:
            continue
        if config.cluster_m > 1 and (small <= 128 or (config.cluster_m > 2 and small <= 256)):
            continue
        ctas = LINE_CLASSES.launch(small_repacked._prepared(problem).problem, config).grid[0]
        if ctas < (48 if config.cluster_k < 8 else 16) or (config.cluster_k > 1 and ctas > 200 * config.cluster_k):
            continue
        name = f"{config.tile_m}x{config.tile_n}s{config.stages}m{config.cluster_m}k{config.cluster_k}"
        found[name] = with_config(config)
        if config.tile_n in (128, 192) and config.cluster_k in (2, 4) and config.cluster_m == 1:
            found[name + "p256"] = with_config(config, True)
    return found


def choices(problem: GemmProblem) -> dict[str, Choice]:
    """Return what is chosen without that kernel and, where it differs, with it."""
    found = {"chosen": former_choice(problem)}
    now = choose(problem, HOPPER, multiprocessors=_SMS, chip=_CHIP, tuned=False)
    return found | {"now": now} if now.spec.name in _NEW else found


def main() -> None:
    """Compile, measure, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=2711)
    parser.add_argument("--counts", default="20,8,4,8", help="products of a small side, a larger, a small K, others")
    parser.add_argument("--long", type=int, default=500, help="least other extents of those of a small or larger side")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--compilers", type=int)
    parser.add_argument("--choices", action="store_true", help="only what is chosen, with that kernel and without")
    parser.add_argument("--former", action="store_true", help="only kernels that calls chose before")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    counts = tuple(map(int, given.counts.split(",")))
    drawn = products(given.seed, counts, given.dtype, given.long)
    found = [(kind, one, choices(one) if given.choices else trials(one, given.former)) for kind, one in drawn]
    if given.choices:
        found = [one for one in found if "now" in one[2]]
    jobs = {str(job): job for _, one, some in found for choice in some.values() for job in jobs_of(one, choice, HOPPER)}
    print(f"{len(jobs)} kernels, {sum(len(some) for *_, some in found)} points", flush=True)
    began, failing = time.time(), set[str]()
    for job, result in compile_all(list(jobs.values()), given.compilers):
        if isinstance(result, CompileError) or result.resources.spill_bytes > 200:
            failing.add(str(job))
            print(f"left out: {job}: {str(result)[:300]}", flush=True)
    print(f"compiled in {time.time() - began:.0f} s", flush=True)
    if given.compile_only:
        return
    _measure(given, found, failing)


def _measure(given: argparse.Namespace, found: list[tuple[str, GemmProblem, dict[str, Choice]]], failing: set[str]):
    from gemmule.runtime.bench import bench_gpu
    from gemmule.runtime.device import get_device

    words = " ".join(["python", "benchmarks/experiments/line_class_times.py", *sys.argv[1:]])
    block = experiment(words, get_device().pci_bus_id)
    began, choices = time.time(), list[Choice]()
    with RecordFile(given.record, block) as file, bench_gpu() as gpu, gpu.cublaslt() as lt:
        session = Session(gpu, lt, given.dtype, choices, failing)
        warm = time.time()
        choices.append(found[0][2]["chosen"])
        while time.time() - warm < _WARM_UP:
            session.record(found[0][1], [0])
        print(f"{time.time() - began:.1f} s: ready", flush=True)
        numbers: dict[int, int] = {}
        for kind, problem, some in found:
            if time.time() - began > given.seconds:
                print("out of time", flush=True)
                break
            places = {}
            for name, choice in some.items():
                if id(choice) not in numbers:
                    numbers[id(choice)] = len(choices)
                    choices.append(choice)
                places[numbers[id(choice)]] = name
            one = session.record(problem, list(places))
            times = {places[int(x)]: t for x, t in one["times_us"].items()}
            chosen = some["chosen"]
            one |= {
                "record": "line_class_times", "times_us": times, "kind": kind, "predicted_us": chosen.predicted_us,
                "chosen": f"{chosen.spec.name}[{chosen.config}]",
            }  # fmt: skip
            file.write(one)
            print(kind, problem.m, problem.n, problem.k, problem.layout, one["cublaslt_us"][:1], times, flush=True)


if __name__ == "__main__":
    main()
