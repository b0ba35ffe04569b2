"""One search of ``gemmule tune``: results are printed, recorded and saved one by one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .. import __version__
from . import gpu
from .bench_end import record_file
from .command_line import command_line
from .json_output import echo_json
from .progress import steps_progress
from .tune_products import key

if TYPE_CHECKING:
    from ..core.errors import GemmuleError
    from ..dispatch.tuned_file import Entry
    from ..lab.bench_records import Record
    from ..lab.tuning.journal import TuningJournal
    from ..lab.tuning.tuner import Cell, Search


class Run:
    """One search: results are written one by one."""

    def __init__(self, device: Any, library: Any, table: Path, journal: TuningJournal, plan: dict[str, Any]) -> None:
        self._device, self._library, self._table, self._journal, self._plan = device, library, table, journal, plan
        self._records: list[Record] = []
        self._block: Record = {}
        self._cells: list[tuple[Cell, Entry | None]] = []
        self._stopped = 0
        self._unwritten: GemmuleError | OSError | None = None

    @property
    def is_written(self) -> bool:
        """Whether the table has all results."""
        return self._unwritten is None

    def measure(self, searches: Sequence[Search], folder: str | None, limit: float | None, *, quiet: bool) -> None:
        from ..core.errors import GemmuleError
        from ..dispatch.select import use_tuned
        from ..dispatch.tuned_file import merge_tuned, read_or_set_aside
        from ..dispatch.tuned_table import chip_name
        from ..lab.bench_plan import BenchPlan
        from ..lab.experiment import experiment
        from ..lab.tuning.entries import provenance
        from ..lab.tuning.tuner import Tuner

        keep = self._plan.pop("keep")
        first = [search.taken for search in searches[:1]]
        tuner = Tuner(
            searches, BenchPlan((), tuple(first), **self._plan), self._device, gpu.known_chip(self._device.name),
            self._library, keep=keep,
        )  # fmt: skip
        self._block = experiment(command_line(), self._device.pci_bus_id) | tuner.about()
        run = provenance(self._block, chip_name(self._device.name), gpu=self._device.name, gemmule=__version__)
        present = {one.key: one for one in read_or_set_aside(self._table) if one.chip == run["chip"]}
        start = time.monotonic()
        with (
            record_file(folder, self._block, quiet=quiet) as write,
            steps_progress("measuring", len(searches)) as step,
        ):
            cells = tuner.cells(lambda doing: step(doing, 0)) if searches else iter(())
            for number, cell in enumerate(cells, 1):
                for one in cell.records:
                    self._records.append(one)
                    write(one)
                entry = cell.entry(run)
                if entry is not None:
                    together = [present[entry.key]] if entry.key in present else []
                    try:
                        merge_tuned(self._table, [entry], measured_together=together)
                    except (GemmuleError, OSError) as error:
                        # `end` raises it, after the results are printed and recorded.
                        self._unwritten, entry = error, None
                self._cells.append((cell, entry))
                if not quiet:
                    click.echo(_line(cell))
                if self._unwritten is not None:
                    self._stopped = len(searches) - number + 1
                    break
                self._journal.add([key(cell.search)])
                step("", 1)
                if limit is not None and time.monotonic() - start > limit and number < len(searches):
                    self._stopped = len(searches) - number
                    break
        if self.is_written:
            # Calls of this process use the results, whichever file they are in.
            use_tuned(self._device.name, [entry for _, entry in self._cells if entry is not None])
        if not self._stopped:
            self._journal.remove()

    def end(self, *, as_json: bool) -> None:
        """Print the results, and fail if the table could not be written or a kernel was wrong."""
        from ..core.errors import WrongResultError

        kept = [entry for _, entry in self._cells if entry is not None]
        if as_json:
            echo_json(
                {
                    "experiment": self._block,
                    "records": self._records,
                    "table": str(self._table),
                    "left": self._stopped,
                }
            )
        else:
            if ratios := [entry.ratio for entry in kept if entry.ratio is not None]:
                mean = statistics.geometric_mean(ratios)
                click.echo(f"time of cuBLASLt / time of the best: geometric mean {mean:.3f}, least {min(ratios):.3f}")
            click.echo(f"{len(kept)} products tuned: {self._table}")
            if self._stopped:
                click.echo(f"{self._stopped} products are left; the same command resumes")
        if self._unwritten is not None:
            raise self._unwritten
        if failure := gpu.failure_of([one for one in self._records if one["record"] == "check"]):
            raise WrongResultError(failure)


def _line(cell: Cell) -> str:
    """Return the line of a product."""
    problem, best = cell.search.problem, cell.best()
    size = f"{problem.m} x {problem.n} x {problem.k} {problem.a.dtype} {problem.layout}"
    if best is None:
        reasons = dict.fromkeys(one["reason"] for one in cell.records if "reason" in one)
        return f"{size}: nothing was timed: {'; '.join(reasons)}"
    config = " ".join(f"{name}={value}" for name, value in best["config"].items())
    ratio = f", {best['ratio']:.3f} of cuBLASLt's rate" if "ratio" in best else ""
    taken = next((one for one in cell.records if one.get("chosen_by") == "dispatch" and "median_us" in one), None)
    model = f"; the cost model's takes {taken['median_us']:.1f} us" if taken is not None and taken is not best else ""
    return f"{size}: {best['median_us']:.1f} us{ratio}{model}: {best['kernel']} {config}"
