"""``gemmule matmul``: the product of two files, at any size."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from ..core.quantities import flop_rate
from ..dispatch.former_names import STRATEGIES
from .choice import NameChoice
from .json_output import echo_json, json_option
from .progress import product_progress
from .spelling import in_options
from .tables import echo_text

if TYPE_CHECKING:
    from ..outofcore.calls.request import Request
    from ..outofcore.calls.session import StreamSession
    from ..outofcore.tiles.report import Report
    from ..outofcore.verify.freivalds import Verdict

#: Unreadable files are reported where they are opened, in one line, as other faults of theirs.
_FILE = click.Path(readable=False)
_RAW = "Type of raw items in {}: bfloat16, float8_e4m3fn or float8_e5m2."


class _Pair(click.ParamType[Any]):
    """Rows and columns as in 1024,512; one number stands for both."""

    name = "rows,cols"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if len(parts) > 2 or not all(part.strip().isdecimal() and int(part) for part in parts):
            self.fail(f"{value!r} is not ROWS,COLS; write it like 1024,512.", param, ctx)
        return int(parts[0]), int(parts[-1])


class _Numbers(click.ParamType[Any]):
    """Whole numbers separated by commas."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(part.strip().isdecimal() for part in parts):
            self.fail(f"{value!r} is not a list of whole numbers; write it like 0,1.", param, ctx)
        return tuple(map(int, parts))


class _Number(click.ParamType[Any]):
    """An integer where it is written as one, else a float."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                number = kind(value)
                if not math.isfinite(number):
                    self.fail(f"{value!r} is not finite; give a finite number.", param, ctx)
                return number
        return self.fail(f"{value!r} is not a real number; write it like 0.5.", param, ctx)


@click.command(
    "matmul",
    epilog="Example: gemmule matmul A.npy B.npy -o C.npy --memory 2GB --verify",
)
@click.argument("a", metavar="A", type=_FILE)
@click.argument("b", metavar="B", type=_FILE)
@click.option("-o", "--output", metavar="C", type=_FILE, required=True, help="File for the result.")
@click.option(
    "--memory", metavar="SIZE",
    help="Limit for all host buffers, pinned ones included, e.g. 256MiB or 2GB. Default: half of the free memory.",
)  # fmt: skip
@click.option("--alpha", type=_Number(), default=1, show_default=True, help="Factor of the product.")
@click.option("--beta", type=_Number(), help="Factor of C0. Default: 0, without C0.")
@click.option("--c", "c0", metavar="C0", type=_FILE, help="Matrix to add; needs --beta.")
@click.option("--transpose-a", is_flag=True, help="Multiply the transpose of A.")
@click.option("--transpose-b", is_flag=True, help="Multiply by the transpose of B.")
@click.option("--conj-a", is_flag=True, help="Multiply the complex conjugate of A; with --transpose-a, its adjoint.")
@click.option("--conj-b", is_flag=True, help="Multiply by the complex conjugate of B; with --transpose-b, its adjoint.")
@click.option("--out-dtype", metavar="DTYPE", help="Type of the result. Default: the common type; int32 for int8.")
@click.option("--compute-dtype", metavar="DTYPE", help="Convert A and B to this type first. Default: as stored.")
@click.option("--dtype", metavar="DTYPE", help=_RAW.format("all files"))
@click.option("--a-dtype", metavar="DTYPE", help=_RAW.format("A"))
@click.option("--b-dtype", metavar="DTYPE", help=_RAW.format("B"))
@click.option("--c-dtype", metavar="DTYPE", help=_RAW.format("C0"))
@click.option(
    "--precision", type=NameChoice(["ieee", "tf32", "bf16x6", "ozaki", "ozaki-14", "ozaki-15", "ozaki-16", "float8"]),
    default="ieee", show_default=True,
    help="Arithmetic of float32: tf32 rounds, bf16x6 is as accurate and faster; of float64: ozaki-14 to -16 (Ozaki "
    "scheme II), for rows with elements of similar magnitude; of both: ozaki, where a guard allows it; of 8-bit "
    "floats: float8 has less exact accumulators. See docs/precision.md.",
)  # fmt: skip
@click.option("--verify", "check", is_flag=True, help="Verify the result by Freivalds' check before it is published.")
@click.option("--seed", type=click.IntRange(0), help="Seed of --verify, to repeat a check.")
@click.option("--force", is_flag=True, help="Replace an existing output.")
@click.option(
    "--resume/--no-resume", default=True, show_default=True,
    help="Resume an interrupted run, or delete its partial results.",
)  # fmt: skip
@click.option(
    "--scheduler", metavar="ADDRESS",
    help="Compute on the workers of a Dask scheduler, e.g. tcp://node:8786, which see the same files; --memory is for "
    "each worker.",
)  # fmt: skip
@click.option("--chunks", type=_Pair(), help="Chunks of a Zarr output, a file each. Default: up to 1024,1024.")
@click.option("--shards", type=_Pair(), help="Shards of a Zarr output: multiples of the chunks. Default: none.")
@click.option(
    "--device-memory", metavar="SIZE", help="Limit for the buffers on the GPU. Default: most of its free memory."
)
@click.option(
    "--pinned-memory", metavar="SIZE",
    help="Limit for pinned staging buffers of files and pageable arrays. Default: 256MiB.",
)  # fmt: skip
@click.option(
    "--strategy", type=NameChoice(["c-stationary", "panels", "resident-c", "five-buffers"], STRATEGIES),
    help="Operand that stays on the GPU while the others are streamed. Default: least predicted time.",
)  # fmt: skip
@click.option("--devices", type=_Numbers(), help="GPUs of one model that share the tiles, e.g. 0,1. Default: 0.")
@click.option("--probe", is_flag=True, help="Measure GPU, links and disk again. Default: stored or predicted rates.")
@click.option("--dry-run", is_flag=True, help="Print the plan, and on a GPU its predicted time, and compute nothing.")
@click.option("--trace", metavar="T.json", type=_FILE, help="Write a trace for ui.perfetto.dev.")
@click.option("--timeline", metavar="T.png", type=_FILE, help="Draw a timeline by stream (.png or .svg).")
@json_option
@click.option(
    "--executor",
    type=NameChoice(["gpu", "cpu", "vgpu"]),
    help="Device of the product. Default: the GPU, if there is one.",
)
def matmul_command(**options: Any) -> None:
    """Multiply two matrices in files: C = alpha * A @ B + beta * C0.

    A, B and C0 are .npy files, Zarr arrays (store.zarr, or store.zarr::x for array x of a group) or HDF5 datasets
    (data.h5::/group/x); C is a .npy file or a Zarr array. Matrices may be larger than memory: the result is computed in
    tiles, within the memory limit. The output appears under its name only when complete. The same command resumes an
    interrupted run.
    """
    _run(options)


def _run(options: dict[str, Any]) -> None:
    with _context_opened(options):
        from ..core.errors import WrongResultError
        from ..outofcore.calls.device_engine import DeviceReport
        from ..outofcore.calls.plan import plan_line
        from ..outofcore.calls.session import StreamSession
        from ..outofcore.tiles.result_rules import plain_kind
        from .drawings import check_drawings, write_drawings

    request, force, output = _request(options), options["force"], options["output"]
    drawings, as_json = (options["trace"], options["timeline"]), options["as_json"]
    check_drawings(*drawings, force=force, others=(request.a, request.b, request.c, output))
    if options["dry_run"]:
        _echo_plan(request, as_json=as_json)
        return
    session = StreamSession(request)
    # Entered first, so that it exits last: when the kept files are known.
    with _kept_is_told(session), session:
        session.open_result()
        if not as_json:
            echo_text(plan_line(session))
        with product_progress("multiplying") as progress:
            report = session.run(progress)
        if request.traced:
            write_drawings(session, *drawings, force=force)
        verdict = session.conclude(options["seed"])
    if as_json:
        echo_json(_record(report, session, verdict))
    else:
        click.echo(f"{report.seconds:.2f} s, {flop_rate(report.gflops * 1e9)}: {output}")
        if isinstance(report, DeviceReport):
            echo_text(report.summary)
        if verdict:
            click.echo(
                "\n".join(_verdict_lines(verdict, report.m * report.n, exact=plain_kind(session.problem.dtype) in "iu"))
            )
    if verdict and not verdict.passed:
        raise WrongResultError(verdict.failure(output, f"--seed {verdict.seed}"))


@contextlib.contextmanager
def _context_opened(options: Mapping[str, Any]) -> Iterator[None]:
    """Open the context of the GPU that may compute, in a thread, while the block imports what a product needs."""
    executor = options["executor"] or os.environ.get("GEMMULE_EXECUTOR") or "gpu"
    if executor != "gpu" or options["scheduler"] is not None:
        yield
        return
    ordinal = (options["devices"] or (0,))[0]

    def opened() -> None:
        from ..core.errors import GemmuleError
        from ..runtime.device import device_count, primary_context

        # The fault is found again, and reported, by the code that needs the GPU.
        with contextlib.suppress(GemmuleError, RuntimeError):
            if ordinal < device_count():
                primary_context(ordinal)

    opening = threading.Thread(target=opened, name="gemmule-context")
    opening.start()
    try:
        yield
    finally:
        if opening.is_alive():
            # Without a driver it has ended: what a GPU needs is imported meanwhile, too.
            from ..dispatch import gemm_kernels  # noqa: F401
            from ..runtime import link_probe  # noqa: F401
        opening.join()


def _echo_plan(request: Request, *, as_json: bool) -> None:
    """Print the plan and its expected time, the verdict first."""
    from ..outofcore.calls.plan import planned_request

    plan = planned_request(request)
    if as_json:
        echo_json({"executor": plan.executor, "device": plan.device, **plan.figures})
    else:
        for line in str(plan).splitlines():
            echo_text(in_options(line, click.get_current_context().command))


def _request(options: Mapping[str, Any]) -> Request:
    """Return the product that the options describe."""
    from ..core.errors import ArgumentError
    from ..outofcore.calls.request import Request

    for given, name, needed in (
        (options["c0"] and options["beta"] is None, "--c", "--beta"),
        (options["c_dtype"] and not options["c0"], "--c-dtype", "--c"),
        (options["seed"] is not None and not options["check"], "--seed", "--verify"),
    ):
        if given:
            raise ArgumentError(f"{name} needs {needed}; give both, or neither")
    fields = {field.name: options[field.name] for field in dataclasses.fields(Request) if field.name in options}
    fields |= {f"{matrix}_dtype": options[f"{matrix}_dtype"] or options["dtype"] for matrix in "abc"}
    fields |= {"out": options["output"], "c": options["c0"], "beta": options["beta"] or 0, "verify": options["check"]}
    return Request(**fields, traced=options["trace"] is not None or options["timeline"] is not None)


@contextlib.contextmanager
def _kept_is_told(session: StreamSession) -> Iterator[None]:
    """Name, in the message of a failure, the file with the finished tiles of the product."""
    from ..core.errors import FileFormatError, InputChangedError
    from .failures import LEFT

    goes_on = True
    try:
        yield
    except (InputChangedError, FileFormatError):
        # A rerun would find the same.
        goes_on = False
        raise
    finally:
        same = "the same command" if session.request.resume else "the same command without --no-resume"
        going_on = f"; {same} resumes" if goes_on else ""
        if session.partial_path:
            click.get_current_context().meta[LEFT] = f"{session.partial_path}{going_on}"


def _verdict_lines(verdict: Verdict, elements: int, *, exact: bool) -> list[str]:
    """Return the outcome of the check of so many elements, the verdict first; `exact` says that sums are integers."""
    not_finite = f"{verdict.not_finite:,} of {elements:,} elements are NaN or infinite"
    none_finite = verdict.passed and verdict.not_finite == elements > 0
    text = f"error {verdict.max_error_over_bound:.2g} of the rounding bound"
    if exact:
        text = "all sums are exact" if verdict.passed else "integer sums differ"
    elif none_finite:
        text = f"{not_finite}; none is finite, so no error was bounded"
    word = "wrong" if verdict.proved_wrong else "not verified" if not verdict.passed else "verified"
    if verdict.passed and verdict.unproved:
        word += f" but for {verdict.unproved} elements"
    lines = [f"{word}: {text} (--seed {verdict.seed} repeats the check)"]
    # Random vectors prove nothing about rows with non-finite numbers: these are computed again.
    if not none_finite and (exact or verdict.finds_errors_above):
        wrong = "one wrong element" if exact else f"one error above {verdict.finds_errors_above:.2g}"
        missed = f"is missed with a probability of {verdict.missed_probability:.1e} at most"
        lines.append(f"  all rows, by {verdict.vectors} random vectors: {wrong} {missed}")
    if verdict.rows_compared and not none_finite:
        rows = f"the {verdict.rows_compared} rows" if verdict.rows_compared > 1 else "the row"
        lines.append(f"  {rows} with the largest deviation, by element: errors are at most {verdict.element_bound:.2g}")
    if verdict.passed and verdict.not_finite and not none_finite:
        lines.append(f"  {not_finite}")
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
