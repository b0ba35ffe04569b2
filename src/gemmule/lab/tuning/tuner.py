"""Searches the fastest kernel and config of products: a quick survey of all candidates, then the protocol for the best.

In the survey all candidates of a product are sampled round-robin, some milliseconds each. The fastest of it, the config
that the cost model would take, and the one that a table has already are then checked and timed with the baseline as
every kernel is. The one with the best ratio of those is kept.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from gemmule.core.chip import Chip
from gemmule.core.errors import CompileError, CompilerMissingError, DriverError, UnsupportedError
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.problem_key import key_of
from gemmule.dispatch.tuned_file import Entry

from ..bench import BrokenError
from ..bench_plan import BenchPlan
from ..bench_records import Record, us
from ..device import Baseline, BenchDevice, Work
from ..gemm_bench import GemmBench, GemmPoint
from ..gemm_operation import named
from .entries import entry_of

#: Candidates that the survey leaves.
KEEP = 3


@dataclasses.dataclass(frozen=True)
class Search:
    """The candidates of a product."""

    problem: GemmProblem  #: The product.
    candidates: tuple[Choice, ...]  #: Kernels and configs to survey.
    taken: Choice  #: Choice of the cost model.
    present: Choice | None = None  #: Choice of a table.

    def choices(self) -> tuple[Choice, ...]:
        """Return all that is tried, each once."""
        every = (*self.candidates, self.taken, *([self.present] if self.present is not None else []))
        return tuple({(choice.spec.name, choice.config): choice for choice in every}.values())

    def must(self, choice: Choice) -> bool:
        """Whether a candidate is timed by the protocol whatever the survey says."""
        return any(
            one is not None and (one.spec.name, one.config) == (choice.spec.name, choice.config)
            for one in (self.taken, self.present)
        )


@dataclasses.dataclass(frozen=True)
class Cell:
    """A product that was searched."""

    search: Search
    records: tuple[Record, ...]

    def best(self) -> Record | None:
        """Return the record of the fastest, with the baseline's where there is one; None where nothing was timed."""
        timed = [one for one in self.records if one["record"] == "gemm" and "failure" not in one]
        if timed and all("ratio" in one for one in timed):
            return max(timed, key=lambda one: float(one["ratio"]))
        return min(timed, key=lambda one: float(one["median_us"]), default=None)

    def entry(self, run: Mapping[str, str]) -> Entry | None:
        """Return the entry of a tuned table; None without a time, or without a key."""
        best, key = self.best(), key_of(self.search.problem)
        if best is None or key is None:
            return None
        return entry_of(key, best, run)


class Tuner(GemmBench):
    """A search over products.

    Parameters
    ----------
    searches : sequence of Search
        Products, and what is tried for each.
    plan : BenchPlan
        Plan of the measurement; its choices are the load before the first figure, its problems are not used.
    device, chip, baseline
        As of `Bench`.
    keep : int
        Candidates that the survey leaves.
    """

    def __init__(
        self,
        searches: Sequence[Search],
        plan: BenchPlan[GemmProblem],
        device: BenchDevice,
        chip: Chip | None,
        baseline: Baseline | None,
        *,
        keep: int = KEEP,
    ) -> None:
        problems = tuple(search.problem for search in searches)
        super().__init__(dataclasses.replace(plan, problems=problems), device, chip, baseline)
        self._searches, self._keep = searches, keep
        self._search: Search | None = None

    def cells(self, report: Callable[[str], None] = lambda _: None) -> Iterator[Cell]:
        """Search product after product, and yield each as soon as it is done.

        Raises
        ------
        CompilerMissingError, DriverError
            As of `Bench.records`; finished measurements of the last product are yielded before.
        """
        try:
            self._warm_up(report)
        except BrokenError as broken:
            raise broken.error from broken
        for search in self._searches:
            self._search = search
            records: list[Record] = []
            try:
                records.extend(self._of_problem(search.problem, report))
            except BrokenError as broken:
                yield Cell(search, (*records, broken.record))
                raise broken.error from broken
            except DriverError:
                yield Cell(search, tuple(records))
                raise
            yield Cell(search, tuple(records))

    def _choices(self, problem: GemmProblem) -> Sequence[Choice]:
        del problem
        assert self._search is not None
        return self._search.choices()

    def _chosen_by(self, choice: Choice) -> str:
        assert self._search is not None
        taken = self._search.taken
        same = (choice.spec.name, choice.config) == (taken.spec.name, taken.config)
        return "dispatch" if same else "search"

    def _kernel_records(
        self, taken: Sequence[tuple[GemmProblem, Choice]], point: GemmPoint, report: Callable[[str], None]
    ) -> Iterator[Record]:
        assert self._search is not None
        finalists, choices = list(taken), [choice for _, choice in taken]
        if len(choices) > self._keep:
            report(f"survey of {len(choices)} candidates")
            times, failing = self._survey(point, choices)
            ordered = sorted(times, key=times.__getitem__)
            fastest = set(ordered[: self._keep])
            # Failures are reported in their turn.
            finalists = [
                one for n, one in enumerate(taken) if n in fastest or n in failing or self._search.must(one[1])
            ]
            yield {
                "record": "survey",
                **named(self._search.problem),
                "candidates": [
                    {
                        "kernel": choices[number].spec.name,
                        "config": choices[number].config.as_dict(),
                        "median_us": us(times[number]),
                    }
                    for number in ordered
                ],
            }
        yield from super()._kernel_records(finalists, point, report)

    def _survey(self, point: GemmPoint, choices: Sequence[Choice]) -> tuple[dict[int, float], set[int]]:
        """Return rough times in seconds of those candidates that run, by their numbers, and those that do not."""
        assert self._search is not None
        problem = self._search.problem
        works: dict[int, Work] = {}
        failing: set[int] = set()
        for number, choice in enumerate(choices):
            try:
                work = self._device.kernel(problem, choice, point.operands)
                work()
            except CompilerMissingError:
                raise
            except DriverError as error:
                self._raise_if_broken(problem, choice, error)
                failing.add(number)
            except (CompileError, UnsupportedError):
                failing.add(number)
            else:
                works[number] = work
        if not works:
            return {}, failing
        timing = self._timer.measure(list(works.values()), point.operands.sets)
        medians = map(statistics.median, timing.samples)
        return dict(zip(works, medians, strict=True)), failing
