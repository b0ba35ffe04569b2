"""The compiled kernels that the wheel holds, by how often dispatch chooses them."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import functools
import itertools
import math
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gemmule.compiler.pool import Job, jobs_of
from gemmule.core.arch import Arch
from gemmule.core.cpus import usable_cpus
from gemmule.core.errors import UnsupportedError
from gemmule.core.problem import Problem, contiguous_gemm, inner_problem
from gemmule.core.product_forms import epilogue_of_sums, has_sums
from gemmule.core.spec import Choice, Signature
from gemmule.dispatch.quantize import choose_quantize
from gemmule.dispatch.registry import REGISTRY, kernels_of
from gemmule.dispatch.select import choose
from gemmule.kernels.emulation.guard_decision.spec import SPEC as DECISION
from gemmule.kernels.hopper.upcast_operands import common_type
from gemmule.kernels.simt.reference.spec import SPEC as REFERENCE

from .calls import CALLS, call_part
from .draws import PART, layer_problems, part, shipped_problems
from .forms import quantisations

ARCH = Arch.parse("sm_90a")
SEED = 20261124
#: Plain draws, and how many of them must need a kernel that is packed.
DRAWS, LEAST = 400_000, 3
#: Plain draws for each first try, and for each draw of a kind of calls.
FIRST_TRIES, CALL_DRAWS = 10, 100
#: Shares of plain draws, of first tries and of all kinds of calls in what decides.
PLAIN_SHARE, FIRST_SHARE, CALLS_SHARE = 0.5, 0.2, 0.3
#: What the first config of a variant counts of the draws that need any.
FIRST_OF_VARIANT = 0.5
#: Most kernels, which keeps the wheel under `build.MOST_BYTES`.
MOST = 15_600
#: Kernels that run what no other packed kernel does, a decision that is asked for, and copies that no draw needs.
GENERAL = ("gemm_reference", "transpose_reference", DECISION.name)
COPYING = ("hopper_gemm_upcast", "complex_gemm_upcast")
#: The chips that choose, by their drivers' names, and their SMs; last the virtual GPU, one draw in so many.
CHIPS = (("NVIDIA H100 80GB HBM3", 132), ("NVIDIA H200", 132))
_VIRTUAL = 20


@dataclasses.dataclass(frozen=True)
class Source:
    """Random problems, drawn in parts.

    Attributes
    ----------
    part : callable
        ``part(number, seed)`` yields the problems from `number` times `PART`.
    count : int
        How many are drawn.
    share : float
        Their share in what decides.
    """

    part: Callable[[int, int], Iterator[Problem]]
    count: int
    share: float


def sources(draws: int = DRAWS) -> tuple[Source, ...]:
    """Return what is drawn for so many plain draws: kinds of calls, plain draws and first tries."""
    share, count = CALLS_SHARE / len(CALLS), math.ceil(draws / CALL_DRAWS)
    return (
        *(Source(functools.partial(call_part, kind), count, share) for kind in CALLS),
        Source(part, draws, PLAIN_SHARE),
        Source(functools.partial(part, first_tries=True), draws // FIRST_TRIES, FIRST_SHARE),
    )


def every_member(draws: int = DRAWS, least: int = LEAST, most: int = MOST, workers: int | None = None) -> list[Job]:
    """Return the compilations of the wheel, in an order that is always the same: those first that most calls need.

    Before all are those of tuned tables, of models' layers, of quantisation, of grouped products, which are not drawn
    (all configs for the layouts of a mixture of experts), and small copies. Of the others each has the share of draws
    that need it, the weighted sum over the `sources`. So many processes choose; by default one for each CPU.
    """
    drawn = sources(draws)
    parts = [(source, number) for source in drawn for number in range(math.ceil(source.count / PART))]
    weights: dict[Job, float] = collections.defaultdict(float)
    counts: dict[Source, collections.Counter[Job]] = {source: collections.Counter() for source in drawn}
    # Of a process's copies of a kernel one serves for all: equal ones take long to compare.
    specs = {spec.name: spec for spec in REGISTRY}
    count = min(workers or usable_cpus(), len(parts))
    with concurrent.futures.ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        for (source, _), found in zip(parts, pool.map(needed, *zip(*parts, strict=True)), strict=True):
            for job, number in found.items():
                spec = specs.setdefault(job.spec.name, job.spec)
                counts[source][dataclasses.replace(job, spec=spec)] += number
    for source, found in counts.items():
        for job, number in found.items():
            weights[job] += source.share * number / source.count
    # Each chip has a table of its own, and takes configs of the other's.
    tabled = itertools.product((*shipped_problems(), *layer_problems()), range(len(CHIPS)))
    certain = dict.fromkeys(itertools.chain.from_iterable(chosen(problem, number) for problem, number in tabled))
    certain |= dict.fromkeys((*_grouped(), *_quantising(), *(job for job in weights if job.spec.name in COPYING)))
    general = dict.fromkeys((*_epilogues_of_sums(), *_general()))
    ranks = _ranks(weights, certain | general) | dict.fromkeys(certain, 1.0)
    enough = least * PLAIN_SHARE / draws * (1 - FIRST_OF_VARIANT) * (1 - 1e-9)
    members = [job for job, rank in ranks.items() if rank >= enough and job not in general]
    members.sort(key=lambda job: (-ranks[job], order(job)))
    return [*members[: max(most - len(general), 0)], *general]


def _ranks(weights: Mapping[Job, float], certain: Iterable[Job]) -> dict[Job, float]:
    """Return what jobs are ordered by: their share of calls, and of each variant's first config a share of all others'.

    Without any config of a variant a call fails, or runs a slow kernel; without the best one it takes a little longer.
    """
    variants: dict[tuple[str, Signature], float] = collections.defaultdict(float)
    for job, weight in weights.items():
        variants[job.spec.name, job.signature] += weight
    for job in certain:
        variants.pop((job.spec.name, job.signature), None)
    ranks = {}
    for job in sorted(weights, key=lambda job: (-weights[job], order(job))):
        whole = variants.pop((job.spec.name, job.signature), 0.0)
        ranks[job] = (1 - FIRST_OF_VARIANT) * weights[job] + FIRST_OF_VARIANT * whole
    return ranks


def needed(source: Source, number: int) -> collections.Counter[Job]:
    """Return how many draws of a part need each compilation."""
    first = number * PART
    problems = itertools.islice(source.part(number, SEED), source.count - first)
    return collections.Counter(job for place, one in enumerate(problems, first) for job in chosen(one, place))


def few_members() -> list[Job]:
    """Return a few compilations, for tests of the wheel: two products on each chip, and what runs any of float32."""
    few = [contiguous_gemm(300, 100, 200, (name,) * 3) for name in ("float32", "bfloat16")]
    jobs = {job for problem in few for number in (0, 1, _VIRTUAL - 1) for job in chosen(problem, number)}
    jobs.update(job for job in _general() if dict(job.signature).get("d") == "float32" == dict(job.signature).get("a"))
    return sorted(jobs, key=order)


def chosen(problem: Problem, number: int, chips: Sequence[tuple[str, int]] = CHIPS) -> Iterator[Job]:
    """Yield the compilations that a problem needs, on a chip by the problem's number; none where none supports it."""
    chip, multiprocessors = chips[number % len(chips)]
    try:
        if number % _VIRTUAL == _VIRTUAL - 1:
            choice = choose(problem, ARCH)
        else:
            choice = choose(problem, ARCH, multiprocessors=multiprocessors, chip=chip)
    except UnsupportedError:
        return
    yield from dict.fromkeys(_jobs(choice, problem))


def _jobs(choice: Choice, problem: Problem) -> Iterator[Job]:
    for job in jobs_of(choice, inner_problem(problem, choice.batch_dims), ARCH):
        # CTAs of persistent kernels are no part of the code.
        yield dataclasses.replace(job, config=type(job.config)(**job.config.compiled_fields()))


def _quantising() -> Iterator[Job]:
    for problem, (chip, multiprocessors) in itertools.product(quantisations(), CHIPS):
        yield from jobs_of(choose_quantize(problem, ARCH, multiprocessors=multiprocessors, chip=chip), problem, ARCH)


def _general() -> Iterator[Job]:
    """Yield the general kernels, and copies of operands of mixed types and of any strides, which no draw has."""
    for spec in (*REGISTRY, DECISION):
        for signature in spec.signatures(ARCH):
            if spec.name in GENERAL:
                yield Job(spec, spec.default, signature, ARCH)
            elif spec.name in COPYING or ("strided", "yes") in signature:
                yield from (Job(spec, config, signature, ARCH) for config in spec.configs)


def _epilogues_of_sums() -> Iterator[Job]:
    """Yield the reference kernels of epilogues by name: without a kernel of its own a call runs them on its sums."""
    problems = itertools.chain.from_iterable(itertools.islice(call_part(kind, 0, SEED), PART) for kind in CALLS)
    for problem in problems:
        if problem.epilogue is None or not has_sums(problem):
            continue
        # Operands of two types are converted to a common one before.
        wide = common_type(problem)
        same = [dataclasses.replace(matrix, dtype=wide) for matrix in (problem.a, problem.b)]
        for one in (problem, dataclasses.replace(problem, a=same[0], b=same[1])):
            epilogue, _ = epilogue_of_sums(one)
            yield Job(REFERENCE, REFERENCE.default, REFERENCE.signature(epilogue, REFERENCE.default), ARCH)


def _grouped() -> Iterator[Job]:
    for spec in kernels_of("grouped"):
        for signature in spec.signatures(ARCH):
            for config in spec.configs:
                yield Job(spec, config, signature, ARCH)


def order(job: Job) -> tuple[str, str, str]:
    """Return what jobs are sorted by."""
    return job.spec.name, str(job.config), str(job.signature)
