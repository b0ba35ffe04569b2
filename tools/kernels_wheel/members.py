"""The compiled kernels that the wheel holds, by how often dispatch chooses them."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import itertools
import math
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence

from gemmule.compiler.pool import Job, jobs_of
from gemmule.core.arch import Arch
from gemmule.core.cpus import usable_cpus
from gemmule.core.errors import UnsupportedError
from gemmule.core.problem import Problem, contiguous_gemm, inner_problem
from gemmule.core.spec import Choice
from gemmule.dispatch.quantize import choose_quantize
from gemmule.dispatch.registry import REGISTRY, kernels_of
from gemmule.dispatch.select import choose
from gemmule.kernels.emulation.guard_decision.spec import SPEC as DECISION

from .draws import PART, layer_problems, part, problems, shipped_problems
from .forms import quantisations

ARCH = Arch.parse("sm_90a")
SEED = 20261124
#: Draws, and how many of them need a kernel that is packed.
DRAWS, LEAST = 400_000, 3
#: Draws for each one of first tries, whose kernels are packed before those of other draws.
FIRST_TRIES = 10
#: Most kernels, which keeps the wheel under `build.MOST_BYTES`.
MOST = 7_700
#: Kernels that run what no other packed kernel does, a decision that is asked for, and copies that no draw needs.
GENERAL = ("gemm_reference", "transpose_reference", DECISION.name)
COPYING = ("hopper_gemm_upcast", "complex_gemm_upcast")
#: The chips that choose, by their drivers' names, and their SMs; last the virtual GPU, one draw in so many.
CHIPS = (("NVIDIA H100 80GB HBM3", 132), ("NVIDIA H200", 132))
_VIRTUAL = 20


def every_member(draws: int = DRAWS, least: int = LEAST, most: int = MOST, workers: int | None = None) -> list[Job]:
    """Return the compilations of the wheel, those that most draws need first, in an order that is always the same.

    Before all others are those of tuned tables, of models' layers, of first tries, of quantisation, and of grouped
    products, which are not drawn: all configs for the layouts of a mixture of experts. So many processes choose; by
    default one for each CPU.
    """
    counts: collections.Counter[Job] = collections.Counter()
    tried: collections.Counter[Job] = collections.Counter()
    first_tries = draws // FIRST_TRIES
    parts, first_parts = (range(math.ceil(count / PART)) for count in (draws, first_tries))
    count = min(workers or usable_cpus(), len(parts))
    with concurrent.futures.ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        counting = pool.map(needed, parts, itertools.repeat(draws))
        trying = pool.map(needed, first_parts, itertools.repeat(first_tries), itertools.repeat(True))
        for counted in counting:
            counts.update(counted)
        for counted in trying:
            tried.update(counted)
    # Each chip has a table of its own, and takes configs of the other's.
    for problem, number in itertools.product((*shipped_problems(), *layer_problems()), range(len(CHIPS))):
        tried.update(dict.fromkeys(chosen(problem, number), least))
    certain = (*(job for job, number in tried.items() if number >= least), *_grouped(), *_quantising())
    counts.update(dict.fromkeys(certain, draws))
    general = list(_general())
    members = [job for job, count in counts.items() if count >= least and job not in general]
    members.sort(key=lambda job: (-counts[job], order(job)))
    return [*members[: most - len(general)], *general]


def needed(number: int, draws: int, first_tries: bool = False) -> collections.Counter[Job]:
    """Return how many of a part's draws need each compilation."""
    first = number * PART
    problems = itertools.islice(part(number, SEED, first_tries=first_tries), draws - first)
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
    for job in jobs_of(choice, inner_problem(problem, choice.spec.batch_dims), ARCH):
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


def _grouped() -> Iterator[Job]:
    for spec in kernels_of("grouped"):
        for signature in spec.signatures(ARCH):
            for config in spec.configs:
                yield Job(spec, config, signature, ARCH)


def order(job: Job) -> tuple[str, str, str]:
    """Return what jobs are sorted by."""
    return job.spec.name, str(job.config), str(job.signature)


def coverage(members: Iterable[Job], count: int, seed: int) -> float:
    """Return the share of other random problems whose chosen kernels are all among the members."""
    packed = set(members)
    found = [set(chosen(problem, number)) <= packed for number, problem in enumerate(problems(count, seed))]
    return sum(found) / len(found)
