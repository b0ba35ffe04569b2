"""``gemmule bench transpose``: transposes compared with a device copy, as tables, records and plots."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import ArgumentError, FileFormatError
from ..lab.transposes import SIZE_SETS
from . import gpu
from .bench_end import draw_plots, end, measured
from .command_line import RecordedCommand, command_line
from .json_output import echo_json, json_option
from .option_values import check_finite
from .tables import echo_text, print_table

if TYPE_CHECKING:
    from ..core.problem import TransposeProblem
    from ..core.spec import Choice
    from ..lab.bench_records import Record

#: Rows and columns of the matrix that is counted on the virtual GPU unless others are given, and the most elements.
_COUNTED, _MOST_COUNTED = (512, 512), 4096 * 4096
#: Sizes that are measured unless others are given.
_MEASURED = "source"
# Columns that a narrow terminal omits, the first first.
_OPTIONAL = ("mean us", "max us", "min us")
_SETS = "\n".join(f"  {name:8}{text}" for name, (text, _) in SIZE_SETS.items())
_EPILOG = f"""\b
Sizes:
{_SETS}
  M,N     any other, such as 4096,1024; of a batch BATCH,M,N
\b
Examples:
  gemmule bench transpose --kernels ladder --sizes source --record results
  gemmule bench transpose --kernels 't04_naive_col[*]' --plot plots
  gemmule bench transpose --kernels ladder --counts-only"""

_WITHOUT = (
    "`gemmule bench transpose --counts-only` counts memory accesses, and `gemmule bench show FILE` prints recorded "
    "figures"
)


@click.command("transpose", cls=RecordedCommand, short_help="Measure transposes, compared with a copy.", epilog=_EPILOG)
@click.option(
    "--kernels", metavar="WORDS", multiple=True, default=["chosen"], show_default=True,
    help="chosen (the kernel that a call runs), ladder, all, or kernel names separated by commas; name[1], "
    "name[block_x=32] and name[*] select configs. Repeatable.",
)  # fmt: skip
@click.option(
    "--sizes", metavar="SIZES", multiple=True,
    help="source (default; with --counts-only 512,512), square, small, odd and narrow, separated by commas; or M,N; "
    "or BATCH,M,N. Repeatable.",
)  # fmt: skip
@click.option(
    "--dtype", "dtypes", metavar="DTYPE", multiple=True, default=["float32"], show_default=True,
    help="A dtype, or the bytes of an element. Repeatable.",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True, max=3600), callback=check_finite, default=0.3,
    show_default=True, help="Duration for each kernel and size.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random bits.")
@click.option("--peers/--no-peers", default=True, help="Measure PyTorch and CuPy too, if installed.")
@click.option("--in-order", is_flag=True, help="Serialize launches: each waits for the end of its predecessor.")
@click.option(
    "--counts", is_flag=True, help="Also count sectors, L1 hits and bank conflicts on the virtual GPU, of 512 x 512."
)
@click.option("--counts-only", is_flag=True, help="Only count, without a measurement; needs no GPU.")
@click.option("--record", metavar="FOLDER", type=click.Path(), help="Write the results to a new record file in FOLDER.")
@click.option("--plot", metavar="FOLDER", type=click.Path(), help="Write plots to FOLDER, as PNG and SVG.")
@json_option
def transpose_command(**options: Any) -> None:
    """Measure transposes: times, effective bandwidth, and its share of the bandwidth of a copy.

    Every kernel is verified first. A wrong kernel is not timed, and the command fails. GB/s count bytes read and bytes
    written.
    """
    _transpose(_Options(**options))


@dataclasses.dataclass(frozen=True)
class _Options:
    """The options of the command, by their names."""

    kernels: Sequence[str]
    sizes: Sequence[str]
    dtypes: Sequence[str]
    seconds: float
    seed: int
    peers: bool
    in_order: bool
    counts: bool
    counts_only: bool
    record: str | None
    plot: str | None
    as_json: bool


def _transpose(options: _Options) -> None:
    from ..dispatch import registry
    from ..dispatch.kernel_names import CHOSEN, parse_kernels, without_chosen
    from ..dispatch.select import choose
    from ..lab.bench_plan import BenchPlan
    from ..lab.drawing.canvas import check_matplotlib
    from ..lab.experiment import experiment
    from ..lab.transpose_bench import TransposeBench
    from ..lab.transpose_operation import size_text
    from ..lab.transposes import itemsize_of, parse_sizes, transpose_of, transposes_of

    wanted = parse_sizes(options.sizes or [_MEASURED])
    itemsizes = tuple(dict.fromkeys(map(itemsize_of, options.dtypes)))
    words, chosen = without_chosen(options.kernels)
    probe = transpose_of(4096, 4096, itemsizes[0])
    choices = parse_kernels(words, probe, None, registry.REGISTRY, registry.TRANSPOSE_LADDER, [CHOSEN]) if words else ()
    if options.plot is not None:
        check_matplotlib()
    if options.counts_only:
        sizes = wanted if options.sizes else (_COUNTED,)
        if large := [size for size in sizes if math.prod(size) > _MOST_COUNTED]:
            extents = " x ".join(map(str, large[0]))
            raise ArgumentError(
                f"--sizes: {extents} has more than the {_MOST_COUNTED:,} elements that the virtual GPU counts in "
                "good time; give smaller matrices"
            )
        counted = [
            _Counted(one, problem)
            for size in sizes
            for problem in transposes_of((size,), itemsizes)
            for one in (*choices, *_chosen(problem, chosen))
        ]
        _count_only(counted, options.record, as_json=options.as_json)
        return
    with gpu.open_gpu(baseline=False, without=_WITHOUT) as (device, _):
        multiprocessors = device.multiprocessors
        plan = BenchPlan(
            transposes_of(wanted, itemsizes), choices, seconds=options.seconds, seed=options.seed,
            chosen=(lambda problem: choose(problem, device.arch, multiprocessors=multiprocessors)) if chosen else None,
        )  # fmt: skip
        bench = TransposeBench(
            plan, device, gpu.known_chip(device.name), peers=options.peers, in_order=options.in_order
        )
        block = experiment(command_line(), device.pci_bus_id) | bench.about()
        if device.no_sensors is not None:
            click.echo(device.no_sensors, err=True)
        add = _counter() if options.counts else None
        records = measured(
            bench, block, plan.points, options.record, key=size_text, show=None if options.as_json else _show, add=add
        )
    end(block, records, print_end, _draw, plot=options.plot, as_json=options.as_json)


def _show(point: list[Record]) -> None:
    """Print the figures of a size, a row for each kernel."""
    from ..lab.bench_tables import figures
    from ..lab.transpose_operation import TRANSPOSE, size_text

    header, rows = figures(TRANSPOSE, point, with_size=False, paired=True)
    print_table(size_text(point[0]), header, rows, optional=_OPTIONAL)


def print_end(records: Sequence[Mapping[str, Any]]) -> None:
    """Print summaries of all sizes: shares of the copy's bandwidth, the sweep of block shapes, L1 requests."""
    from ..lab.bench_tables import ratios
    from ..lab.transpose_operation import TRANSPOSE
    from ..lab.transpose_tables import sweep, sweep_table, throughput

    header, rows = ratios(TRANSPOSE, records, paired=True)
    if len(rows) > 1:
        print_table("share of the bandwidth of a copy", header, rows)
    for size, (shapes, rates) in sweep(records).items():
        print_table(f"block shapes, {size}", *sweep_table(shapes, rates))
    header, rows = throughput(records)
    if rows:
        print_table("L1 requests, counted on the virtual GPU", header, rows, texts=2)


def show_transposes(records: Sequence[Mapping[str, Any]], path: Path, plot: str | None) -> bool:
    """Print the transposes of a record file; return whether there are any.

    Raises
    ------
    FileFormatError
        If records of transposes lack fields.
    """
    from ..lab.bench_tables import figures, ratios
    from ..lab.tables import experiment_line
    from ..lab.transpose_operation import TRANSPOSE, size_text
    from ..lab.transpose_plots import transpose_plots
    from ..lab.transpose_tables import sweep, throughput

    found = TRANSPOSE.of(records)
    if not found:
        return False
    try:
        head = experiment_line(records)
        tables = [
            (size, *figures(TRANSPOSE, [one for one in found if size_text(one) == size], with_size=False, paired=True))
            for size in dict.fromkeys(map(size_text, found))
        ]
        ratios(TRANSPOSE, found), sweep(found), throughput(found), transpose_plots(records)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"{path.name}: not a whole record of transposes ({type(error).__name__}: {error}); give one that "
            "`gemmule bench transpose` wrote"
        ) from error
    echo_text(head)
    for size, header, rows in tables:
        print_table(size, header, rows, optional=_OPTIONAL)
    print_end(found)
    if plot is not None:
        _draw(records, Path(plot), path.stem, quiet=False)
    return True


def _draw(records: Sequence[Mapping[str, Any]], folder: Path, stem: str, *, quiet: bool) -> None:
    from ..lab.transpose_plots import transpose_plots

    without = "measure three sizes with M = N, or one kernel with several block shapes"
    draw_plots(transpose_plots(records), folder, stem, without=without, quiet=quiet)


def _counter() -> Callable[[Record], Record]:
    """Return a function that adds counts to records, counting each kernel, config and element size once."""
    from ..core.spec import Choice
    from ..dispatch.registry import REGISTRY
    from ..lab.transpose_counts import with_counts
    from ..lab.transposes import transpose_of

    specs = {spec.name: spec for spec in REGISTRY}
    known: dict[str, Record | str] = {}

    def add(record: Record) -> Record:
        if record["record"] != "transpose":
            return record
        spec = specs[record["kernel"]]
        config = next(config for config in spec.configs if config.as_dict() == record["config"])
        key = json.dumps([record["kernel"], record["config"], record["itemsize"]])
        if key not in known:
            known[key] = _count(_Counted(Choice(spec, config), transpose_of(*_COUNTED, record["itemsize"])))
        counts = known[key]
        return record if isinstance(counts, str) else with_counts(record, counts)

    return add


def _chosen(problem: TransposeProblem, asked: bool) -> list[Choice]:
    """Return the kernel that an H200 runs for a matrix, if requested."""
    from ..core.gpu_rates import H200_RATES
    from ..dispatch.select import choose
    from ..vgpu.arch import virtual_arch

    if not asked:
        return []
    return [choose(problem, virtual_arch(), multiprocessors=H200_RATES.multiprocessors)]


@dataclasses.dataclass(frozen=True)
class _Counted:
    """A kernel that is counted, and the transpose of the matrix, which a kernel may copy or transpose in place."""

    choice: Choice
    problem: TransposeProblem


def _count_only(counted: Sequence[_Counted], folder: str | None, *, as_json: bool) -> None:
    from ..lab.experiment import experiment
    from ..lab.records import write_records
    from ..lab.transpose_counts import with_counts
    from ..lab.transpose_operation import TRANSPOSE
    from ..lab.transpose_tables import throughput
    from .progress import steps_progress

    records: list[Record] = []
    refused: list[str] = []
    with steps_progress("counting", len(counted)) as step:
        for one in counted:
            spec, config = one.choice.spec, one.choice.config
            step(spec.name, 0)
            counts = _count(one)
            if isinstance(counts, str):
                refused.append(f"{spec.name} does not take {TRANSPOSE.text(one.problem)}: {counts}")
            else:
                what = {"record": "transpose_counts", "kernel": spec.name, "config": config.as_dict()}
                records.append(with_counts({**what, **TRANSPOSE.fields(one.problem)}, counts))
            step("", 1)
    if not records:
        raise ArgumentError(f"--kernels: {refused[0]}; name another kernel, or give other --sizes")
    block = experiment(command_line())
    if as_json:
        echo_json({"experiment": block, "records": records})
    else:
        as_measured = [{**record, "record": "transpose"} for record in records]
        header, rows = throughput(as_measured)
        print_table("L1 requests, counted on the virtual GPU", header, rows, texts=2)
    if folder is not None:
        path = write_records(Path(folder), block, records)
        if not as_json:
            click.echo(f"record: {path}")


def _count(counted: _Counted) -> Record | str:
    """Run a kernel on the virtual GPU and return its counts, or why it does not take the matrix."""
    import numpy as np

    from ..compiler.cache import artifact_for
    from ..lab.transpose_counts import summary
    from ..lab.transposes import problem_for, random_matrices
    from ..vgpu.arch import virtual_arch
    from ..vgpu.counts import Counter
    from ..vgpu.launcher import Options, launch

    spec, config, arch = counted.choice.spec, counted.choice.config, virtual_arch()
    problem = problem_for(spec, config, arch, counted.problem)
    if reason := spec.why_not(problem, arch, config):
        return reason
    source = random_matrices(problem, 0).view(np.uint8)
    counter = Counter(with_caches=True)
    artifact = artifact_for(spec, config, spec.signature(problem, config), arch, with_ptx=True)
    launch(
        artifact, spec.launch(problem, config), {"a": source, "d": np.empty_like(source)},
        options=Options(), observers=(counter,),
    )  # fmt: skip
    return summary(counter.counts, source.nbytes)
