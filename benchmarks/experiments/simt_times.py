"""Times of float32 products by the plausible configs of `simt_gemm` and `simt_batched`, beside cuBLASLt's.

Three groups of products: those that lost in a draw (record 20261124T180909) and others like them, of a seed: odd
extents, a short K with a large result, a deep K with few tiles; skinny ones, up to 16 rows or columns, in all configs
of `simt_batched` for them; and squares in four layouts. All of a product are timed interleaved, in CUDA graphs over
rotating buffers. ``--compile-only`` needs no GPU: it compiles what an H100 would run. Otherwise this needs an NVIDIA
GPU, PyTorch and the compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from config_times import Timer
from untuned_choices import Operands, Pool, jobs_of

from gemmule.compiler.cache import artifact_for
from gemmule.compiler.pool import compile_all
from gemmule.core.arch import Arch
from gemmule.core.errors import CompileError, UnsupportedError, WrongResultError
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.rates_table import rates_for
from gemmule.kernels.simt.batched.spec import SPEC as BATCHED
from gemmule.kernels.simt.config import VECTOR_BYTES, SimtConfig
from gemmule.kernels.simt.cost import limits, operand_copies
from gemmule.kernels.simt.gemm.spec import SPEC as GEMM
from gemmule.kernels.simt.rates import RATES
from gemmule.lab.experiment import experiment
from gemmule.lab.gemm_operation import named
from gemmule.lab.products import LAYOUTS, gemm_problem
from gemmule.lab.records import RecordFile, read_records
from gemmule.runtime.bench import BenchGpu, bench_gpu
from gemmule.runtime.device import current, get_device
from gemmule.runtime.driver import call, driver
from gemmule.runtime.launch import loaded_kernel
from gemmule.runtime.repeated import repeated
from gemmule.runtime.rotation import Rotation

SPECS = {spec.name: spec for spec in (GEMM, BATCHED)}
#: Products that lost most, on both chips or in record 20261124T231252.
LOST = (
    (2144, 32, 3060, "nt"),
    (6568, 216, 4000, "nt"),
    (1544, 96, 5208, "nt"),
    (69, 4363, 1341, "tt"),
    (6603, 155, 1511, "tt"),
    (1116, 64, 6248, "tt"),
    (81, 2693, 3795, "nt"),
    (445, 2661, 3531, "nt"),
    (224, 1488, 3624, "nn"),
    (83, 5583, 5549, "nn"),
    (1633, 37, 4815, "tn"),
    (231, 207, 5775, "nt"),
    (4895, 29, 1933, "nt"),
    (3924, 3108, 1576, "nt"),
    (7095, 1691, 4419, "tn"),
)
#: Products of up to 16 rows or columns that lost.
LOST_SKINNY = ((6360, 12, 4584, "nn"), (12, 4156, 292, "nt"), (11, 5599, 897, "tn"))
SQUARES = (512, 1023, 1024, 2048, 4095, 4096, 8192)
#: Layouts of the draws: few, since each takes a kernel of each config.
_DRAWN = ("nn", "nt")
#: Bounds of M, N and K of the draws, and how many there are: few columns, few tiles, any.
_NARROW, _DEEP, _ANY = ((1000, 7000), (17, 256), (400, 6000), 12), ((64, 600), (64, 600), (1500, 7000), 6), (
    (64, 5000), (64, 5000), (64, 3000), 4,
)  # fmt: skip
_SKINNY = ((8, 16), (1000, 8192), (256, 8192), 6)
#: Configs up to so many times the least prediction, and how many: of a product of each group.
_FACTOR, _MOST = 1.6, {"lost": 11, "skinny": 6, "square": 2}
#: Operations from which on only cuBLASLt's top heuristic is timed.
_LONG = 5e10
#: Tiles that are not registered: rows, columns, warps along M and N; k-tiles have 16, stages are 4.
_TILES = ((64, 32, 2, 1), (32, 64, 1, 2), (128, 32, 4, 1))
_TILE_CLUSTERS = (6, 8)
#: How fast the weight of a config in its factor falls with its distance from the best.
_NEAR = 3
_CACHES, _SETS, _WARM_UP = 2, 256, 2.0
#: The carve-out that leaves the first-level cache to the driver.
_DRIVERS = -1


@dataclasses.dataclass(frozen=True)
class Trial:
    """A product, and what it is run by."""

    group: str
    problem: GemmProblem
    choices: tuple[Choice, ...]


def drawn(numbers: random.Random, bounds: Any) -> Iterator[tuple[int, int, int, str]]:
    """Yield products, log-uniform within bounds, every third of odd extents."""
    *ranges, count = bounds
    for number in range(count):
        extents = [round(math.exp(numbers.uniform(*map(math.log, ends)))) for ends in ranges]
        odd = number % 3 == 0
        yield (*(extent | 1 if odd else -(-extent // 4) * 4 for extent in extents), _DRAWN[number % 2])  # type: ignore[misc]


def products(seed: int) -> Iterator[tuple[str, tuple[int, int, int, str]]]:
    """Yield the products of each group."""
    numbers = random.Random(seed)  # noqa: S311  # sizes, no secrets
    for one in LOST:
        yield "lost", one
    for bounds in (_NARROW, _DEEP, _ANY):
        for one in drawn(numbers, bounds):
            yield "lost", one
    for one in LOST_SKINNY:
        yield "skinny", one
    for number, (few, other, k, layout) in enumerate(drawn(numbers, _SKINNY)):
        yield "skinny", ((few, other, k, layout) if number < _SKINNY[-1] // 2 else (other, few, k, layout))
    for size in SQUARES:
        for layout in LAYOUTS:
            yield "square", (size, size, size, layout)


def trial(group: str, problem: GemmProblem, arch: Arch, rates: GpuRates) -> Trial:
    """Return the configs to run a product by."""
    assert GEMM.costs is not None
    every = list(GEMM.configs)
    if group != "square":
        every += [
            SimtConfig(tile_m, tile_n, 16, warps_m, warps_n, 4, cluster_k=ctas)
            for tile_m, tile_n, warps_m, warps_n in _TILES
            for ctas in _TILE_CLUSTERS
        ]
    every = list(dict.fromkeys(every))
    able = [one for one in every if GEMM.why_not(problem, arch, one) is None]
    costs = dict(zip(able, GEMM.costs(problem, able, rates), strict=True))
    best = sorted(able, key=costs.__getitem__)[: _MOST[group]]
    best = [one for one in best if costs[one] <= _FACTOR * costs[best[0]]]
    choices = [Choice(GEMM, one) for one in best]
    if group == "skinny":
        choices += [Choice(BATCHED, one) for one in BATCHED.configs[7:] if BATCHED.why_not(problem, arch, one) is None]
    return Trial(group, problem, tuple(choices))


def carve_out(problem: GemmProblem, choice: Choice, percent: int, arch: Arch) -> None:
    """Set how much of an SM's first-level cache is shared memory for a kernel: at least so many percent."""
    artifact = artifact_for(choice.spec, choice.config, choice.spec.signature(problem, choice.config), arch)
    attribute = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    with current(0):
        call("cuFuncSetAttribute", loaded_kernel(artifact, 0).function, attribute, percent)


def record(one: Trial, able: list[Choice], gpu: BenchGpu, lt: Any, pool: Pool, checked: set[str]) -> dict[str, Any]:
    """Time a product; return its record."""
    problem = one.problem
    with gpu.workspaces() as workspaces, contextlib.ExitStack() as stack:
        wanted = math.ceil(_CACHES * gpu.l2_bytes / problem.bytes_min)
        operands = Operands(
            problem, min(_SETS, wanted), pool.inputs.data_ptr(), pool.outputs.data_ptr(), workspaces
        )  # fmt: skip
        names, stream = ("a", "b", "d"), gpu._stream
        places = [tuple(operands.addresses(s)[name] for name in names) for s in range(operands.sets)]
        works: list[Any] = []
        for choice in able:
            queue = repeated(problem, choice, names, places[0], 0)
            assert queue is not None
            works.append(Rotation([lambda at=at, queue=queue: queue(at, stream) for at in places]))
            key = "".join(map(str, jobs_of(problem, choice, gpu.arch)))
            if key in checked:
                works[-1]()
                continue
            checked.add(key)
            try:
                pool.check(problem, operands.addresses(0), works[-1], gpu)
            except WrongResultError:
                print(f"wrong: {problem.layout} {problem.m} {problem.n} {problem.k} {choice.config}", flush=True)
        algorithms = []
        most = 1 if 2.0 * problem.m * problem.n * problem.k > _LONG else 8
        for algorithm in list(stack.enter_context(lt.algorithms(problem, operands)))[:most]:
            with contextlib.suppress(UnsupportedError):
                algorithm.work()
                algorithms.append(algorithm.work)
        costs = [one.spec.costs(problem, [one.config], rates_for(gpu.name, gpu.multiprocessors))[0] for one in able]  # type: ignore[misc]
        times = Timer(gpu)([*works, *algorithms], [*costs, *[min(costs)] * len(algorithms)], operands.sets)
        gpu.wait()
    return {
        "record": "simt_times",
        "group": one.group,
        **named(problem),
        "sets": operands.sets,
        "times": [
            {"kernel": x.spec.name, "config": x.config.as_dict(), "predicted_us": round(cost, 3), "median_us": time}
            for x, cost, time in zip(able, costs, times, strict=False)
        ],
        "cublaslt_us": times[len(able) :],
    }


def judge(path: Path) -> None:
    """Print what a record says of choices, of configs that are not registered, and of the cost model's factors."""
    found = [one for one in read_records(path) if one["record"] == "simt_times"]
    gpu = rates_for(read_records(path)[0]["gpu"], 132)
    gains: dict[str, list[float]] = {}
    factors: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    shares: dict[str, list[tuple[float, float, float]]] = {}
    for one in found:
        problem = gemm_problem(one["m"], one["n"], one["k"], "float32", "float32", one["layout"])
        unaligned = any(operand_copies(x).copy_bytes < VECTOR_BYTES for x in (problem.a, problem.b))
        times = {Choice(SPECS[x["kernel"]], type(SPECS[x["kernel"]].default)(**x["config"])): x for x in one["times"]}
        registered = {x: t for x, t in times.items() if x.config in x.spec.configs}
        least = min(t["median_us"] for t in registered.values())
        chosen = min(registered.values(), key=lambda t: t["predicted_us"])["median_us"]
        every = min(t["median_us"] for t in times.values())
        if one["cublaslt_us"]:
            first = one["cublaslt_us"][0]
            shares.setdefault(one["group"], []).append((first / chosen, first / least, first / every))
        for x, t in times.items():
            name = f"{x.spec.name} {x.config}"
            if x not in registered:
                gains.setdefault(name, []).append(least / min(least, t["median_us"]))
            if x.spec is GEMM:
                assert isinstance(x.config, SimtConfig)
                limit = float(limits(problem, [x.config], gpu).predicted_us(RATES)[0])
                weight = (every / t["median_us"]) ** _NEAR
                factors.setdefault((name, unaligned), []).append((math.log(t["median_us"] / limit), weight))
    for group, of_group in shares.items():
        means = [f"{statistics.geometric_mean(x):.3f} (least {min(x):.2f})" for x in zip(*of_group, strict=True)]
        print(f"{group}, {len(of_group)} products, of cuBLASLt's top heuristic: chosen {means[0]}, "
              f"best registered {means[1]}, best of all {means[2]}")  # fmt: skip
    for name, of_config in sorted(gains.items(), key=lambda x: -math.prod(x[1])):
        print(f"not registered: {name}: {statistics.geometric_mean(of_config):.3f} of {len(of_config)} products, "
              f"at most {max(of_config):.2f}")  # fmt: skip
    for (name, unaligned), logs in sorted(factors.items()):
        mean = sum(log * weight for log, weight in logs) / sum(weight for _, weight in logs)
        print(f"factor: {name} {'unaligned' if unaligned else 'aligned'}: {math.exp(mean):.3f} of {len(logs)}")


def main() -> None:
    """Compile, measure, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=7, help="of the products")
    parser.add_argument("--seconds", type=float, default=55, help="time for measuring, after compiling")
    parser.add_argument("--groups", nargs="*", choices=_MOST, default=list(_MOST), help="groups of products")
    parser.add_argument("--most", type=int, default=999, help="products at most")
    parser.add_argument(
        "--carve-out",
        type=int,
        nargs="*",
        default=[_DRIVERS],
        help="percent of a first-level cache, as shared memory",
    )
    parser.add_argument("--compile-seconds", type=float, default=600, help="time for compiling; the rest is left out")
    parser.add_argument("--compilers", type=int, help="processes that compile; one a CPU by default")
    parser.add_argument("--compile-only", action="store_true", help="fill the cache of compiled kernels; needs no GPU")
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--judge", type=Path, metavar="RECORD", help="read a record and measure nothing")
    given = parser.parse_args()
    if given.judge:
        judge(given.judge)
        return
    began = time.time()
    arch, name, sms = Arch.parse("sm_90a"), "NVIDIA H100 80GB HBM3", 132
    if not given.compile_only:
        device = get_device()
        arch, name, sms = device.arch, device.name, device.multiprocessors
    trials = [
        trial(group, gemm_problem(m, n, k, "float32", "float32", layout), arch, rates_for(name, sms))
        for group, (m, n, k, layout) in products(given.seed)
        if group in given.groups
    ][: given.most]
    jobs = {str(job): job for one in trials for x in one.choices for job in jobs_of(one.problem, x, arch)}
    print(f"{len(trials)} products, {sum(len(x.choices) for x in trials)} points, {len(jobs)} kernels", flush=True)
    failing = set(jobs)
    with contextlib.closing(compile_all(jobs.values(), given.compilers)) as compiled:
        for job, result in compiled:
            if isinstance(result, CompileError) or result.resources.spill_bytes:
                print(f"left out: {job}: {str(result)[:200]}", flush=True)
            else:
                failing.remove(str(job))
            if time.time() - began > given.compile_seconds:
                break
    print(f"{time.time() - began:.0f} s: compiled; {len(failing)} kernels are left out", flush=True)
    if given.compile_only:
        return
    block = experiment("python benchmarks/experiments/simt_times.py", device.pci_bus_id)
    with RecordFile(given.record, block) as file, bench_gpu() as gpu, gpu.cublaslt() as lt:
        pool, checked = Pool(), set[str]()
        pool.fill("float32")
        ratios: dict[str, list[float]] = {}
        started, warm = time.time(), True
        for number, one in enumerate(trials):
            if time.time() - started > given.seconds:
                print(f"the time is over: {len(trials) - number} products are left", flush=True)
                break
            able = [x for x in one.choices if not failing.intersection(map(str, jobs_of(one.problem, x, arch)))]
            if not able:
                continue
            while warm and time.time() - started < _WARM_UP:
                record(one, able, gpu, lt, pool, checked)
            warm = False
            for percent in given.carve_out:
                for x in able:
                    carve_out(one.problem, x, percent, arch)
                found = record(one, able, gpu, lt, pool, checked) | {"carve_out": percent}
                file.write(found)
                best = min(found["times"], key=lambda x: x["median_us"])
                print(f"  {percent} %: {best['median_us']} us, {best['config']}", flush=True)
            least = {x["kernel"]: x["median_us"] for x in sorted(found["times"], key=lambda x: -x["median_us"])}
            first = found["cublaslt_us"][0] if found["cublaslt_us"] else math.nan
            ratios.setdefault(one.group, []).append(first / min(least.values()))
            p = one.problem
            print(f"{one.group} {p.m}x{p.n}x{p.k} {p.layout}: {least} us, cuBLASLt {first} us, "
                  f"{first / min(least.values()):.2f}", flush=True)  # fmt: skip
    for group, found_ratios in ratios.items():
        print(f"{group}: {statistics.geometric_mean(found_ratios):.3f}, least {min(found_ratios):.3f}")


if __name__ == "__main__":
    main()
