"""``gemmule explain``: why a kernel is as fast as it is, without a GPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..core.problem import Problem
    from ..core.spec import Choice
    from ..lab.explain import Explanation

#: The chip where none is named.
DEFAULT_CHIP = "h100"


def _positive(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    del ctx, param
    if value is not None and not 0 < value < float("inf"):
        raise click.BadParameter(f"{value} is not a bandwidth in GB/s; give a number above 0, such as 3350")
    return value


@click.command(
    "explain",
    epilog="\b\nExamples: gemmule explain g04_register_tile --shape 4096,4096,4096 --chip h100\n"
    "          gemmule explain 'g05_conflict_free[tile_k=16]' --shape 1000,1000,1000 --chip a100 --json\n"
    "          gemmule explain transpose_reference --shape 8192,8192",
)
@click.argument("kernel", metavar="KERNEL")
@click.option("--shape", metavar="M,N,K", required=True, help="Size of the product; M,N for a transpose.")
@click.option("--chip", metavar="NAME", default=DEFAULT_CHIP, show_default=True, help="Chip to be explained for.")
@click.option(
    "--config", metavar="CONFIG",
    help="The kernel's config: its number, or fields such as tile_m=64. The same as KERNEL[CONFIG].",
)  # fmt: skip
@click.option(
    "--dtype", metavar="DTYPE",
    help="Type of A and B, or of what is transposed. Default: the first that the kernel takes.",
)  # fmt: skip
@click.option("--out-dtype", metavar="DTYPE", help="Type of the result. Default: that of A and B; int32 for int8.")
@click.option(
    "--layout", type=click.Choice(["nn", "nt", "tn", "tt"]),
    help="How A and B lie in memory: n in rows, t in columns. Default: the first that the kernel takes.",
)  # fmt: skip
@click.option("--precision", metavar="WORD", help="What float32 may be rounded to: ieee or tf32. Default: ieee.")
@click.option(
    "--bandwidth", type=float, callback=_positive, metavar="GB/S",
    help="Bandwidth of device memory as measured. Default: the vendor's.",
)  # fmt: skip
@click.option(
    "--l2-bandwidth", type=float, callback=_positive, metavar="GB/S",
    help="Bandwidth of the L2 cache as measured: none is published.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def explain_command(**options: Any) -> None:
    """Explain a kernel: what it asks of each unit of a chip, and what to change next.

    Bytes and operations, counted and by formula; arithmetic intensity at each level of the memory; coalescing, bank
    conflicts and the mix of instructions, by source line too; registers, shared memory and occupancy; the least time
    that each unit takes. The compiled kernel is run on the virtual GPU: no GPU is needed.
    """
    _explain(**options)


def _explain(
    *, kernel: str, shape: str, chip: str, config: str | None, dtype: str | None, out_dtype: str | None,
    layout: str | None, precision: str | None, bandwidth: float | None, l2_bandwidth: float | None, as_json: bool,
) -> None:  # fmt: skip
    from ..lab.explain import page

    explained = explanation(
        f"{kernel}[{config}]" if config is not None else kernel, shape, chip, dtype=dtype, out_dtype=out_dtype,
        layout=layout, precision=precision, bandwidth=bandwidth, l2_bandwidth=l2_bandwidth,
    )  # fmt: skip
    click.echo(json.dumps(explained.as_json()) if as_json else page(explained))


def explanation(
    kernel: str,
    shape: str,
    chip: str = DEFAULT_CHIP,
    *,
    dtype: str | None = None,
    out_dtype: str | None = None,
    layout: str | None = None,
    precision: str | None = None,
    bandwidth: float | None = None,
    l2_bandwidth: float | None = None,
) -> Explanation:
    """Explain the kernel of that name: what the command does, from Python.

    Parameters
    ----------
    kernel : str
        Name, with a config in brackets if not the default.
    shape : str
        ``M,N,K``, or ``M,N`` for a transpose.
    chip : str
        Name of a chip.
    dtype, out_dtype, layout, precision : str, optional
        As of the command.
    bandwidth, l2_bandwidth : float, optional
        GB/s, as measured.

    Raises
    ------
    ArgumentError
        If a name is not known or a value is none.
    UnsupportedError
        If the kernel cannot take the problem.
    """
    from ..lab.explain import arch_for, explain
    from ..lab.explain.named import choice_named, problem_of
    from ..vgpu.instrument import CountedKernel
    from . import gpu

    facts = gpu.chip_called(chip)
    choice: Choice = choice_named(kernel)
    problem: Problem = problem_of(choice, arch_for(facts)[0], shape, dtype, out_dtype, layout, precision)
    return explain(
        problem,
        choice,
        facts,
        CountedKernel,
        bandwidth=None if bandwidth is None else 1e9 * bandwidth,
        l2_bandwidth=None if l2_bandwidth is None else 1e9 * l2_bandwidth,
    )
