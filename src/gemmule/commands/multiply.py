"""``gemmule multiply``: the product of two files, at any size."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from .json_output import echo_json, json_option

if TYPE_CHECKING:
    from ..api.device_product import DeviceProduct
    from ..api.streamed import StreamedProduct
    from ..outofcore.multiply import Report
    from ..outofcore.verify import Verdict

#: Allowance for what BLAS, threads and the allocator take once Python and its libraries are loaded; 8 MiB were seen.
LIBRARY_BYTES = 32 << 20

#: Whether a file may be read is said by what opens it, in one line, as all else that is wrong with it.
_FILE = click.Path(readable=False)
_RAW = "Type of raw items in {}, which NumPy cannot name: bfloat16, float8_e4m3fn or float8_e5m2."


class _Pair(click.ParamType[Any]):
    """Rows and columns as in 1024,512; one number stands for both."""

    name = "rows,cols"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if len(parts) > 2 or not all(part.strip().isdecimal() and int(part) for part in parts):
            self.fail(f"{value!r} is not a number of rows and one of columns, as in 1024,512.", param, ctx)
        return int(parts[0]), int(parts[-1])


class _Numbers(click.ParamType[Any]):
    """Numbers with commas between them."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(part.strip().isdecimal() for part in parts):
            self.fail(f"{value!r} is not a list of numbers, as in 0,1.", param, ctx)
        return tuple(map(int, parts))


class _Number(click.ParamType[Any]):
    """An integer where it is written as one, else a float."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                number = kind(value)
                if not math.isfinite(number):
                    self.fail(
                        f"{value!r} is not finite, and neither would be the result; give a finite number.", param, ctx
                    )
                return number
        return self.fail(f"{value!r} is not a number.", param, ctx)


@click.command(
    "multiply",
    short_help="Multiply two matrices in files, at any size.",
    epilog="Example: gemmule multiply A.npy B.npy -o C.npy --memory 2GB --verify",
)
@click.argument("a", metavar="A", type=_FILE)
@click.argument("b", metavar="B", type=_FILE)
@click.option("-o", "--output", metavar="C", type=_FILE, required=True, help="Place for the result.")
@click.option(
    "--memory", metavar="SIZE",
    help="Limit for all buffers on the host, e.g. 256MiB or 2GB, pinned ones among them. "
    "Default: half of what is free.",
)  # fmt: skip
@click.option("--alpha", type=_Number(), default=1, show_default=True, help="Factor of the product.")
@click.option("--beta", type=_Number(), help="Factor of the matrix that is added. Default: 0, which reads none.")
@click.option("--c", "c0", metavar="C0", type=_FILE, help="Matrix to add, for --beta.")
@click.option("--transpose-a", is_flag=True, help="Multiply the transpose of A.")
@click.option("--transpose-b", is_flag=True, help="Multiply by the transpose of B.")
@click.option("--out-dtype", metavar="DTYPE", help="Type of the result. Default: the common type; int32 for int8.")
@click.option("--compute-dtype", metavar="DTYPE", help="Type that A and B are multiplied in. Default: as stored.")
@click.option("--dtype", metavar="DTYPE", help=_RAW.format("all files"))
@click.option("--a-dtype", metavar="DTYPE", help=_RAW.format("A"))
@click.option("--b-dtype", metavar="DTYPE", help=_RAW.format("B"))
@click.option("--c-dtype", metavar="DTYPE", help=_RAW.format("C0"))
@click.option(
    "--precision", type=click.Choice(["ieee", "tf32", "bf16x6", "ozaki-14", "ozaki-15", "ozaki-16", "float8"]),
    default="ieee", show_default=True,
    help="How float32 may be multiplied: rounded to TF32, or as six products of bfloat16, as accurate and faster; "
    "float64: as 14 to 16 products of int8, where the numbers of a row are of about one size; and 8-bit floats: "
    "float8 with coarser sums. See docs/precision.md.",
)  # fmt: skip
@click.option("--verify", "check", is_flag=True, help="Check the result before it appears, with random vectors.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the random vectors, to repeat a check.")
@click.option("--force", is_flag=True, help="Replace an existing output.")
@click.option(
    "--resume/--no-resume", default=True, show_default=True,
    help="Go on with the unfinished work of a run that was stopped, or delete it.",
)  # fmt: skip
@click.option(
    "--scheduler", metavar="ADDRESS",
    help="Dask scheduler whose workers compute, e.g. tcp://node:8786. All see the files; --memory holds for each.",
)  # fmt: skip
@click.option("--chunks", type=_Pair(), help="Chunks of a Zarr output. Default: up to 1024,1024.")
@click.option("--shards", type=_Pair(), help="Shards of a Zarr output: multiples of the chunks. Default: none.")
@click.option(
    "--device-memory", metavar="SIZE", help="Limit for the buffers on the GPU. Default: most of what is free."
)
@click.option(
    "--pinned-memory", metavar="SIZE",
    help="Limit for pinned memory that files and pageable arrays pass through. Default: 256MiB.",
)  # fmt: skip
@click.option(
    "--strategy", type=click.Choice(["c-stationary", "panels", "resident-c", "paper"]),
    help="What stays on the GPU while the rest passes by. Default: what is expected to be fastest.",
)  # fmt: skip
@click.option("--devices", type=_Numbers(), help="GPUs of one kind that share the tiles, e.g. 0,1. Default: the first.")
@click.option("--dry-run", is_flag=True, help="Say what would be done and what it is expected to take, and stop.")
@click.option("--trace", metavar="T.json", type=_FILE, help="Write what ran when, for ui.perfetto.dev.")
@click.option("--timeline", metavar="T.png", type=_FILE, help="Draw what ran when, by stream (.png or .svg).")
@json_option
@click.option(
    "--executor", type=click.Choice(["gpu", "cpu", "vgpu"]), help="Where to compute. Default: the GPU if there is one."
)
def multiply_command(**options: Any) -> None:
    """Multiply two matrices in files: C = alpha * A @ B + beta * C0.

    A, B and C0 are .npy files, Zarr arrays (store.zarr, or store.zarr::x for array x of a group) or HDF5 datasets
    (data.h5::/group/x); C is a .npy file or a Zarr array. The matrices may be larger than memory: the result is
    computed in tiles, within the memory limit. The output appears under its name only when it is complete; when the
    command is stopped, the same command goes on with the tiles that are finished.
    """
    _run(**options)


def _run(
    *, a: str, b: str, output: str, memory: str | None, alpha: int | float, beta: int | float | None, c0: str | None,
    transpose_a: bool, transpose_b: bool, out_dtype: str | None, dtype: str | None, a_dtype: str | None,
    b_dtype: str | None, c_dtype: str | None, precision: str, check: bool, seed: int | None, force: bool,
    as_json: bool, executor: str | None, compute_dtype: str | None, resume: bool, chunks: tuple[int, int] | None,
    shards: tuple[int, int] | None, scheduler: str | None, device_memory: str | None, pinned_memory: str | None,
    strategy: str | None, devices: tuple[int, ...] | None, dry_run: bool, trace: str | None, timeline: str | None,
) -> None:  # fmt: skip
    from ..api.device_product import DeviceProduct, DeviceReport
    from ..api.streamed import Request, open_product
    from ..core.errors import ArgumentError, WrongResultError
    from ..outofcore.result import plain_kind
    from .streaming import check_drawings, echo_dry_run, write_drawings

    for given, name, needed in (
        (c0 and beta is None, "--c", "--beta"),
        (c_dtype and not c0, "--c-dtype", "--c"),
        (seed is not None and not check, "--seed", "--verify"),
    ):
        if given:
            raise ArgumentError(f"{name} is of no use without {needed}; give both, or neither")
    request = Request(
        a, b, output, c0, alpha, beta or 0, transpose_a, transpose_b, memory, out_dtype, compute_dtype,
        a_dtype or dtype, b_dtype or dtype, c_dtype or dtype, precision, executor, resume, force, chunks, shards, check,
        scheduler, device_memory, pinned_memory, strategy, trace is not None or timeline is not None, devices,
    )  # fmt: skip
    check_drawings(trace, timeline, force=force, others=(a, b, c0, output))
    if dry_run:
        echo_dry_run(request, as_json=as_json)
        return
    with contextlib.ExitStack() as stack:
        # Entered first, so that it is left last: when it is known what was kept.
        kept = stack.enter_context(_kept_is_told())
        product = stack.enter_context(open_product(request))
        kept.append(product)
        if not as_json:
            click.echo(_plan_line(product))
        report = _run_product(product)
        if isinstance(product, DeviceProduct):
            write_drawings(product, trace, timeline, force=force)
        verdict = product.verify(seed) if check else None
        if verdict is not None and verdict.proved_wrong:
            product.reject()
        else:
            product.commit()
    if as_json:
        echo_json(_record(report, product, verdict))
    else:
        click.echo(f"{report.seconds:.2f} s, {report.gflops:.{1 if report.gflops >= 1 else 4}f} GFLOP/s: {output}")
        if isinstance(report, DeviceReport):
            click.echo(report.summary)
        if verdict:
            click.echo("\n".join(_verdict_lines(verdict, exact=plain_kind(product.sink.dtype) in "iu")))
    if verdict and not verdict.passed:
        raise WrongResultError(verdict.failure(output, f"--seed {verdict.seed}"))


@contextlib.contextmanager
def _kept_is_told() -> Iterator[list[StreamedProduct | DeviceProduct]]:
    """Let the command tell, after a failure, where the finished tiles of the product in the list are."""
    from ..core.errors import FileFormatError, InputChangedError
    from .failures import LEFT

    products: list[StreamedProduct | DeviceProduct] = []
    goes_on = True
    try:
        yield products
    except (InputChangedError, FileFormatError):
        # What was found would be found again.
        goes_on = False
        raise
    finally:
        for product in products:
            same = "the same command" if product.request.resume else "the same command without --no-resume"
            going_on = f", and {same} goes on from there" if goes_on else ""
            if kept := getattr(product.sink, "kept", None):
                click.get_current_context().meta[LEFT] = f"{kept}{going_on}"


def _run_product(product: StreamedProduct | DeviceProduct) -> Report:
    from ..api.device_product import DeviceProduct
    from .progress import device_progress, product_progress

    if isinstance(product, DeviceProduct):
        with device_progress("multiplying") as told:
            return product.run(told)
    with product_progress("multiplying") as progress:
        return product.run(progress)


def _plan_line(streamed: StreamedProduct | DeviceProduct) -> str:
    from ..api.device_product import DeviceProduct
    from ..outofcore.budget import format_bytes, resident_memory
    from .streaming import plan_line, types

    if isinstance(streamed, DeviceProduct):
        return plan_line(streamed)
    plan, device, limit = streamed.plan, streamed.computer.describe(), streamed.limit
    product = plan.product
    constant = -(-(resident_memory() + LIBRARY_BYTES) >> 20)
    tiles = f"{plan.tiles} tile{'s' * (plan.tiles != 1)} of {plan.tile_m} x {plan.tile_n}"
    if plan.symmetric:
        tiles += ", the others mirrored"
    if streamed.tiles_reused:
        tiles += f", {streamed.tiles_reused} of them finished before"
    return (
        f"{product.m} x {product.n} x {product.k}, {types(streamed)}: {tiles}, slices {plan.tile_k} deep; {device}; "
        f"memory limit {format_bytes(limit)}, plus about {constant} MiB for Python and its libraries"
    )


def _verdict_lines(verdict: Verdict, *, exact: bool) -> list[str]:
    """Say what the check found, the important first; `exact` is whether the sums are integers."""
    said = f"error {verdict.max_error_over_bound:.2g} of what rounding allows"
    if exact:
        said = "all sums are exact" if verdict.passed else "sums differ, which are exact"
    word = "wrong" if verdict.proved_wrong else "not verified" if not verdict.passed else "verified"
    if verdict.passed and verdict.unproved:
        word += f" but for {verdict.unproved} elements"
    lines = [f"{word}: {said} (--seed {verdict.seed} repeats the check)"]
    # Random vectors say nothing of rows that hold no finite numbers: these are computed once more.
    if exact or verdict.finds_errors_above:
        wrong = "a wrong element" if exact else f"an element wrong by more than {verdict.finds_errors_above:.2g}"
        missed = f"with a probability of {verdict.missed_probability:.1e} at most"
        lines.append(f"  {verdict.vectors} random vectors: {wrong} passes {missed}")
    if verdict.rows_compared:
        rows = f"{verdict.rows_compared} rows that deviate" if verdict.rows_compared > 1 else "row that deviates"
        lines.append(f"  the {rows} most, computed once more: each element is right to {verdict.element_bound:.2g}")
    if verdict.caveat:
        lines.append(f"  {verdict.caveat}")
    return lines


def _record(report: Report, product: StreamedProduct | DeviceProduct, verdict: Verdict | None) -> dict[str, Any]:
    import dataclasses

    record: dict[str, Any] = dataclasses.asdict(report)
    a, b = product.a.dtype, product.b.dtype
    record["dtype"] = str(a) if a == b else f"{a},{b}"
    record["out_dtype"] = str(product.sink.dtype)
    record["output"] = product.request.out
    record["tiles_total"] = report.tiles
    record["tiles_reused"] = report.tiles - report.tiles_computed
    record["verified"] = None
    if verdict:
        # JSON has no infinity.
        record["verified"] = {
            name: value if not isinstance(value, float) or math.isfinite(value) else None
            for name, value in dataclasses.asdict(verdict).items()
        }
    return record
