"""``gemmule profile``: the time of a product by kernel, CUDA API call and copy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import ArgumentError, UnsupportedError
from . import gpu
from .command_line import RecordedCommand, command_line
from .json_output import echo_json, json_option
from .tables import echo_text, print_table

if TYPE_CHECKING:
    from ..core.problem import GemmProblem
    from ..core.spec import Choice
    from ..executor.activity import Profile
    from ..lab.bench_records import Record
    from ..runtime.bench import BenchGpu

_EPILOG = """\b
Examples:
  gemmule profile 4096 4096 4096 --kernels ladder --trace profile.json
  nsys profile -c cudaProfilerApi gemmule profile 4096 4096 4096 --ranges-only
  ncu --nvtx --nvtx-include "gemmule@simt_gemm/" \\
      gemmule profile 4096 4096 4096 --ranges-only"""


@click.command("profile", cls=RecordedCommand, epilog=_EPILOG)
@click.argument("m", type=click.IntRange(1))
@click.argument("n", type=click.IntRange(1))
@click.argument("k", type=click.IntRange(1))
@click.option("--dtype", metavar="DTYPE", default="float32", show_default=True, help="Type of A and B.")
@click.option(
    "--kernels", metavar="WORDS", multiple=True,
    help="ladder, all, or kernel names separated by commas, as in `gemmule bench gemm`. Repeatable. Default: the "
    "kernel that a call runs.",
)  # fmt: skip
@click.option(
    "--repeat", metavar="N", type=click.IntRange(1), default=10, show_default=True, help="Launches of each kernel."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random inputs.")
@click.option("--trace", metavar="FILE", type=click.Path(dir_okay=False), help="Write a timeline for Perfetto.")
@click.option("--force", is_flag=True, help="Replace an existing timeline.")
@click.option("--record", metavar="FOLDER", type=click.Path(), help="Write the results to a new record file in FOLDER.")
@click.option("--ranges-only", is_flag=True, help="Only mark NVTX ranges for nsys or ncu; measure nothing.")
@json_option
def profile_command(**options: Any) -> None:
    """Break down the time of an (M x K) by (K x N) product by kernel, CUDA API call and copy.

    For each kernel, A and B are copied to the GPU, the kernel runs, and the result is copied back. Every kernel is
    verified first. CUPTI records each kernel, copy and API call: count, total, mean, median, least and greatest time,
    share, and the sizes of the copies.
    """
    _profile(_Options(**options))


@dataclasses.dataclass(frozen=True)
class _Options:
    """The options of the command, by their names."""

    m: int
    n: int
    k: int
    dtype: str
    kernels: Sequence[str]
    repeat: int
    seed: int
    trace: str | None
    force: bool
    record: str | None
    ranges_only: bool
    as_json: bool


def _profile(options: _Options) -> None:
    from ..dispatch import registry
    from ..dispatch.kernel_names import parse_kernels
    from ..lab.experiment import experiment
    from ..lab.products import gemm_problem, output_type
    from ..lab.profile.summary import rows
    from ..lab.profile.tables import records
    from ..lab.profile.trace import write_trace
    from ..lab.records import write_records
    from ..runtime import profiling

    problem = gemm_problem(options.m, options.n, options.k, options.dtype, output_type(options.dtype, None), "nn")
    # Errors in names come before the check for a GPU.
    parse_kernels(options.kernels, problem, None, registry.REGISTRY, registry.LADDER)
    _check_outputs(
        options.trace, options.record, force=options.force, ranges_only=options.ranges_only, as_json=options.as_json
    )
    gpu.check_gpu("`gemmule compare M N K` times the CPU")
    if not options.ranges_only:
        profiling.check_cupti()
    with gpu.open_gpu(baseline=False) as (device, _):
        choices = _choices(problem, device, options.kernels)
        profile = _recorded(problem, device, choices, options.repeat, options.seed, ranges_only=options.ranges_only)
        if profile is None:
            click.echo("done; nothing was measured here: nsys or ncu has the results", err=True)
            return
        about = experiment(command_line(), device.pci_bus_id)
        about |= {
            "seed": options.seed,
            "repeat": options.repeat,
            "cuda": device.cuda,
            "cupti_python": profiling.cupti_version(),
        }
    if options.trace is not None:
        write_trace(Path(options.trace), profile, about, force=options.force)
    lines = records(rows(profile), problem)
    written = write_records(Path(options.record), about, lines) if options.record is not None else None
    if options.as_json:
        echo_json({"experiment": about, "records": lines, "lost": profile.lost})
        return
    _print(problem, profile, lines)
    for what, where in (("trace", options.trace), ("record", written)):
        if where is not None:
            click.echo(f"{what}: {where}")


def _check_outputs(
    trace: str | None, record: str | None, *, force: bool, ranges_only: bool, as_json: bool
) -> None:  # fmt: skip
    """Raise ArgumentError for outputs that cannot be written, or that there will be nothing for."""
    from ..lab.whole_files import check_target

    if ranges_only and (trace is not None or record is not None or as_json):
        raise ArgumentError(
            "--ranges-only measures nothing, so there are no figures for --trace, --record or --json; omit these"
        )
    if trace is not None:
        if not Path(trace).absolute().parent.is_dir():
            raise ArgumentError(f"--trace {trace}: there is no folder {Path(trace).parent}; make it first")
        # Before anything runs: the kernels may take minutes.
        check_target(Path(trace), force=force)


def _choices(problem: GemmProblem, device: BenchGpu, words: Sequence[str]) -> tuple[Choice, ...]:
    """Return the named kernels that take the product, or by default the one that a call runs."""
    from ..dispatch import registry
    from ..dispatch.kernel_names import on_gpu, parse_kernels
    from ..dispatch.rates_table import rates_for
    from ..dispatch.select import choose
    from ..runtime.device import get_device

    multiprocessors = get_device(0).multiprocessors
    if not words:
        return (choose(problem, device.arch, registry.REGISTRY, multiprocessors=multiprocessors, chip=device.name),)
    rates = rates_for(device.name, multiprocessors)
    named = parse_kernels(words, problem, device.arch, registry.REGISTRY, registry.LADDER)
    requested = on_gpu(named, rates, device.arch)
    reasons = [(one, one.spec.why_not(problem, device.arch, one.config)) for one in requested]
    skipped = [f"{one.spec.name}: {reason}" for one, reason in reasons if reason is not None]
    taken = tuple(one for one, reason in reasons if reason is None)
    if not taken:
        why = "; ".join(skipped) or f"no rung of the ladder takes {problem.a.dtype}"
        raise UnsupportedError(f"no kernel is left to profile: {why}; name others with --kernels, or all")
    for line in skipped:
        click.echo(f"skipped: {line}", err=True)
    return taken


def _recorded(
    problem: GemmProblem, device: BenchGpu, choices: tuple[Choice, ...], repeat: int, seed: int, *, ranges_only: bool
) -> Profile | None:
    """Verify the kernels, run them under CUPTI, and return its profile; None under another profiler."""
    from ..lab.products import random_inputs
    from ..lab.profile import workload
    from ..runtime import profiling, profiling_ranges

    needed, free = problem.bytes_min, device.memory_free()
    if needed > free:
        raise UnsupportedError(
            f"the operands take {needed / 1e9:.4g} GB, and {free / 1e9:.4g} GB of the GPU's memory are free; profile a "
            "smaller product"
        )
    kernels = workload.named(choices)
    inputs = random_inputs(problem, seed)
    workload.check(device, problem, kernels, inputs, seed)
    if ranges_only:
        with profiling_ranges.ranges_only() as ranges:
            workload.run(device, problem, kernels, inputs, repeat, ranges.range)
        return None
    with profiling.profiling() as session:
        workload.run(device, problem, kernels, inputs, repeat, session.range)
    profile = session.profile()
    if not profile.kernels:
        raise UnsupportedError(
            "CUPTI recorded no kernel, though kernels ran: another profiler has taken the records, or CUPTI does not "
            "know this GPU; run outside of other profilers, and with a cupti-python as new as the driver"
        )
    return profile


def _print(problem: GemmProblem, profile: Profile, records: Sequence[Record]) -> None:
    from ..lab.profile import summary, tables

    size = f"{problem.m} x {problem.n} x {problem.k}, {problem.a.dtype}"
    window = summary.window_ns(profile)
    kernels, copies = (summary.busy_ns(spans) / 1e3 for spans in (profile.kernels, profile.copies))
    idle = window - summary.busy_ns((*profile.kernels, *profile.copies))
    echo_text(
        f"{size}: {window / 1e3:.2f} us from the first start to the last end; kernels ran for {kernels:.2f} us, copies "
        f"for {copies:.2f} us, and the GPU was idle for {idle / 1e3:.2f} us"
    )
    for kind, title, texts in tables.TIME_TABLES:
        header, rows = tables.times(records, kind)
        if rows:
            print_table(f"{size}: {title}", header, rows, texts)
    print_table(f"{size}: {tables.SIZES_TITLE}", *tables.sizes(records))
    if profile.lost:
        click.echo(f"{profile.lost} records are missing: CUPTI had no buffer for them, or no times")
