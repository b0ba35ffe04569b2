"""``gemmule tune``: the fastest kernel and config of products, found by measuring, and kept for later calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .. import __version__
from ..core.errors import ArgumentError
from ..files.regular_file import check_replaceable
from . import gpu
from .json_output import json_option
from .option_values import check_finite
from .told import ToldCommand
from .tune_compile import compiled
from .tune_products import asked_problems, kernel_names, key, of_chip, searches, tell_dry_run
from .tune_run import Run
from .tuned_pack import write_tuned_pack

_EPILOG = """\b
Products come from --shapes FILE, --preset WORD or --sizes M,N,K:
  cells          squares, M = N with K = 1024, language models, all aligned
  odd            extents that copies of 16 bytes do not divide
  random:N:SEED  N random sizes
A file has JSON lines or, as .csv, a header: m, n, k, and perhaps dtype, out_dtype and layout. A program that runs with
GEMMULE_RECORD=shapes.jsonl writes such a file: every product that it computes on a GPU, once.
\b
Example: gemmule tune --shapes shapes.jsonl"""


@click.command("tune", cls=ToldCommand, short_help="Find the fastest kernel and config of products.", epilog=_EPILOG)
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
    "--factor", type=click.FloatRange(1), callback=check_finite, default=1.5, show_default=True,
    help="Leave out configs whose predicted time is so many times the least.",
)  # fmt: skip
@click.option(
    "--most", type=click.IntRange(1), default=12, show_default=True,
    help="Most registered configs of a kernel to try, and as many others.",
)  # fmt: skip
@click.option("--registered", is_flag=True, help="Try only the configs that calls take without a table.")
@click.option(
    "--keep", type=click.IntRange(1), default=3, show_default=True,
    help="Configs that are timed in full after a quick survey of all.",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), callback=check_finite, default=0.1, show_default=True,
    help="Time for each measurement; slow kernels take more.",
)  # fmt: skip
@click.option(
    "--limit", metavar="SECONDS", type=click.FloatRange(0, min_open=True), callback=check_finite,
    help="Stop after so long.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random inputs.")
@click.option("--yardstick/--no-yardstick", default=True, help="Measure cuBLASLt beside the kernels.")
@click.option(
    "--output", metavar="FILE", type=click.Path(path_type=Path),
    help="The table to write. Default: the user's, which `gemmule tune --where` tells and later calls read.",
)  # fmt: skip
@click.option(
    "--pack", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Write the compiled kernels and the table to a pack, for machines without a compiler; see gemmule pack.",
)  # fmt: skip
@click.option("--record", metavar="FOLDER", type=click.Path(), help="Write the figures to a new record file there.")
@click.option("--resume/--no-resume", default=True, help="Go on where the same search was stopped.")
@click.option("--workers", type=click.IntRange(1), help="Processes that compile. Default: one for each CPU.")
@click.option("--dry-run", is_flag=True, help="Say what would be measured, and measure nothing.")
@click.option("--chip", metavar="NAME", help="The chip of a dry run, where there is no GPU.")
@click.option("--where", is_flag=True, help="Print the name of the user's table and end.")
@json_option
def tune_command(**options: Any) -> None:
    """Find the fastest kernel and config of products on this GPU, and keep them for later calls.

    What is predicted to be slow is not tried. The rest is compiled in parallel processes, surveyed, and the best is
    checked and timed beside cuBLASLt. A search that was stopped goes on with the same command.
    """
    _tune(**options)


def _tune(
    *, shapes: Path | None, preset: str | None, sizes: Sequence[str], dtype: str, out_dtype: str | None, layout: str,
    kernels: str | None, factor: float, most: int, registered: bool, keep: int, seconds: float, limit: float | None,
    seed: int, yardstick: bool, output: Path | None, pack: Path | None, record: str | None, resume: bool,
    workers: int | None, dry_run: bool, chip: str | None, where: bool, as_json: bool,
) -> None:  # fmt: skip
    from ..dispatch.settings_file import check_writable
    from ..dispatch.tuned_file import read_or_set_aside
    from ..dispatch.tuned_table import TunedTable, chip_name, user_file
    from ..lab.tuning.journal import TuningJournal

    if where:
        click.echo(str(user_file()))
        return
    if chip is not None and not dry_run:
        raise ArgumentError("--chip is for --dry-run: a search measures the GPU that is here")
    names = kernel_names(kernels)
    problems = asked_problems(shapes, preset, sizes, dtype, out_dtype, layout)
    table = output if output is not None else user_file()
    pruned: dict[str, Any] = {"kernels": names, "factor": factor, "most": most, "further": not registered}
    if dry_run and chip is not None:
        arch, multiprocessors, name = of_chip(chip)
        wanted = searches(problems, arch, multiprocessors, name, TunedTable(name, table), **pruned)
        tell_dry_run(wanted, arch, table, as_json=as_json)
        return
    if pack is not None:
        check_replaceable(pack)
    if not dry_run:
        # A table that could not be written in the end is told now, not after hours.
        read_or_set_aside(table)
    with gpu.open_gpu(yardstick=yardstick and not dry_run, required=False) as (device, library):
        known = TunedTable(chip_name(device.name), table)
        wanted = searches(problems, device.arch, device.multiprocessors, device.name, known, **pruned)
        if dry_run:
            tell_dry_run(wanted, device.arch, table, as_json=as_json)
            return
        # Its folder, too, must take files.
        check_writable(table)
        settings = {
            "chip": chip_name(device.name), "gemmule": __version__, **pruned,
            "keep": keep, "seconds": seconds, "seed": seed, "yardstick": library is not None,
            "products": sorted(json.dumps(key(search).as_dict()) for search in wanted),
        }  # fmt: skip
        journal = TuningJournal(table, settings)
        done = journal.finished() if resume else set()
        left = [search for search in wanted if key(search) not in done]
        if len(left) < len(wanted) and not as_json:
            click.echo(f"{len(wanted) - len(left)} of {len(wanted)} products were done before: {journal.path}")
        left = compiled(left, device.arch, workers)
        run = Run(device, library, table, journal, {"keep": keep, "seconds": seconds, "seed": seed})
        run.measure(left, record, limit, quiet=as_json)
        if pack is not None and run.is_written and table.exists():
            written = write_tuned_pack(pack, table, device.name, device.multiprocessors, device.arch)
            click.echo(f"pack: {written.path}, {len(written.kernels)} compiled kernels", err=as_json)
    run.end(as_json=as_json)
