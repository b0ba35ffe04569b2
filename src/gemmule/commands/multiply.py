"""``gemmule multiply``: the product of two files, at any size."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from .json_output import echo_json, json_option
from .progress import product_progress

if TYPE_CHECKING:
    from ..api.streaming.request import Request
    from ..api.streaming.session import StreamSession
    from ..outofcore.tiles.engine import Report
    from ..outofcore.verify.freivalds import Verdict

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
    "--precision", type=click.Choice(["ieee", "tf32", "bf16x6", "int8x14", "int8x15", "int8x16", "float8"]),
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
    "--executor", type=click.Choice(["gpu", "host", "vgpu"]), help="Where to compute. Default: the GPU if there is one."
)
def multiply_command(**options: Any) -> None:
    """Multiply two matrices in files: C = alpha * A @ B + beta * C0.

    A, B and C0 are .npy files, Zarr arrays (store.zarr, or store.zarr::x for array x of a group) or HDF5 datasets
    (data.h5::/group/x); C is a .npy file or a Zarr array. The matrices may be larger than memory: the result is
    computed in tiles, within the memory limit. The output appears under its name only when it is complete; when the
    command is stopped, the same command goes on with the tiles that are finished.
    """
    _run(options)


def _run(options: dict[str, Any]) -> None:
    from ..api.streaming.device_engine import DeviceReport
    from ..api.streaming.session import StreamSession
    from ..core.errors import WrongResultError
    from ..outofcore.tiles.result_rules import plain_kind
    from .streaming import check_drawings, echo_dry_run, plan_line, write_drawings

    request, force, output = _request(options), options["force"], options["output"]
    drawings, as_json = (options["trace"], options["timeline"]), options["as_json"]
    check_drawings(*drawings, force=force, others=(request.a, request.b, request.c, output))
    if options["dry_run"]:
        with StreamSession(request, dry_run=True) as session:
            echo_dry_run(session, as_json=as_json)
        return
    session = StreamSession(request)
    # Entered first, so that it is left last: when it is known what was kept.
    with _kept_is_told(session), session:
        session.open_result()
        if not as_json:
            click.echo(plan_line(session))
        with product_progress("multiplying") as progress:
            report = session.run(progress)
        if request.traced:
            write_drawings(session, *drawings, force=force)
        verdict = session.conclude(options["seed"])
    if as_json:
        echo_json(_record(report, session, verdict))
    else:
        click.echo(f"{report.seconds:.2f} s, {report.gflops:.{1 if report.gflops >= 1 else 4}f} GFLOP/s: {output}")
        if isinstance(report, DeviceReport):
            click.echo(report.summary)
        if verdict:
            click.echo("\n".join(_verdict_lines(verdict, exact=plain_kind(session.problem.dtype) in "iu")))
    if verdict and not verdict.passed:
        raise WrongResultError(verdict.failure(output, f"--seed {verdict.seed}"))


def _request(options: Mapping[str, Any]) -> Request:
    """Return the product that the options describe."""
    from ..api.streaming.request import Request
    from ..core.errors import ArgumentError

    for given, name, needed in (
        (options["c0"] and options["beta"] is None, "--c", "--beta"),
        (options["c_dtype"] and not options["c0"], "--c-dtype", "--c"),
        (options["seed"] is not None and not options["check"], "--seed", "--verify"),
    ):
        if given:
            raise ArgumentError(f"{name} is of no use without {needed}; give both, or neither")
    fields = {field.name: options[field.name] for field in dataclasses.fields(Request) if field.name in options}
    fields |= {f"{matrix}_dtype": options[f"{matrix}_dtype"] or options["dtype"] for matrix in "abc"}
    fields |= {"out": options["output"], "c": options["c0"], "beta": options["beta"] or 0, "checked": options["check"]}
    return Request(**fields, traced=options["trace"] is not None or options["timeline"] is not None)


@contextlib.contextmanager
def _kept_is_told(session: StreamSession) -> Iterator[None]:
    """Let the command tell, after a failure, where the finished tiles of the product are."""
    from ..core.errors import FileFormatError, InputChangedError
    from .failures import LEFT

    goes_on = True
    try:
        yield
    except (InputChangedError, FileFormatError):
        # What was found would be found again.
        goes_on = False
        raise
    finally:
        same = "the same command" if session.request.resume else "the same command without --no-resume"
        going_on = f", and {same} goes on from there" if goes_on else ""
        if session.kept:
            click.get_current_context().meta[LEFT] = f"{session.kept}{going_on}"


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


def _record(report: Report, session: StreamSession, verdict: Verdict | None) -> dict[str, Any]:
    record: dict[str, Any] = dataclasses.asdict(report)
    a, b = session.problem.a.dtype, session.problem.b.dtype
    record["dtype"] = str(a) if a == b else f"{a},{b}"
    record["out_dtype"] = str(session.problem.dtype)
    record["output"] = session.request.out
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
