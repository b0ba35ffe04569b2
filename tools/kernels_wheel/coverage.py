"""How much of random calls the wheel covers, by kind: ``python -m kernels_wheel.coverage``."""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import functools
import itertools
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence

# Before NumPy is imported, as of the package's command.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from gemmule.compiler.pool import Job
from gemmule.core.cpus import usable_cpus
from gemmule.core.problem import Problem

from .calls import CALLS, call_part
from .draws import part
from .members import CHIPS, chosen, every_member

#: Names of plain draws and of first tries, beside kinds of calls.
PLAIN, FIRST = "plain draws", "first tries"
_SEED = 987654321


@dataclasses.dataclass(frozen=True)
class Coverage:
    """How many problems of a kind need members only."""

    covered: int
    count: int
    missing: collections.Counter[Job]  #: Jobs that are no members, and how many problems need them.

    @property
    def share(self) -> float:
        """The share of the problems."""
        return self.covered / self.count


def drawn(kind: str, seed: int) -> Iterator[Problem]:
    """Yield random problems of a kind."""
    if kind in CALLS:
        return call_part(kind, 0, seed)
    return part(0, seed, first_tries=kind == FIRST)


def needs(kind: str, count: int, seed: int) -> list[tuple[Job, ...]]:
    """Return what each of some problems of a kind needs, by turns on each chip."""
    problems = itertools.islice(drawn(kind, seed), count)
    return [tuple(chosen(problem, number % len(CHIPS))) for number, problem in enumerate(problems)]


def coverage(members: Iterable[Job], needed: Sequence[tuple[Job, ...]]) -> Coverage:
    """Return how many of the problems that need such jobs need members only."""
    packed = set(members)
    missing = collections.Counter(job for jobs in needed for job in jobs if job not in packed)
    return Coverage(sum(packed.issuperset(jobs) for jobs in needed), len(needed), missing)


def main() -> None:
    """Print the share of each kind."""
    parser = argparse.ArgumentParser(prog="kernels_wheel.coverage", description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="problems of each kind, up to 2000")
    parser.add_argument("--seed", type=int, default=_SEED, help="other than that of the members")
    parser.add_argument("--workers", type=int, help="choosing processes; one for each CPU by default")
    given = parser.parse_args()
    members = every_member(workers=given.workers)
    kinds = (PLAIN, FIRST, *CALLS)
    choosing = functools.partial(needs, count=given.count, seed=given.seed)
    workers = min(given.workers or usable_cpus(), len(kinds))
    with concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for kind, needed in zip(kinds, pool.map(choosing, kinds), strict=True):
            found = coverage(members, needed)
            print(f"{kind}: {100 * found.share:.1f} % of {found.count}; {len(found.missing)} kernels are missing")


if __name__ == "__main__":
    main()
