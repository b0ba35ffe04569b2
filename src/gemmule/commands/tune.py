"""``gemmule tune``: the fastest kernel and config of products, found by measuring, and kept for later calls."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .. import __version__
from ..core.errors import ArgumentError, CompileError, UnsupportedError
from . import gpu
from .failures import LEFT
from .progress import steps_progress
from .tables import print_table
from .told import ToldCommand, command_line

if TYPE_CHECKING:
    from ..compiler.pool import Job
    from ..core.arch import Arch
    from ..core.problem import GemmProblem
    from ..core.spec import Choice
    from ..dispatch.tuned_file import Entry
    from ..dispatch.tuned_table import TunedTable
    from ..lab.gemm_records import Record
    from ..lab.tuning.tuner import Cell, Search

_EPILOG = """\b
Products come from --shapes FILE, --preset WORD or --sizes M,N,K:
  cells          squares, M = N with K = 1024, language models, all aligned
  odd            extents that copies of 16 bytes do not divide
  random:N:SEED  N random sizes
A file has JSON lines or, as .csv, a header: m, n, k, and perhaps dtype, out_dtype and layout. A program that runs with
GEMMULE_RECORD=shapes.jsonl writes such a file: every product that it computes on a GPU, once.
\b
Example: gemmule tune --shapes shapes.jsonl"""


@click.command("tune", cls=ToldCommand, epilog=_EPILOG)
@click.option("--shapes", metavar="FILE", type=click.Path(path_type=Path), help="Products, as JSON lines or CSV.")
@click.option("--preset", metavar="WORD", help="cells, odd, or random:N:SEED.")
@click.option("--sizes", metavar="M,N,K", multiple=True, help="One product, or a set that bench knows; repeatable.")
@click.option("--dtype", metavar="DTYPE", default="bfloat16", show_default=True, help="Type of A and B.")
@click.option("--out-dtype", metavar="DTYPE", help="Type of the result. Default: that of A and B; int32 for int8.")
@click.option(
    "--layout", type=click.Choice(["nn", "nt", "tn", "tt"]), default="nn", show_default=True,
    help="How A and B lie in memory: n in rows, t in columns.",
)  # fmt: skip
@click.option("--kernels", metavar="NAMES", help="Only these kernels, with commas. Default: those that calls take.")
@click.option(
    "--factor", type=click.FloatRange(1), default=1.5, show_default=True,
    help="Leave out configs whose predicted time is so many times the least.",
)  # fmt: skip
@click.option("--most", type=click.IntRange(1), default=12, show_default=True, help="Most configs of a kernel to try.")
@click.option("--registered", is_flag=True, help="Try only the configs that calls take without a table.")
@click.option(
    "--keep", type=click.IntRange(1), default=3, show_default=True,
    help="Configs that are timed in full after a quick survey of all.",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), default=0.1, show_default=True,
    help="Time for each measurement; slow kernels take more.",
)  # fmt: skip
@click.option("--limit", metavar="SECONDS", type=click.FloatRange(0, min_open=True), help="Stop after so long.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random inputs.")
@click.option("--yardstick/--no-yardstick", default=True, help="Measure cuBLASLt beside the kernels.")
@click.option(
    "--output", metavar="FILE", type=click.Path(path_type=Path),
    help="The table to write. Default: the user's, which `gemmule tune --where` tells and later calls read.",
)  # fmt: skip
@click.option("--record", metavar="FOLDER", type=click.Path(), help="Write the figures to a new record file there.")
@click.option("--resume/--no-resume", default=True, help="Go on where the same search was stopped.")
@click.option("--workers", type=click.IntRange(1), help="Processes that compile. Default: one for each CPU.")
@click.option("--dry-run", is_flag=True, help="Say what would be measured, and measure nothing.")
@click.option("--chip", metavar="NAME", help="The chip of a dry run, where there is no GPU.")
@click.option("--where", is_flag=True, help="Print the name of the user's table and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def tune_command(**options: Any) -> None:
    """Find the fastest kernel and config of products on this GPU, and keep them for later calls.

    What is predicted to be slow is not tried. The rest is compiled in parallel processes, surveyed, and the best is
    checked and timed beside cuBLASLt. A search that was stopped goes on with the same command.
    """
    _tune(**options)


def _tune(
    *, shapes: Path | None, preset: str | None, sizes: Sequence[str], dtype: str, out_dtype: str | None, layout: str,
    kernels: str | None, factor: float, most: int, registered: bool, keep: int, seconds: float, limit: float | None,
    seed: int, yardstick: bool, output: Path | None, record: str | None, resume: bool, workers: int | None,
    dry_run: bool, chip: str | None, where: bool, as_json: bool,
) -> None:  # fmt: skip
    from ..dispatch.tuned_table import TunedTable, chip_name, user_file
    from ..lab.tuning.journal import TuningJournal

    if where:
        click.echo(str(user_file()))
        return
    if chip is not None and not dry_run:
        raise ArgumentError("--chip is for --dry-run: a search measures the GPU that is here")
    names = _kernel_names(kernels)
    problems = _problems(shapes, preset, sizes, dtype, out_dtype, layout)
    table = output if output is not None else user_file()
    pruned: dict[str, Any] = {"kernels": names, "factor": factor, "most": most, "further": not registered}
    if dry_run and chip is not None:
        arch, multiprocessors, name = _of_chip(chip)
        searches = _searches(problems, arch, multiprocessors, TunedTable(name, table), **pruned)
        _tell_dry_run(searches, arch, table, as_json=as_json)
        return
    with gpu.open_gpu(yardstick=yardstick and not dry_run, required=False) as (device, library):
        known = TunedTable(chip_name(device.name), table)
        searches = _searches(problems, device.arch, device.multiprocessors, known, **pruned)
        if dry_run:
            _tell_dry_run(searches, device.arch, table, as_json=as_json)
            return
        settings = {
            "chip": chip_name(device.name), "gemmule": __version__, **pruned,
            "keep": keep, "seconds": seconds, "seed": seed, "yardstick": library is not None,
            "products": sorted(json.dumps(_key(search).as_dict()) for search in searches),
        }  # fmt: skip
        journal = TuningJournal(table, settings)
        done = journal.finished() if resume else set()
        left = [search for search in searches if _key(search) not in done]
        if len(left) < len(searches) and not as_json:
            click.echo(f"{len(searches) - len(left)} of {len(searches)} products were done before: {journal.path}")
        left = _compiled(left, device.arch, workers)
        run = _Run(device, library, table, journal, {"keep": keep, "seconds": seconds, "seed": seed})
        run.measure(left, record, limit, quiet=as_json)
    run.end(as_json=as_json)


def _kernel_names(text: str | None) -> tuple[str, ...]:
    from ..core.names import unknown_name
    from ..dispatch import registry

    known = [spec.name for spec in registry.REGISTRY if spec.operation == "gemm"]
    names = tuple(name.strip() for name in text.split(",")) if text is not None else ()
    for name in names:
        if name not in known:
            raise ArgumentError(unknown_name("kernel", name, known))
    return names


def _problems(
    shapes: Path | None, preset: str | None, sizes: Sequence[str], dtype: str, out_dtype: str | None, layout: str
) -> tuple[GemmProblem, ...]:
    """Return the products that are asked for, each once; tells of those that cannot be measured."""
    from ..dispatch.problem_key import key_of
    from ..lab.products import gemm_problem, output_type
    from ..lab.sizes import parse_sizes
    from ..lab.tuning.cells import preset as sizes_of
    from ..lab.tuning.shapes import read_shapes, why_not_measured

    if shapes is None and preset is None and not sizes:
        raise ArgumentError(
            "there is nothing to tune; give products with --shapes FILE, --preset cells or --sizes M,N,K"
        )
    found = list(read_shapes(shapes, dtype, layout)) if shapes is not None else []
    named = (*(sizes_of(preset) if preset is not None else ()), *(parse_sizes(sizes) if sizes else ()))
    out = output_type(dtype, out_dtype)
    found += [gemm_problem(*size, dtype, out, layout) for size in named]
    taken: dict[Any, GemmProblem] = {}
    for problem in found:
        if reason := why_not_measured(problem):
            click.echo(f"left out: {problem.m} x {problem.n} x {problem.k}: {reason}", err=True)
        else:
            taken.setdefault(key_of(problem), problem)
    if not taken:
        raise UnsupportedError("no product is left to tune")
    return tuple(taken.values())


def _of_chip(name: str) -> tuple[Arch, int, str]:
    from ..core.arch import Arch as Architecture

    chip = gpu.chip_called(name)
    return Architecture.for_device(*chip.capability), chip.sms, chip.name


def _searches(
    problems: Iterable[GemmProblem], arch: Arch, multiprocessors: int, table: TunedTable, **pruned: Any
) -> list[Search]:
    """Return what is tried for every product; tells of those that no kernel takes."""
    from ..core.spec import Choice as Chosen
    from ..dispatch import registry
    from ..dispatch.select import choose, tuned_choice
    from ..lab.tuning.search import candidates
    from ..lab.tuning.tuner import Search as Searched

    found = []
    for problem in problems:
        tried = candidates(problem, arch, registry.REGISTRY, multiprocessors, **pruned)
        if not tried:
            click.echo(f"left out: {problem.m} x {problem.n} x {problem.k}: no kernel takes it", err=True)
            continue
        taken = choose(problem, arch, registry.REGISTRY, multiprocessors=multiprocessors)
        present = tuned_choice(problem, arch, registry.REGISTRY, table)
        kept = Chosen(present.spec, present.config) if present is not None else None
        found.append(Searched(problem, tried, Chosen(taken.spec, taken.config), kept))
    if not found:
        raise UnsupportedError("no kernel takes any of the products")
    return found


def _key(search: Search) -> Any:
    from ..dispatch.problem_key import key_of

    return key_of(search.problem)


def _jobs(searches: Iterable[Search], arch: Arch) -> dict[Any, list[tuple[Search, Choice]]]:
    """Return what must be compiled, each with the candidates that need it."""
    from ..compiler.pool import Job

    jobs: dict[Any, list[tuple[Search, Choice]]] = {}
    for search in searches:
        for choice in search.choices():
            jobs.setdefault(Job(choice.spec, choice.config, choice.signature(search.problem), arch), []).append(
                (search, choice)
            )
            if then := choice.following(search.problem):
                job = Job(then.spec, then.config, then.spec.signature(then.problem, then.config), arch)
                jobs.setdefault(job, []).append((search, choice))
    return jobs


def _tell_dry_run(searches: Sequence[Search], arch: Arch, table: Path, *, as_json: bool) -> None:
    jobs = _jobs(searches, arch)
    if as_json:
        products = [
            {
                **_key(search).as_dict(),
                "candidates": [{"kernel": c.spec.name, "config": c.config.as_dict()} for c in search.choices()],
            }
            for search in searches
        ]
        click.echo(json.dumps({"products": products, "kernels": len(jobs), "table": str(table)}))
        return
    rows = []
    for search in searches:
        problem = search.problem
        names = ", ".join(dict.fromkeys(choice.spec.name for choice in search.choices()))
        size = f"{problem.m} x {problem.n} x {problem.k}"
        rows.append([size, f"{problem.a.dtype} {problem.layout}", names, str(len(search.choices()))])
    print_table("what would be measured", ["M x N x K", "operands", "kernels", "candidates"], rows, 3)
    click.echo(f"{len(searches)} products, {len(jobs)} kernels to compile, table {table}")


def _compiled(searches: Sequence[Search], arch: Arch, workers: int | None) -> list[Search]:
    """Compile in parallel processes; return the searches without the candidates that do not compile."""
    jobs = _jobs(searches, arch)
    failed: set[tuple[int, str, Any]] = set()
    with steps_progress("compiling", len(jobs)) as step:
        for job, error in _compiling(list(jobs), workers):
            if error is not None:
                click.echo(f"left out: {job} does not compile: {error}", err=True)
                failed |= {(id(search), choice.spec.name, choice.config) for search, choice in jobs[job]}
            step(job.spec.name, 1)
    found = []
    for search in searches:
        tried = tuple(c for c in search.candidates if (id(search), c.spec.name, c.config) not in failed)
        found.append(dataclasses.replace(search, candidates=tried))
    return found


def _compiling(jobs: Sequence[Job], workers: int | None) -> Iterator[tuple[Job, CompileError | None]]:
    """Compile, and yield what failed and what did not, even where a config makes the compiler itself fall over."""
    from concurrent.futures.process import BrokenProcessPool

    from ..compiler.pool import compile_all

    left = dict.fromkeys(jobs)
    # The second time finds most in the cache; what still breaks is compiled by itself.
    for portions in ([list(left)], [list(left)], None):
        for portion in portions if portions is not None else [[job] for job in left]:
            wanted = [job for job in portion if job in left]
            try:
                for job, result in compile_all(wanted, workers):
                    del left[job]
                    yield job, result if isinstance(result, CompileError) else None
            except BrokenProcessPool:
                if portions is None:
                    del left[wanted[0]]
                    yield wanted[0], CompileError("the compiler's process ended without a word")
        if not left:
            return


class _Run:
    """One search: what is measured is written as soon as it is there."""

    def __init__(self, device: Any, library: Any, table: Path, journal: Any, plan: dict[str, Any]) -> None:
        self._device, self._library, self._table, self._journal, self._plan = device, library, table, journal, plan
        self._records: list[Record] = []
        self._block: Record = {}
        self._cells: list[tuple[Cell, Entry | None]] = []
        self._stopped = 0

    def measure(self, searches: Sequence[Search], folder: str | None, limit: float | None, *, quiet: bool) -> None:
        from ..dispatch import tuned_table
        from ..dispatch.select import forget_choices
        from ..dispatch.tuned_file import merge_tuned, read_or_set_aside
        from ..lab.bench import BenchPlan
        from ..lab.experiment import experiment
        from ..lab.records import RecordFile
        from ..lab.tuning.tuner import Tuner

        keep = self._plan.pop("keep")
        first = [search.taken for search in searches[:1]]
        tuner = Tuner(
            searches, BenchPlan((), tuple(first), **self._plan), self._device, gpu.known_chip(self._device.name),
            self._library, keep=keep,
        )  # fmt: skip
        self._block = experiment(command_line(), self._device.pci_bus_id) | tuner.about()
        run = self._provenance()
        present = {one.key: one for one in read_or_set_aside(self._table) if one.chip == run["chip"]}
        start = time.monotonic()
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(RecordFile(Path(folder), self._block)) if folder is not None else None
            if file is not None:
                click.get_current_context().meta[LEFT] = file.partial
            step = stack.enter_context(steps_progress("measuring", len(searches)))
            cells = tuner.cells(lambda doing: step(doing, 0)) if searches else iter(())
            for number, cell in enumerate(cells, 1):
                for one in cell.records:
                    self._records.append(one)
                    if file is not None:
                        file.write(one)
                entry = cell.entry(run)
                if entry is not None:
                    beside = [present[entry.key]] if entry.key in present else []
                    merge_tuned(self._table, [entry], measured_beside=beside)
                self._journal.add([_key(cell.search)])
                self._cells.append((cell, entry))
                if not quiet:
                    click.echo(_line(cell))
                step("", 1)
                if limit is not None and time.monotonic() - start > limit and number < len(searches):
                    self._stopped = len(searches) - number
                    break
        # Calls of this process take what was found.
        tuned_table.forget()
        forget_choices()
        if not self._stopped:
            self._journal.remove()
        if file is not None:
            del click.get_current_context().meta[LEFT]
            if not quiet:
                click.echo(f"record: {file.path}")

    def _provenance(self) -> dict[str, str]:
        from ..dispatch.tuned_table import chip_name

        block = self._block
        packages = block.get("packages", {})
        run = {
            "chip": chip_name(self._device.name),
            "gpu": self._device.name,
            "driver": block.get("driver"),
            "cuda": block.get("cuda"),
            "gemmule": __version__,
            "packages": ", ".join(f"{name} {packages[name]}" for name in sorted(packages)),
            "cublaslt": block.get("cublaslt"),
            "commit": block.get("commit"),
            "date": block.get("date"),
        }
        return {name: str(value) for name, value in run.items() if value}

    def end(self, *, as_json: bool) -> None:
        """Print what was found, and fail if a kernel was wrong."""
        from ..core.errors import WrongResultError

        kept = [entry for _, entry in self._cells if entry is not None]
        if as_json:
            click.echo(
                json.dumps(
                    {
                        "experiment": self._block,
                        "records": self._records,
                        "table": str(self._table),
                        "left": self._stopped,
                    }
                )
            )
        else:
            if ratios := [entry.ratio for entry in kept if entry.ratio is not None]:
                mean = statistics.geometric_mean(ratios)
                click.echo(f"time of cuBLASLt / time of the best: geometric mean {mean:.3f}, least {min(ratios):.3f}")
            click.echo(f"{len(kept)} products tuned: {self._table}")
            if self._stopped:
                click.echo(f"{self._stopped} products are left; the same command goes on with them")
        if failure := gpu.failure_of([one for one in self._records if one["record"] == "check"]):
            raise WrongResultError(failure)


def _line(cell: Cell) -> str:
    """Return what is told of a product."""
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
