"""``gemmule bench``: measurements of kernels compared with cuBLASLt, as tables, records and plots."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..core.cpus import usable_cpus
from ..core.dtype import Precision
from ..core.errors import ArgumentError, UnsupportedError
from ..lab.sizes import SIZE_SETS
from . import gpu
from .bench_end import end, measured
from .bench_output import draw, line, print_end, table
from .bench_show import show_command
from .bench_transpose import transpose_command
from .choice import NameChoice
from .command_line import RecordedCommand, command_line
from .json_output import json_option
from .option_values import check_finite

if TYPE_CHECKING:
    from ..core.arch import Arch
    from ..core.problem import GemmProblem
    from ..core.spec import Choice
    from ..runtime.bench import BenchGpu

#: Products whose kernels are compiled at once in a draw, for each CPU. A group starts processes that import the
#: compiler for seconds each; a run that is cut has measured nothing of the group that is compiled.
_GROUP_FOR_CPU = 8
_SETS = "\n".join(f"  {name:8}{len(sizes)} sizes: {text}" for name, (text, sizes) in SIZE_SETS.items())
_EPILOG = f"""\b
Sizes:
{_SETS}
  M,N,K   any other, such as 4096,4096,1024
  random:COUNT:SEED[:LOW:HIGH]
          log-uniform extents from LOW to HIGH (64 to 8192), a third of them
          odd, the others multiples of 16 bytes
\b
Examples:
  gemmule bench gemm --dtype bfloat16 --sizes 512,3000,4096
  gemmule bench gemm --kernels ladder --record results
  gemmule bench gemm --kernels 'd02_b_in_registers[*]' --dtype float64
  gemmule bench gemm --untuned --dtype bfloat16 --sizes random:60:7"""


@click.group("bench")
def bench_command() -> None:
    """Measure kernels on this GPU, or show recorded measurements of any GPU."""


bench_command.add_command(transpose_command)
bench_command.add_command(show_command)


@bench_command.command(
    "gemm", cls=RecordedCommand, short_help="Measure matrix products, compared with cuBLASLt.", epilog=_EPILOG
)
@click.option(
    "--kernels", metavar="WORDS", multiple=True, default=["chosen"], show_default=True,
    help="chosen (the kernel that a call runs), ladder, all, or kernel names separated by commas; name[1], "
    "name[tile_m=128] (every config with it) and name[*] select configs. Repeatable.",
)  # fmt: skip
@click.option(
    "--sizes", metavar="SIZES", multiple=True, default=["source"], show_default=True,
    help="source, square, llm and odd, separated by commas; M,N,K; or random:COUNT:SEED[:LOW:HIGH]. Repeatable.",
)  # fmt: skip
@click.option(
    "--dtype", "dtypes", metavar="DTYPE", multiple=True, default=["float32"], show_default=True,
    help="Types of A and B, separated by commas; or DTYPE:PRECISION or DTYPE:PRECISION:OUT_DTYPE. Repeatable.",
)  # fmt: skip
@click.option("--out-dtype", metavar="DTYPE", help="Type of the result. Default: that of A and B; int32 for int8.")
@click.option(
    "--precision", type=NameChoice([one.value for one in Precision]), default="ieee", show_default=True,
    help="Arithmetic of floats. The baseline uses TF32 for tf32, float32 for bf16x6, and float64 for ozaki-15; for "
    "ozaki the type itself.",
)  # fmt: skip
@click.option(
    "--layout", type=NameChoice(["nn", "nt", "tn", "tt"]),
    help="Storage of A and B: n row-major, t column-major. Default: nn, or a random layout for random sizes.",
)  # fmt: skip
@click.option("--batch", type=click.IntRange(1), help="Matrix pairs in one batched call.")
@click.option("--untuned", is_flag=True, help="Choose kernels without tuned tables.")
@click.option(
    "--own-transpose", is_flag=True,
    help="Compute A times its own transpose (SYRK), in the same memory: --layout nt or tn, and M = N.",
)  # fmt: skip
@click.option(
    "--misaligned", "places", flag_value="misaligned", help="Start every matrix one element after an aligned address."
)
@click.option("--misaligned-too", "places", flag_value="both", help="Measure aligned and misaligned matrices.")
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), callback=check_finite,
    help="Duration for each kernel and size; slow kernels take longer, for three samples. Default: 1, or 0.1 where "
    "all sizes are random.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random inputs.")
@click.option("--baseline/--no-baseline", "baseline", default=True, help="Measure cuBLASLt too, interleaved.")
@click.option("--torch", "with_torch", is_flag=True, help="Measure PyTorch's call too.")
@click.option("--record", metavar="FOLDER", type=click.Path(), help="Write the results to a new record file in FOLDER.")
@click.option(
    "--plot", metavar="FOLDER", type=click.Path(), help="Write plots over the sizes to FOLDER, as PNG and SVG."
)
@json_option
def gemm_command(**options: Any) -> None:
    """Measure matrix products: times, rate, share of the chip's peak, speed-up over cuBLASLt and error.

    Every kernel is verified first. A wrong kernel is not timed, and the command fails.
    """
    _gemm(_Options(**options))


@dataclasses.dataclass(frozen=True)
class _Options:
    """The options of the command, by their names."""

    kernels: Sequence[str]
    sizes: Sequence[str]
    dtypes: Sequence[str]
    out_dtype: str | None
    precision: str
    layout: str | None
    batch: int | None
    untuned: bool
    own_transpose: bool
    places: str | None
    seconds: float | None
    seed: int
    baseline: bool
    with_torch: bool
    record: str | None
    plot: str | None
    as_json: bool


def _gemm(options: _Options) -> None:
    from ..dispatch import registry
    from ..dispatch.kernel_names import CHOSEN, on_gpu, parse_kernels, without_chosen
    from ..dispatch.rates_table import rates_for
    from ..lab.bench_plan import BenchPlan
    from ..lab.drawing.canvas import check_matplotlib
    from ..lab.draws import SECONDS
    from ..lab.experiment import experiment
    from ..lab.gemm_bench import GemmBench
    from ..lab.gemm_operation import product_of
    from .bench_products import Shapes, parse_types

    types = parse_types(options.dtypes, options.out_dtype, options.precision)
    misaligned = {None: (False,), "misaligned": (True,), "both": (False, True)}[options.places]
    shapes = Shapes(options.sizes, options.layout, options.batch, misaligned, options.own_transpose)
    problems = shapes.problems(types)
    if options.plot is not None:
        check_matplotlib()
    words, asks_chosen = without_chosen(options.kernels)
    if options.untuned and not asks_chosen:
        raise ArgumentError("--untuned is for the kernel that a call runs; add --kernels chosen")

    def named(arch: Arch | None) -> tuple[Choice, ...]:
        each = (parse_kernels(words, one.probe, arch, registry.REGISTRY, registry.LADDER, [CHOSEN]) for one in types)
        return tuple({(one.spec.name, one.config): one for choices in each for one in choices}.values())

    # Names are looked up before a GPU is opened, so that a wrong one is reported first.
    named(None)
    with gpu.open_gpu(baseline=options.baseline) as (device, library):
        rates = rates_for(device.name, device.multiprocessors)
        choices = on_gpu(named(device.arch), rates, device.arch)
        if not choices and not asks_chosen:
            raise UnsupportedError(
                f"no rung of the ladder takes {', '.join(options.dtypes)}; name kernels with --kernels, or use "
                "--kernels all"
            )
        torch = device.torch_gemm() if options.with_torch else None
        chosen = _chosen_on(device, tuned=not options.untuned) if asks_chosen else None
        drawn = len(shapes.draws) > 0
        if chosen is not None and drawn:
            # One kernel after another, each at its turn, would take most of the time; all first, a run that is cut.
            chosen = _CompiledInGroups(problems, chosen, device.arch)
        plan = BenchPlan(
            problems, choices, seconds=options.seconds or (SECONDS if drawn else 1.0), seed=options.seed, chosen=chosen,
            about={"untuned": options.untuned} | ({"draws": [vars(draw) for draw in shapes.draws]} if drawn else {}),
        )  # fmt: skip
        bench = GemmBench(plan, device, gpu.known_chip(device.name), library, torch)
        block = experiment(command_line(), device.pci_bus_id) | bench.about()
        if device.no_sensors is not None:
            click.echo(device.no_sensors, err=True)
        records = measured(
            bench,
            block,
            plan.points,
            options.record,
            key=product_of,
            # With calls alone a product has one row.
            show=None if options.as_json else table if choices else line,
        )
    end(block, records, print_end, draw, plot=options.plot, as_json=options.as_json)


class _CompiledInGroups:
    """Chooser of kernels, which at a group's first product compiles those of the group that the cache lacks, at once.

    Errors of the compiler appear at the measurement.

    Parameters
    ----------
    problems : sequence of GemmProblem
        The products, in the order in which they are measured.
    chosen : callable
        Gives a product's kernel and config.
    arch : Arch
        The GPU's architecture.
    """

    def __init__(self, problems: Sequence[GemmProblem], chosen: Callable[[GemmProblem], Choice], arch: Arch) -> None:
        self._chosen, self._arch = chosen, arch
        size = _GROUP_FOR_CPU * usable_cpus()
        self._groups = {problems[at]: problems[at : at + size] for at in range(0, len(problems), size)}

    def __call__(self, problem: GemmProblem) -> Choice:
        """Return the kernel and config of a product."""
        if group := self._groups.pop(problem, None):
            self._compile(group)
        return self._chosen(problem)

    def _compile(self, group: Sequence[GemmProblem]) -> None:
        from ..compiler.pool import compile_all, jobs_of

        # The bar of the measurement shows time pass; a second one would write over it.
        list(compile_all(dict.fromkeys(job for one in group for job in jobs_of(self._chosen(one), one, self._arch))))


def _chosen_on(device: BenchGpu, *, tuned: bool) -> Callable[[GemmProblem], Choice]:
    """Return the function that chooses the kernel and config of a call on a GPU."""
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
        return dataclasses.replace(found, refusals=())

    return chosen
