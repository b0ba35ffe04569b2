"""``gemmule calibrate``: measured rates of this GPU, from which the cost model predicts times."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .. import __version__
from ..core.errors import ArgumentError, UnsupportedError, WrongResultError
from . import gpu
from .bench_end import record_file
from .command_line import RecordedCommand, command_line
from .json_output import echo_json, json_option
from .option_values import check_finite
from .progress import steps_progress
from .tables import echo_text, print_table
from .tune_compile import compiled, jobs

if TYPE_CHECKING:
    from ..core.arch import Arch
    from ..core.gpu_rates import GpuRates
    from ..lab.bench_records import Record
    from ..lab.calibration.fit import Fit, Timed
    from ..lab.calibration.products import Product
    from ..lab.tuning.tuner import Search

#: Fewest products that determine five rates, held-out ones included.
_FEWEST = 12
_EPILOG = """\b
About 40 bfloat16 products are measured, each in two configs. Every fourth is
held out of the fit, and the error of its predicted times is printed.
\b
Example: gemmule calibrate"""

_WITHOUT = "`gemmule calibrate --dry-run --chip NAME` prints what would be measured"


@click.command("calibrate", cls=RecordedCommand, epilog=_EPILOG)
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), callback=check_finite, default=0.1, show_default=True,
    help="Duration of each measurement; slow kernels take longer.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random inputs.")
@click.option(
    "--output", metavar="FILE", type=click.Path(path_type=Path),
    help="File for the rates. Default: the user's, which later calls read; --where prints its name.",
)  # fmt: skip
@click.option("--record", metavar="FOLDER", type=click.Path(), help="Write the results to a new record file in FOLDER.")
@click.option("--workers", type=click.IntRange(1), help="Processes for compilation. Default: one for each CPU.")
@click.option("--dry-run", is_flag=True, help="Print the products to be measured, and stop.")
@click.option("--chip", metavar="NAME", help="Chip of a dry run without a GPU.")
@click.option("--where", is_flag=True, help="Print the name of the user's file, and stop.")
@json_option
def calibrate_command(**options: Any) -> None:
    """Measure this GPU's rates and save them: the cost model chooses kernels of untuned products by them.

    Rates of the H100 SXM and the H200 SXM are shipped. Other chips, and MIG slices, use one of these until they are
    calibrated.
    """
    _calibrate(_Options(**options))


@dataclasses.dataclass(frozen=True)
class _Options:
    """The options of the command, by their names."""

    seconds: float
    seed: int
    output: Path | None
    record: str | None
    workers: int | None
    dry_run: bool
    chip: str | None
    where: bool
    as_json: bool


def _calibrate(options: _Options) -> None:
    from ..core.arch import Arch
    from ..core.chips import chip_named
    from ..dispatch.rates_file import read_or_set_aside
    from ..dispatch.rates_table import rates_file, rates_for
    from ..dispatch.settings_file import check_writable

    if options.where:
        click.echo(str(rates_file()))
        return
    if options.chip is not None and not options.dry_run:
        raise ArgumentError("--chip is for --dry-run: a calibration measures this machine's GPU")
    file = options.output if options.output is not None else rates_file()
    if options.dry_run and options.chip is not None:
        facts = chip_named(options.chip)
        arch = Arch.for_device(*facts.capability)
        found = _products(arch, rates_for(facts.aliases[-1], facts.sms), facts.memory_bytes)
        _print_dry_run(found, arch, file, as_json=options.as_json)
        return
    with gpu.open_gpu(baseline=False, without=_WITHOUT) as (device, _):
        if not options.dry_run:
            # A file that could not be written in the end is an error now, not after minutes.
            read_or_set_aside(file)
            check_writable(file)
        before = rates_for(device.name, device.multiprocessors)
        found = _products(device.arch, before, device.memory_free())
        if options.dry_run:
            _print_dry_run(found, device.arch, file, as_json=options.as_json)
            return
        searches = compiled([_search(one) for one in found], device.arch, options.workers)
        block, records = _measured(
            device, searches, options.record, {"seconds": options.seconds, "seed": options.seed}, quiet=options.as_json
        )
    timed = _timed(searches, records)
    _end(_Calibration(device.name, before, file, block, records), timed, as_json=options.as_json)


def _products(arch: Arch, rates: GpuRates, memory: int) -> tuple[Product, ...]:
    """Return the products to be timed."""
    from ..kernels.hopper.gemm.spec import SPEC
    from ..lab.calibration.products import products

    found = products(arch, rates, memory)
    if len(found) >= _FEWEST:
        return found
    if not any(arch.capability == one.capability for one in SPEC.archs):
        raise UnsupportedError(
            f"rates are measured by {SPEC.name}, which runs on {', '.join(map(str, SPEC.archs))}, and this GPU is "
            f"{arch}; its kernels are chosen by the rates of an H200, without this command"
        )
    raise UnsupportedError(
        f"{memory} bytes of device memory are free, too few for {_FEWEST} of the products, which a fit needs; end what "
        "uses the GPU, and calibrate again"
    )


def _search(product: Product) -> Search:
    """Return the search of a product: every candidate is measured."""
    from ..lab.tuning.tuner import Search as Searched

    return Searched(product.problem, product.choices, product.choices[0])


def _measured(
    device: Any, searches: Sequence[Search], folder: str | None, plan: dict[str, Any], *, quiet: bool
) -> tuple[Record, list[Record]]:
    """Return the experiment block and the records."""
    from ..lab.bench_plan import BenchPlan
    from ..lab.experiment import experiment
    from ..lab.tuning.tuner import Tuner

    most = max((len(search.candidates) for search in searches), default=0)
    first = [search.taken for search in searches[:1]]
    tuner = Tuner(searches, BenchPlan((), tuple(first), **plan), device, gpu.known_chip(device.name), None, keep=most)
    block = experiment(command_line(), device.pci_bus_id) | tuner.about()
    records: list[Record] = []
    with record_file(folder, block, quiet=quiet) as write, steps_progress("measuring", len(searches)) as step:
        for cell in tuner.cells(lambda doing: step(doing, 0)):
            records += cell.records
            for one in cell.records:
                write(one)
            step("", 1)
    return block, records


def _timed(searches: Sequence[Search], records: Sequence[Record]) -> list[Timed]:
    """Return the products that were timed, with the times of their configs."""
    from ..lab.calibration.fit import Timed as TimedProduct

    found = []
    for search in searches:
        size, layout = (search.problem.m, search.problem.n, search.problem.k), search.problem.layout
        us = {
            choice.config: one["median_us"]
            for one in records
            if one["record"] == "gemm" and ((one["m"], one["n"], one["k"]), one["layout"]) == (size, layout)
            for choice in search.candidates
            if one["config"] == choice.config.as_dict()
        }
        if us:
            found.append(TimedProduct(search.problem, us))
    return found


@dataclasses.dataclass(frozen=True)
class _Calibration:
    """A calibration that was measured."""

    gpu: str
    before: GpuRates
    file: Path
    block: Record
    records: list[Record]


def _end(done: _Calibration, timed: Sequence[Timed], *, as_json: bool) -> None:
    """Fit rates, write them, and print them."""
    from ..dispatch.choices.choice_cache import clear_choices
    from ..dispatch.rates_file import MeasuredRates, merge_rates
    from ..dispatch.rates_table import clear_rates
    from ..dispatch.tuned_table import chip_name
    from ..files.file_errors import errors_name
    from ..lab.calibration.fit import fit
    from ..lab.tuning.entries import provenance

    if failure := gpu.failure_of([one for one in done.records if one["record"] == "check"]):
        raise WrongResultError(f"{failure}; no rates were written")
    if len(timed) < _FEWEST:
        reasons = dict.fromkeys(one["reason"] for one in done.records if "reason" in one)
        raise UnsupportedError(
            f"{len(timed)} products were timed, and a fit needs {_FEWEST}; no rates were written"
            f"{': ' if reasons else ''}{'; '.join(reasons)}"
        )
    found = fit(timed, done.before)
    run = provenance(done.block, chip_name(done.gpu), gemmule=__version__)
    measured = MeasuredRates(done.gpu, found.rates, found.products, found.error, tuple(run.items()))
    if not as_json:
        # Before they are written, which may fail.
        _print_fit(done.gpu, found)
    with errors_name(str(done.file), written=True):
        merge_rates(done.file, measured)
    # Calls of this process take them too, where they went into the user's file.
    clear_rates()
    clear_choices()
    if as_json:
        about = {"held_out": found.held_out, "error_before": found.error_before, "file": str(done.file)}
        echo_json(measured.as_dict() | about | {"experiment": done.block, "records": done.records})
        return
    click.echo(f"rates: {done.file}")


def _print_fit(name: str, found: Fit) -> None:
    """Print rates, and how well they predict."""
    rates = found.rates
    named = {"tensor cores": rates.multiply, "loads": rates.load, "L2 cache": rates.l2, "launch": rates.launch}
    click.echo(
        f"{name}, {rates.multiprocessors} SMs: memory {rates.memory / 1e6:.2f} TB/s; times, with an H200's as 1: "
        + ", ".join(f"{what} {value:.2f}" for what, value in named.items())
    )
    kept = "" if found.error < found.error_before else "; the rates before predict them as well, and stay"
    click.echo(
        f"fitted to {found.products} products; median error of {found.held_out} others: {found.error:.1%}, with the "
        f"rates before {found.error_before:.1%}{kept}"
    )


def _print_dry_run(found: Sequence[Product], arch: Arch, file: Path, *, as_json: bool) -> None:
    """Print the products of a calibration, and the number of kernels to compile."""
    count = len(jobs([_search(one) for one in found], arch))
    if as_json:
        products = [
            {
                "m": one.problem.m, "n": one.problem.n, "k": one.problem.k, "dtype": one.problem.a.dtype.name,
                "layout": one.problem.layout, "rate": one.rate,
                "configs": [choice.config.as_dict() for choice in one.choices],
            }
            for one in found
        ]  # fmt: skip
        echo_json({"products": products, "kernels": count, "file": str(file)})
        return
    rows = []
    for one in found:
        size = f"{one.problem.m} x {one.problem.n} x {one.problem.k}"
        rows.append([size, f"{one.problem.a.dtype} {one.problem.layout}", one.rate, str(len(one.choices))])
    echo_text(f"{len(found)} products to measure, {count} kernels to compile; file: {file}")
    print_table("products", ["M x N x K", "operands", "for the rate", "configs"], rows, 3)
