"""``gemmule bench``: kernels measured beside cuBLAS, as tables, records and plots."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.dtype import Precision
from ..core.errors import ArgumentError, FileFormatError, UnsupportedError
from ..lab.sizes import SIZE_SETS
from . import gpu
from .bench_end import end
from .bench_transpose import show_transposes, transpose_command
from .failures import LEFT
from .json_output import json_option
from .option_values import check_finite
from .progress import steps_progress
from .tables import print_table
from .told import ToldCommand, command_line

if TYPE_CHECKING:
    from ..core.arch import Arch
    from ..core.problem import GemmProblem
    from ..core.spec import Choice
    from ..lab.bench import Bench
    from ..lab.gemm_records import Record
    from ..runtime.bench import BenchGpu

#: Products beyond which ratios are summed up only.
_MOST_RATIOS = 60
_SETS = "\n".join(f"  {name:8}{len(sizes)} sizes: {text}" for name, (text, sizes) in SIZE_SETS.items())
_EPILOG = f"""\b
Sizes:
{_SETS}
  M,N,K   any other, such as 4096,4096,1024
  random:COUNT:SEED[:LOW:HIGH]
          log-uniform extents from LOW to HIGH (64 to 8192), one third odd, the rest multiples of 16 bytes
\b
Examples: gemmule bench gemm --kernels ladder --sizes source --record benchmarks/results
          gemmule bench gemm --kernels 'd01_shared_ab,d02_b_in_registers[*]' --dtype float64 --sizes 8192,8192,8192
          gemmule bench gemm --kernels chosen --untuned --dtype bfloat16,float32:tf32 --sizes random:60:7 --torch"""


@click.group("bench", short_help="Measure kernels on this GPU, or show what was measured.")
def bench_command() -> None:
    """Measure kernels on this GPU, or show what was measured on another."""


bench_command.add_command(transpose_command)


@bench_command.command("gemm", cls=ToldCommand, short_help="Measure matrix products beside cuBLASLt.", epilog=_EPILOG)
@click.option(
    "--kernels", metavar="WORDS", multiple=True, default=["ladder"], show_default=True,
    help="ladder, all, chosen (what a call would run), or names with commas; name[1], name[tile_m=128] (all that have "
    "it) or name[*] choose configs. May be repeated.",
)  # fmt: skip
@click.option(
    "--sizes", metavar="SIZES", multiple=True, default=["source"], show_default=True,
    help="source, square, llm, odd, with commas, M,N,K, or random:COUNT:SEED[:LOW:HIGH]. May be repeated.",
)  # fmt: skip
@click.option(
    "--dtype", "dtypes", metavar="DTYPE", multiple=True, default=["float32"], show_default=True,
    help="Type of A and B, with commas, or DTYPE:PRECISION or DTYPE:PRECISION:OUT_DTYPE. May be repeated.",
)  # fmt: skip
@click.option("--out-dtype", metavar="DTYPE", help="Type of the result. Default: that of A and B; int32 for int8.")
@click.option(
    "--precision", type=click.Choice([one.value for one in Precision]), default="ieee", show_default=True,
    help="How floats may be multiplied. The yardstick does TF32 too; beside bf16x6 float32, beside int8x15 float64.",
)  # fmt: skip
@click.option(
    "--layout", type=click.Choice(["nn", "nt", "tn", "tt"]),
    help="How A and B lie in memory: n in rows, t in columns. Default: nn; for random sizes drawn too.",
)  # fmt: skip
@click.option("--batch", type=click.IntRange(1), help="Multiply so many pairs of matrices in one call.")
@click.option("--untuned", is_flag=True, help="Leave every tuned table out of what is chosen.")
@click.option(
    "--own-transpose", is_flag=True,
    help="Multiply A by its own transpose, which is the same memory: for --layout nt or tn, and sizes with M = N.",
)  # fmt: skip
@click.option(
    "--late", "places", flag_value="late", help="Let every matrix begin one element behind an aligned address."
)
@click.option("--late-too", "places", flag_value="both", help="Measure both, aligned and so.")
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), callback=check_finite,
    help="Time for each kernel at each size; slow kernels take more, three samples at least. Default: 1; 0.1 where "
    "all sizes are random.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random inputs.")
@click.option("--yardstick/--no-yardstick", default=True, help="Measure cuBLASLt beside the kernels.")
@click.option("--torch", "with_torch", is_flag=True, help="Measure PyTorch's own call beside the kernels too.")
@click.option("--record", metavar="FOLDER", type=click.Path(), help="Write the figures to a new record file there.")
@click.option("--plot", metavar="FOLDER", type=click.Path(), help="Draw the figures over the sizes, as PNG and SVG.")
@json_option
def gemm_command(**options: Any) -> None:
    """Measure matrix products beside cuBLASLt: times, rate, share of the chip's peak, ratio and error.

    Every kernel is checked first; one that is wrong is not timed, and the command fails.
    """
    _gemm(**options)


def _gemm(
    *, kernels: Sequence[str], sizes: Sequence[str], dtypes: Sequence[str], out_dtype: str | None, precision: str,
    layout: str | None, batch: int | None, untuned: bool, own_transpose: bool, places: str | None,
    seconds: float | None, seed: int, yardstick: bool, with_torch: bool, record: str | None, plot: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    from ..dispatch import registry
    from ..dispatch.rates_table import rates_for
    from ..lab.bench import Bench
    from ..lab.bench_plan import BenchPlan
    from ..lab.candidates import on_gpu, parse_kernels, without_chosen
    from ..lab.draws import SECONDS
    from ..lab.experiment import experiment
    from ..lab.plots import check_matplotlib
    from .bench_products import Shapes, parse_types

    types = parse_types(dtypes, out_dtype, precision)
    late = {None: (False,), "late": (True,), "both": (False, True)}[places]
    shapes = Shapes(sizes, layout, batch, late, own_transpose)
    problems = shapes.problems(types)
    if plot is not None:
        check_matplotlib()
    words, asks_chosen = without_chosen(kernels)
    if untuned and not asks_chosen:
        raise ArgumentError("--untuned is about what a call would run; measure that with --kernels chosen")

    def named(arch: Arch | None) -> tuple[Choice, ...]:
        each = (parse_kernels(words, one.probe, arch, registry.REGISTRY, registry.LADDER) for one in types)
        return tuple({(one.spec.name, one.config): one for choices in each for one in choices}.values())

    # Names are looked up before a GPU is opened, so that a wrong one is reported first.
    named(None)
    with gpu.open_gpu(yardstick=yardstick) as (device, library):
        rates = rates_for(device.name, device.multiprocessors)
        choices = on_gpu(named(device.arch), rates)
        if not choices and not asks_chosen:
            raise UnsupportedError(
                f"no rung of the ladder takes {', '.join(dtypes)}; name kernels with --kernels, or all"
            )
        torch = device.torch_gemm() if with_torch else None
        chosen = _chosen_on(device, tuned=not untuned) if asks_chosen else None
        drawn = len(shapes.draws) > 0
        plan = BenchPlan(
            problems, choices, seconds=seconds or (SECONDS if drawn else 1.0), seed=seed, chosen=chosen,
            about={"untuned": untuned} | ({"draws": [vars(draw) for draw in shapes.draws]} if drawn else {}),
        )  # fmt: skip
        bench = Bench(plan, device, gpu.known_chip(device.name), library, torch)
        block = experiment(command_line(), device.pci_bus_id) | bench.about()
        if device.no_sensors is not None:
            click.echo(device.no_sensors, err=True)
        if chosen is not None and drawn:
            # One kernel after another, at its turn, would take most of the time.
            _compile(problems, chosen, device.arch)
        points = len(problems) * (len(choices) + asks_chosen)
        records = _measured(bench, block, points, record, show=None if as_json else _line if drawn else _table)
    end(block, records, _print_end, _draw, plot=plot, as_json=as_json)


def _compile(problems: Sequence[GemmProblem], chosen: Callable[[GemmProblem], Choice], arch: Arch) -> None:
    """Compile what calls would run, in parallel processes, where it is not in the cache; errors show at its turn."""
    from ..compiler.pool import compile_all, jobs_of

    jobs = list(dict.fromkeys(job for problem in problems for job in jobs_of(chosen(problem), problem, arch)))
    with steps_progress("compiling", len(jobs)) as step:
        for job, _ in compile_all(jobs):
            step(job.spec.name, 1)


def _chosen_on(device: BenchGpu, *, tuned: bool) -> Callable[[GemmProblem], Choice]:
    """Return what says which kernel and config a call would run on a GPU."""
    from ..dispatch import registry
    from ..dispatch.select import choose

    def chosen(problem: GemmProblem) -> Choice:
        found = choose(
            problem,
            device.arch,
            registry.REGISTRY,
            multiprocessors=device.multiprocessors,
            chip=device.name,
            tuned=tuned,
        )
        # Records name a kernel and a config; how they were found does not matter here.
        return dataclasses.replace(found, refused=())

    return chosen


def _measured(
    bench: Bench, block: Record, points: int, folder: str | None, *, show: Callable[[list[Record]], None] | None
) -> list[Record]:
    """Measure; show the figures of a product, and write each record, as soon as they are there."""
    from ..lab.gemm_records import TORCH, YARDSTICK
    from ..lab.gemm_tables import product_of
    from ..lab.records import RecordFile

    records: list[Record] = []
    point: list[Record] = []
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(RecordFile(Path(folder), block)) if folder is not None else None
        if file is not None:
            click.get_current_context().meta[LEFT] = file.partial
        step = stack.enter_context(steps_progress("measuring", points))
        for one in bench.records(lambda doing: step(doing, 0)):
            if point and show and product_of(point[0]) != product_of(one):
                show(point)
                point = []
            point.append(one)
            records.append(one)
            if file is not None:
                file.write(one)
            step("", one.get("kernel", YARDSTICK) not in (YARDSTICK, TORCH))
        if point and show:
            show(point)
    if file is not None:
        del click.get_current_context().meta[LEFT]
        if show:
            click.echo(f"record: {file.path}")
    return records


def _table(point: list[Record]) -> None:
    """Print the figures of a product, a row for each kernel."""
    from ..lab.gemm_tables import figures, size_text

    header, rows = figures(point, with_size=False, paired=True)
    print_table(_title(point[0], size_text(point[0])), header, rows)


def _line(point: list[Record]) -> None:
    """Print what a drawn product reached, in a line."""
    from ..lab.draw_tables import line_of

    for record in point:
        if text := line_of(record):
            click.echo(text)


def _title(record: Record, size: str) -> str:
    from ..lab.gemm_tables import layout_text

    out = f" -> {record['out_dtype']}" if record["out_dtype"] != record["dtype"] else ""
    precision = f" as {record['precision']}" if record.get("precision", "ieee") != "ieee" else ""
    return f"{size}, {record['dtype']}{precision}{out}, {layout_text(record)}"


def _print_end(records: Sequence[Record]) -> None:
    """Print the ratios of all sizes together, and what is to be said of the run."""
    from ..lab.draw_tables import draw_rows
    from ..lab.gemm_tables import controls, ratios, skipped

    header, rows = draw_rows(records)
    if len(records) and any(one.get("chosen_by") == "dispatch" for one in records) and len(rows):
        print_table("time of a baseline / time of a call", header, rows)
        for line in skipped(records):
            click.echo(line)
    header, rows = ratios(records, paired=True)
    if 1 < len(rows) <= _MOST_RATIOS:
        print_table("time of cuBLASLt / time of the kernel", header, rows)
    for line in controls(records):
        click.echo(line)


def _draw(records: Sequence[Record], folder: Path, stem: str, *, quiet: bool) -> None:
    from ..lab.plots import draw, plots

    found = plots(records)
    for plot in found:
        for path in draw(plot, folder, stem):
            if not quiet:
                click.echo(f"plot: {path}")
    if not found:
        click.echo("no plot: it takes two sizes with M = N, with the same K or with K = M", err=True)


@bench_command.command(
    "show",
    short_help="Show the products or transposes of records; needs no GPU.",
    epilog="Example: gemmule bench show benchmarks/results/FILE.jsonl --plot plots",
)
@click.argument("file", metavar="FILE|FOLDER", type=click.Path(path_type=Path))
@click.option("--plot", metavar="FOLDER", type=click.Path(), help="Draw the figures over the sizes, as PNG and SVG.")
def show_command(*, file: Path, plot: str | None) -> None:
    """Show the products or transposes of a record file, or of all that a folder holds; needs no GPU."""
    from ..lab.plots import check_matplotlib
    from ..lab.report.sources import record_files

    if plot is not None:
        check_matplotlib()
    files = record_files([file])
    without: list[Path] = []
    for number, path in enumerate(files):
        if not _show(path, plot, heading=path.name if len(files) > 1 else None, apart=number > len(without)):
            without.append(path)
    if len(without) == len(files):
        raise FileFormatError(
            f"{file.name}: the {'folder' if file.is_dir() else 'file'} has no products and no transposes; give one "
            f"that `gemmule bench` wrote, or see all that it holds with `gemmule report {file}`"
        )
    if without:
        click.echo(
            f"\nwithout products and transposes: {', '.join(path.name for path in without)}; `gemmule report {file}` "
            "shows what they hold"
        )


def _show(path: Path, plot: str | None, *, heading: str | None, apart: bool) -> bool:
    """Print what a record file says of products or transposes; return whether it says something.

    Before it come the heading, and an empty line if it is to stand apart from what was printed.
    """
    from ..lab.gemm_tables import PRODUCTS, controls, figures, ratios, size_text
    from ..lab.plots import plots
    from ..lab.records import read_records
    from ..lab.tables import experiment_line
    from ..lab.transpose_tables import of_transposes

    records = read_records(path)
    products = [one for one in records if one["record"] in PRODUCTS and "m" in one]
    transposes = bool(of_transposes(records))
    if not products and not transposes:
        return False
    if heading is not None:
        click.echo(f"\n{heading}" if apart else heading)
    if show_transposes(records, path, plot):
        return True
    tables = []
    try:
        head = experiment_line(records)
        for title in dict.fromkeys(_title(one, size_text(one)) for one in products):
            of_size = [one for one in products if _title(one, size_text(one)) == title]
            tables.append((title, *figures(of_size, with_size=False, paired=True)))
        controls(products), ratios(products), plots(records)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"{path.name}: not a whole record of products ({type(error).__name__}: {error}); give one that "
            "`gemmule bench gemm` wrote"
        ) from error
    click.echo(head)
    for title, header, rows in tables:
        print_table(title, header, rows)
    _print_end(products)
    if plot is not None:
        _draw(records, Path(plot), path.stem, quiet=False)
    return True
