"""``gemmule explain``: why a kernel is as fast as it is, without a GPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .choice import NameChoice
from .drawings import check_drawings
from .json_output import echo_json, json_option
from .tables import prose_width

if TYPE_CHECKING:
    from ..core.problem import Problem
    from ..core.spec import Choice
    from ..lab.explain import Explanation
    from ..lab.explain.steps import Rules

#: The chip where none is named.
DEFAULT_CHIP = "h100"


def _positive(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    del ctx, param
    if value is not None and not 0 < value < float("inf"):
        raise click.BadParameter(f"{value} is not a bandwidth in GB/s; give a number above 0, such as 3350")
    return value


def _positive_cycles(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    del ctx
    if value is not None and not 0 < value < float("inf"):
        raise click.BadParameter(
            f"{value} is not above 0; {param.opts[0]} takes a number such as {_USUAL[param.opts[0]]}"
        )
    return value


_USUAL = {"--copy-bytes": 64, "--copy-latency": 600}


@click.command(
    "explain",
    epilog="\b\nExamples:\n  gemmule explain g04_register_tile --shape 4096,4096,4096 --chip h100\n"
    "  gemmule explain 'g05_conflict_free[tile_k=16]' --shape 1000,1000,1000\n"
    "  gemmule explain transpose_reference --shape 8192,8192 --chip a100",
)
@click.argument("kernel", metavar="KERNEL")
@click.option("--shape", metavar="M,N,K", required=True, help="Size of the product; M,N or BATCH,M,N of a transpose.")
@click.option("--chip", metavar="NAME", default=DEFAULT_CHIP, show_default=True, help="Chip whose bound is computed.")
@click.option(
    "--config", metavar="CONFIG",
    help="Config of the kernel: its number, or fields such as tile_m=64. The same as KERNEL[CONFIG]. Default: that of "
    "a call on the chip; of a rung the first.",
)  # fmt: skip
@click.option(
    "--dtype", metavar="DTYPE",
    help="Type of A and B, or of the transposed matrix. Default: the first that the kernel takes.",
)  # fmt: skip
@click.option("--out-dtype", metavar="DTYPE", help="Type of the result. Default: that of A and B; int32 for int8.")
@click.option(
    "--layout", type=NameChoice(["nn", "nt", "tn", "tt"]),
    help="Storage of A and B: n row-major, t column-major. Default: the first that the kernel takes.",
)  # fmt: skip
@click.option(
    "--precision", metavar="WORD",
    help="Arithmetic of floats: ieee, tf32, bf16x6, ozaki-15 (14, 16) or float8. Default: ieee.",
)  # fmt: skip
@click.option(
    "--bandwidth", type=float, callback=_positive, metavar="GB/S",
    help="Measured bandwidth of device memory. Default: the vendor's.",
)  # fmt: skip
@click.option(
    "--l2-bandwidth", type=float, callback=_positive, metavar="GB/S",
    help="Measured bandwidth of the L2 cache; NVIDIA publishes none.",
)  # fmt: skip
@click.option(
    "--copy-bytes", type=float, callback=_positive_cycles, metavar="B",
    help="Assumed bytes a cycle that TMA loads from L2 for an SM, in the timeline. Default: 64.",
)  # fmt: skip
@click.option(
    "--copy-latency", type=float, callback=_positive_cycles, metavar="CYCLES",
    help="Assumed latency of a TMA load in cycles, in the timeline. Default: 600.",
)  # fmt: skip
@click.option(
    "--timeline", metavar="T.png", type=click.Path(), help="Draw the timeline of the pipeline (.png or .svg).",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an existing picture.")
@json_option
def explain_command(**options: Any) -> None:
    """Explain a kernel: its load on each unit of a chip, the bound that follows, and what to change next.

    Bytes and operations, counted and by formula; arithmetic intensity at each level of the memory; coalescing, bank
    conflicts and the instruction mix, by source line; registers, shared memory and occupancy; the least time of each
    unit; and for TMA kernels the timeline of the pipeline. The compiled kernel runs on the virtual GPU: no GPU is
    needed.
    """
    _explain(_Options(**options))


@dataclasses.dataclass(frozen=True)
class _Options:
    """The options of the command, by their names."""

    kernel: str
    shape: str
    chip: str
    config: str | None
    dtype: str | None
    out_dtype: str | None
    layout: str | None
    precision: str | None
    bandwidth: float | None
    l2_bandwidth: float | None
    copy_bytes: float | None
    copy_latency: float | None
    timeline: str | None
    force: bool
    as_json: bool


def _explain(options: _Options) -> None:
    from ..core.errors import ArgumentError
    from ..lab.explain import page

    if options.timeline is not None:
        check_drawings(None, options.timeline, force=options.force)
    if options.config is not None and "[" in options.kernel:
        raise ArgumentError(f"{options.kernel} and --config {options.config} both name a config; give one of them")
    explained = explanation(
        f"{options.kernel}[{options.config}]" if options.config is not None else options.kernel,
        options.shape,
        options.chip,
        dtype=options.dtype,
        out_dtype=options.out_dtype,
        layout=options.layout,
        precision=options.precision,
        rates=Rates(options.bandwidth, options.l2_bandwidth, options.copy_bytes, options.copy_latency),
    )
    if options.timeline is not None:
        _draw(explained, options.timeline, force=options.force)
    if options.as_json:
        echo_json(explained.as_json())
    else:
        click.echo(page(explained, prose_width()))


def _draw(explained: Explanation, path: str, *, force: bool) -> None:
    from ..core.errors import UnsupportedError
    from ..lab.explain.sample import extents
    from ..lab.explain.timeline_picture import draw_timeline

    name = explained.choice.spec.name
    if explained.timeline is None:
        raise UnsupportedError(
            f"--timeline {path}: {name} has no timeline, since it loads no k-tiles by TMA or the chip cannot "
            "launch it; omit --timeline, or explain hopper_gemm or one of h02 to h08"
        )
    shape = " x ".join(map(str, extents(explained.problem)))
    tiles = f"{explained.timeline.tiles} tiles" if explained.timeline.tiles > 1 else "a tile"
    title = f"{name}, {shape}, on {explained.chip.name}: {tiles} of a CTA, cut to {explained.timeline.k_tiles} k-tiles"
    draw_timeline(Path(path).absolute(), explained.timeline, title, force=force)


@dataclasses.dataclass(frozen=True)
class Rates:
    """Rates of a chip as measured; None stands for the vendor's, or for what is assumed."""

    #: bandwidth, l2_bandwidth: GB/s of device memory and of the L2 cache.
    bandwidth: float | None = None
    l2_bandwidth: float | None = None
    #: copy_bytes, copy_latency: Bytes a cycle that TMA loads for an SM, and the latency of a TMA load in cycles, in a
    #: timeline.
    copy_bytes: float | None = None
    copy_latency: float | None = None


def explanation(
    kernel: str,
    shape: str,
    chip: str = DEFAULT_CHIP,
    *,
    dtype: str | None = None,
    out_dtype: str | None = None,
    layout: str | None = None,
    precision: str | None = None,
    rates: Rates | None = None,
) -> Explanation:
    """Explain the kernel of that name: what the command does, from Python.

    Parameters
    ----------
    kernel : str
        Name, with a config in brackets if not that of a call on the chip, or of a rung the first.
    shape : str
        ``M,N,K``; of a transpose ``M,N``, or ``BATCH,M,N``.
    chip : str
        Name of a chip.
    dtype, out_dtype, layout, precision : str, optional
        As of the command.
    rates : Rates, optional
        Measured rates of the chip.

    Raises
    ------
    ArgumentError
        If a name is not known or a value is none.
    UnsupportedError
        If the kernel cannot take the problem.
    """
    from ..core.chips import chip_named
    from ..lab.explain import arch_for, explain
    from ..lab.explain.named import as_called, choice_named, problem_of
    from ..vgpu.instrument import CountedKernel

    rates = rates or Rates()
    given = {"copy_bytes": rates.copy_bytes, "copy_latency": rates.copy_latency}

    def rules(own: Rules) -> Rules:
        return dataclasses.replace(own, **{name: value for name, value in given.items() if value is not None})

    facts = chip_named(chip)
    choice: Choice = choice_named(kernel)
    arch = arch_for(facts)[0]
    problem: Problem = problem_of(choice, arch, shape, dtype, out_dtype, layout, precision)
    return explain(
        problem,
        choice if "[" in kernel else as_called(choice, problem, arch, facts),
        facts,
        CountedKernel,
        bandwidth=None if rates.bandwidth is None else 1e9 * rates.bandwidth,
        l2_bandwidth=None if rates.l2_bandwidth is None else 1e9 * rates.l2_bandwidth,
        rules=rules,
    )
