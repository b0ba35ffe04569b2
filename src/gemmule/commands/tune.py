"""``gemmule tune``: a search for the fastest kernel and config of products, saved for later calls."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .. import __version__
from ..core.errors import ArgumentError
from ..files.regular_file import check_replaceable
from . import gpu
from .choice import NameChoice
from .command_line import RecordedCommand
from .json_output import json_option
from .option_values import check_finite
from .tune_compile import compiled
from .tune_products import asked_problems, kernel_names, key, of_chip, print_dry_run, searches
from .tune_run import Run
from .tuned_pack import write_tuned_pack

_EPILOG = """\b
Products come from --shapes FILE, --preset WORD or --sizes M,N,K:
  cells          squares, M = N with K = 1024, language models, all aligned
  odd            extents that are no multiple of 16 bytes
  random:N:SEED  N random sizes
A FILE is JSON lines, or .csv with a header: m, n, k, and optionally dtype,
out_dtype and layout. GEMMULE_RECORD=shapes.jsonl lets a program write such a
file, with every product that it computes on a GPU.
\b
Example: gemmule tune --shapes shapes.jsonl"""

_WITHOUT = "`gemmule tune --dry-run --chip NAME` prints what would be measured"


@click.command("tune", cls=RecordedCommand, epilog=_EPILOG)
@click.option("--shapes", metavar="FILE", type=click.Path(path_type=Path), help="Products, as JSON lines or CSV.")
@click.option("--preset", metavar="WORD", help="cells, odd, or random:N:SEED.")
@click.option(
    "--sizes", metavar="M,N,K", multiple=True, help="One product, or a set of `gemmule bench gemm`. Repeatable."
)
@click.option("--dtype", metavar="DTYPE", default="bfloat16", show_default=True, help="Type of A and B.")
@click.option("--out-dtype", metavar="DTYPE", help="Type of the result. Default: that of A and B; int32 for int8.")
@click.option(
    "--layout", type=NameChoice(["nn", "nt", "tn", "tt"]), default="nn", show_default=True,
    help="Storage of A and B: n row-major, t column-major.",
)  # fmt: skip
@click.option(
    "--kernels", metavar="NAMES", help="Kernel names separated by commas. Default: all that calls choose from."
)
@click.option(
    "--factor", type=click.FloatRange(1), callback=check_finite, default=1.5, show_default=True,
    help="Skip configs whose predicted time is this many times the least.",
)  # fmt: skip
@click.option(
    "--most", type=click.IntRange(1), default=12, show_default=True,
    help="Limit of registered configs for a kernel, and of others.",
)  # fmt: skip
@click.option("--registered", is_flag=True, help="Try registered configs only, which calls use without a table.")
@click.option(
    "--keep", type=click.IntRange(1), default=3, show_default=True,
    help="Configs to time in full after the survey.",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), callback=check_finite, default=0.1, show_default=True,
    help="Duration of each measurement; slow kernels take longer.",
)  # fmt: skip
@click.option(
    "--limit", metavar="SECONDS", type=click.FloatRange(0, min_open=True), callback=check_finite,
    help="Stop after this time; the same command resumes.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random inputs.")
@click.option("--baseline/--no-baseline", "baseline", default=True, help="Measure cuBLASLt too, interleaved.")
@click.option(
    "--output", metavar="FILE", type=click.Path(path_type=Path),
    help="Table for the results. Default: the user's, which later calls read; --where prints its name.",
)  # fmt: skip
@click.option(
    "--pack", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Also pack the compiled kernels and the table, for machines without a compiler; see `gemmule pack`.",
)  # fmt: skip
@click.option("--record", metavar="FOLDER", type=click.Path(), help="Write the results to a new record file in FOLDER.")
@click.option("--resume/--no-resume", default=True, help="Resume an interrupted search.")
@click.option("--workers", type=click.IntRange(1), help="Processes for compilation. Default: one for each CPU.")
@click.option("--dry-run", is_flag=True, help="Print the products to be measured, and stop.")
@click.option("--chip", metavar="NAME", help="Chip of a dry run without a GPU.")
@click.option("--where", is_flag=True, help="Print the name of the user's table, and stop.")
@json_option
def tune_command(**options: Any) -> None:
    """Find the fastest kernel and config of products on this GPU, and save them for later calls.

    Configs with a slow predicted time are skipped. The others are compiled in parallel and surveyed; the best are
    verified and timed, interleaved with cuBLASLt. The same command resumes an interrupted search.
    """
    _tune(_Options(**options))


@dataclasses.dataclass(frozen=True)
class _Options:
    """The options of the command, by their names."""

    shapes: Path | None
    preset: str | None
    sizes: Sequence[str]
    dtype: str
    out_dtype: str | None
    layout: str
    kernels: str | None
    factor: float
    most: int
    registered: bool
    keep: int
    seconds: float
    limit: float | None
    seed: int
    baseline: bool
    output: Path | None
    pack: Path | None
    record: str | None
    resume: bool
    workers: int | None
    dry_run: bool
    chip: str | None
    where: bool
    as_json: bool


def _tune(options: _Options) -> None:
    from ..dispatch.settings_file import check_writable
    from ..dispatch.tuned_file import read_or_set_aside
    from ..dispatch.tuned_table import TunedTable, chip_name, user_file
    from ..lab.tuning.journal import TuningJournal

    if options.where:
        click.echo(str(user_file()))
        return
    if options.chip is not None and not options.dry_run:
        raise ArgumentError("--chip is for --dry-run: a search measures this machine's GPU")
    names = kernel_names(options.kernels)
    problems = asked_problems(
        options.shapes, options.preset, options.sizes, options.dtype, options.out_dtype, options.layout
    )
    table = options.output if options.output is not None else user_file()
    pruned: dict[str, Any] = {
        "kernels": names,
        "factor": options.factor,
        "most": options.most,
        "extra_configs": not options.registered,
    }
    if options.dry_run and options.chip is not None:
        arch, multiprocessors, name = of_chip(options.chip)
        wanted = searches(problems, arch, multiprocessors, name, TunedTable(name, table), **pruned)
        print_dry_run(wanted, arch, table, as_json=options.as_json)
        return
    if options.pack is not None:
        check_replaceable(options.pack)
    if not options.dry_run:
        # An unwritable table is an error now, not after hours.
        read_or_set_aside(table)
    with gpu.open_gpu(baseline=options.baseline and not options.dry_run, required=False, without=_WITHOUT) as (
        device,
        library,
    ):
        known = TunedTable(chip_name(device.name), table)
        wanted = searches(problems, device.arch, device.multiprocessors, device.name, known, **pruned)
        if options.dry_run:
            print_dry_run(wanted, device.arch, table, as_json=options.as_json)
            return
        # Its folder, too, must take files.
        check_writable(table)
        settings = {
            "chip": chip_name(device.name), "gemmule": __version__, **pruned,
            "keep": options.keep, "seconds": options.seconds, "seed": options.seed, "yardstick": library is not None,
            "products": sorted(json.dumps(key(search).as_dict()) for search in wanted),
        }  # fmt: skip
        journal = TuningJournal(table, settings)
        done = journal.finished() if options.resume else set()
        left = [search for search in wanted if key(search) not in done]
        if len(left) < len(wanted) and not options.as_json:
            click.echo(f"{len(wanted) - len(left)} of {len(wanted)} products were done before: {journal.path}")
        left = compiled(left, device.arch, options.workers)
        run = Run(
            device, library, table, journal, {"keep": options.keep, "seconds": options.seconds, "seed": options.seed}
        )
        run.measure(left, options.record, options.limit, quiet=options.as_json)
        if options.pack is not None and run.is_written and table.exists():
            written = write_tuned_pack(options.pack, table, device.name, device.multiprocessors, device.arch)
            click.echo(f"pack: {written.path}, {len(written.kernels)} compiled kernels", err=options.as_json)
    run.end(as_json=options.as_json)
