"""``gemmule compare``: one product on the CPU, by every kernel, and by the roofline of a chip."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import DriverError, UnsupportedError, WrongResultError
from ..core.quantities import duration, flop_rate, short_quantity
from . import gpu
from .json_output import echo_json, json_option
from .tables import echo_text, print_table

if TYPE_CHECKING:
    from ..core.problem import GemmProblem
    from ..core.spec import Choice
    from ..lab.bench_records import Record

#: Chip of the roofline where there is no GPU.
DEFAULT_CHIP = "h100"
# Time for each kernel.
_SECONDS = 0.3


@click.command(
    "compare",
    epilog="Example: gemmule compare 4096 4096 4096 --dtype float32 --chip h100",
)
@click.argument("m", type=click.IntRange(1))
@click.argument("n", type=click.IntRange(1))
@click.argument("k", type=click.IntRange(1))
@click.option("--dtype", metavar="DTYPE", default="float32", show_default=True, help="Type of A and B.")
@click.option(
    "--kernels", metavar="WORDS", multiple=True, default=["all"], show_default=True,
    help="ladder, all, or kernel names separated by commas, as in `gemmule bench gemm`. Repeatable.",
)  # fmt: skip
@click.option("--chip", metavar="NAME", help=f"Chip of the roofline. Default: this GPU, or {DEFAULT_CHIP} without one.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random inputs.")
@click.option("--baseline/--no-baseline", "baseline", default=True, help="Measure cuBLASLt too, interleaved.")
@json_option
def compare_command(**options: Any) -> None:
    """Compare an (M x K) by (K x N) product on the CPU, by every kernel, and by the roofline of a chip.

    Times, rates and errors against a more exact reference; the least times of the host link, the GPU's memory and its
    arithmetic units; and whether the product is compute- or memory-bound. Without a GPU: the CPU's time, and the
    roofline of any chip.
    """
    _compare(_Options(**options))


@dataclasses.dataclass(frozen=True)
class _Options:
    """The options of the command, by their names."""

    m: int
    n: int
    k: int
    dtype: str
    kernels: Sequence[str]
    chip: str | None
    seed: int
    baseline: bool
    as_json: bool


def _compare(options: _Options) -> None:
    from ..api.functions import gemm
    from ..core.chips import chip_named
    from ..dispatch import registry
    from ..dispatch.kernel_names import parse_kernels
    from ..host.tiles import HostTileExecutor
    from ..lab.compare import on_the_host, theory
    from ..lab.products import gemm_problem, output_type
    from ..runtime.device import device_count

    problem = gemm_problem(options.m, options.n, options.k, options.dtype, output_type(options.dtype, None), "nn")
    choices = parse_kernels(options.kernels, problem, None, registry.REGISTRY, registry.LADDER)
    _check_fits(problem)
    here = device_count() > 0
    facts = chip_named(options.chip or DEFAULT_CHIP) if options.chip is not None or not here else None
    limits = theory(problem, facts) if facts is not None else None
    records: list[Record] = []
    link: dict[str, float] = {}
    if here:
        records, link, limits = _on_the_gpu(problem, choices, options.seed, limits, baseline=options.baseline)
    host = on_the_host(problem, lambda a, b: gemm(a, b, out_dtype=problem.d.dtype.name, executor="cpu"), options.seed)
    host = {"blas": HostTileExecutor().describe()} | host
    if options.as_json:
        found = {
            "m": options.m,
            "n": options.n,
            "k": options.k,
            "dtype": options.dtype,
            "host": host,
            "theory": limits,
            "link_measured": link,
        }
        echo_json(found | {"gpu": here, "records": records})
    else:
        echo_text(_verdict(problem, host, records, limits, here=here))
        _print_times(host, records)
        if limits is not None:
            _print_theory(limits, link)
        else:
            click.echo("The chip table lacks this GPU; name a chip of the table with --chip.")
    if (failure := gpu.failure_of(records)) is not None:
        raise WrongResultError(failure)


def _check_fits(problem: GemmProblem) -> None:
    """Raise UnsupportedError if the host has not the memory for the product."""
    needed, there = problem.bytes_min, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise UnsupportedError(
            f"{problem.m} x {problem.n} x {problem.k} takes {needed / 1e9:.4g} GB of the host's memory, which has "
            f"{there / 1e9:.4g} GB; compare a smaller product, or multiply files with `gemmule matmul`"
        )


def _on_the_gpu(
    problem: GemmProblem, choices: Sequence[Choice], seed: int, limits: dict[str, Any] | None, *, baseline: bool
) -> tuple[list[Record], dict[str, float], dict[str, Any] | None]:
    """Measure the kernels and the host link; return the records, the link's rates in GB/s, and the theory.

    `limits` is the theory of another chip; None asks for that of this GPU, which is None where the table lacks it.
    """
    from ..dispatch.kernel_names import on_gpu
    from ..dispatch.rates_table import rates_for
    from ..lab.bench_plan import BenchPlan
    from ..lab.compare import COMPARED_ROWS, theory
    from ..lab.gemm_bench import GemmBench
    from .progress import steps_progress

    with (
        gpu.open_gpu(baseline=baseline, required=False) as (device, library),
        steps_progress("measuring", len(choices)) as step,
    ):
        facts = gpu.known_chip(device.name)
        if limits is None and facts is not None:
            limits = theory(problem, facts)
        rates = rates_for(device.name, device.multiprocessors)
        plan = BenchPlan(
            (problem,), on_gpu(choices, rates, device.arch), seconds=_SECONDS, seed=seed, rows=COMPARED_ROWS
        )
        records = []
        for one in GemmBench(plan, device, facts, library).records(lambda doing: step(doing, 0)):
            records.append(one)
            step("", 1)
        try:
            there, back = device.link_rates()
        except DriverError as error:
            click.echo(f"the host link was not measured: {error}", err=True)
            return records, {}, limits
    return records, {"to_gpu_gbps": round(there / 1e9, 2), "back_gbps": round(back / 1e9, 2)}, limits


def _verdict(
    problem: GemmProblem, host: Mapping[str, Any], records: Sequence[Record], limits: Mapping[str, Any] | None, *,
    here: bool,
) -> str:  # fmt: skip
    """Return the fastest way to compute the product, and the bound on a chip, in a line."""
    from ..lab.kernel_labels import labels, name_of

    text = f"{problem.m} x {problem.n} x {problem.k}, {problem.a.dtype}: "
    timed = [one for one in records if one["record"] == "gemm" and "median_us" in one]
    if timed:
        best = min(timed, key=lambda one: one["median_us"])
        ratio = f", {best['ratio']:.3f} of cuBLASLt's rate" if "ratio" in best else ""
        text += f"{name_of(best, labels(records))} is the fastest kernel, {duration(best['median_us'] / 1e6)}, "
        text += f"{flop_rate(best['tflops'] * 1e12)}{ratio}"
    else:
        text += f"{duration(host['median_ms'] / 1e3)} on the CPU, {flop_rate(host['gflops'] * 1e9)}"
        text += "" if here else "; no NVIDIA GPU found, so no kernel was run"
    if limits is not None:
        least = duration(max(limits["memory_ms"], limits["compute_ms"]) / 1e3)
        text += f"; {limits['verdict']} on {limits['chip']}, at least {least}"
    return text


def _print_times(host: Mapping[str, Any], records: Sequence[Record]) -> None:
    from ..lab.bench_tables import note_of
    from ..lab.gemm_operation import RATES, rate_unit
    from ..lab.kernel_labels import labels, name_of

    unit = rate_unit([*records, {"tflops": host["gflops"] / 1e3}])
    scale = RATES[unit]
    header = ["computed by", "time ms", unit, "of peak", "vs cuBLASLt", "mean squared error", "error u", "note"]
    rows = [["CPU", _ms(host["median_ms"]), f"{host['gflops'] / 1e3 * scale:.4g}", "", "", *_errors(host)]]
    names = labels(records)
    for one in records:
        if "median_us" not in one:
            rows.append([name_of(one, names), *[""] * 6, note_of(one)])
            continue
        ratio = "1" if one["record"] == "yardstick" else f"{one['ratio']:.3f}" if "ratio" in one else ""
        rows.append(
            [
                name_of(one, names), _ms(one["median_us"] / 1e3), f"{one['tflops'] * scale:.4g}",
                f"{100 * one['peak_share']:.1f} %" if "peak_share" in one else "", ratio, *_errors(one),
            ]
        )  # fmt: skip
    print_table("measured", header, rows, optional=("mean squared error", "of peak"))
    echo_text(
        f"CPU: {host['blas']}. Errors are of {host['rows']} rows, against a more exact reference; error u is the "
        "largest componentwise error, in units of u (|A| |B|)ij."
    )
    click.echo()


def _ms(value: float) -> str:
    """Return milliseconds with three figures at least, without an exponent."""
    places = 3 if value >= 1 or value <= 0 else 2 - math.floor(math.log10(value))
    return f"{value:.{places}f}"


def _errors(figures: Mapping[str, Any]) -> list[str]:
    if "failure" in figures:
        return ["", "", str(figures["failure"])]
    return [f"{figures['mean_squared_error']:.3g}", f"{figures['error_u']:.2f}", ""]


def _print_theory(limits: Mapping[str, Any], link: Mapping[str, float]) -> None:
    there, back = limits["bytes_to_gpu"], limits["bytes_back"]
    nominal = f"{limits['host_link_gbps']:.0f} GB/s, {limits['host_link']}"
    rows = [
        ["host link, to the GPU", f"{there / 1e6:.2f} MB", nominal, _ms(limits["to_gpu_ms"])],
        ["host link, back", f"{back / 1e6:.2f} MB", nominal, _ms(limits["back_ms"])],
    ]
    for text, size, rate in (("to the GPU", there, "to_gpu_gbps"), ("back", back, "back_gbps")):
        if rate in link:
            measured = f"{link[rate]:.1f} GB/s, pinned, measured"
            rows.append([f"host link, {text}", f"{size / 1e6:.2f} MB", measured, _ms(size / link[rate] / 1e6)])
    rows += [
        ["device memory", f"{(there + back) / 1e6:.2f} MB", f"{limits['memory_gbps']:.0f} GB/s",
         _ms(limits["memory_ms"])],
        ["arithmetic units", short_quantity(limits["operations"], "FLOP"),
         f"{limits['unit_tflops']:.1f} TFLOP/s, {limits['unit'].replace('_', ' ')}", _ms(limits["compute_ms"])],
    ]  # fmt: skip
    print_table(f"least times on {limits['chip']}", ["unit", "amount", "rate", "ms"], rows, texts=3)
    echo_text(
        f"{limits['verdict']} with operands in device memory: {limits['operations_per_byte']:.1f} FLOP a byte, the "
        f"ridge point is at {limits['ridge_operations_per_byte']:.1f}; bound by {limits['limited_from_host_by']} with "
        "operands in host memory"
    )
