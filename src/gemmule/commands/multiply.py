"""``gemmule multiply``: the product of two files, at any size."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..outofcore.journaled import JournaledSink
    from ..outofcore.matrix import AnyDType, MatrixSource
    from ..outofcore.multiply import Report
    from ..outofcore.resume import Work
    from ..outofcore.verify import Verdict

#: Allowance for what BLAS, threads and the allocator take once Python and its libraries are loaded; 8 MiB were seen.
LIBRARY_BYTES = 32 << 20

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


class _Number(click.ParamType[Any]):
    """An integer where it is written as one, else a float."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(value)
        return self.fail(f"{value!r} is not a number.", param, ctx)


@click.command("multiply", epilog="Example: gemmule multiply A.npy B.npy -o C.npy --memory 2GB --verify")
@click.argument("a", metavar="A", type=click.Path())
@click.argument("b", metavar="B", type=click.Path())
@click.option("-o", "--output", metavar="C", type=click.Path(), required=True, help="Place for the result.")
@click.option(
    "--memory", metavar="SIZE", help="Limit for all buffers, e.g. 256MiB or 2GB. Default: half of what is free."
)
@click.option("--alpha", type=_Number(), default=1, show_default=True, help="Factor of the product.")
@click.option("--beta", type=_Number(), default=0, show_default=True, help="Factor of the matrix that is added.")
@click.option("--c", "c0", metavar="C0", type=click.Path(), help="Matrix to add, for --beta.")
@click.option("--transpose-a", is_flag=True, help="Multiply the transpose of A.")
@click.option("--transpose-b", is_flag=True, help="Multiply by the transpose of B.")
@click.option("--out-dtype", metavar="DTYPE", help="Type of the result. Default: the common type; int32 for int8.")
@click.option("--compute-dtype", metavar="DTYPE", help="Type that A and B are multiplied in. Default: as stored.")
@click.option("--dtype", metavar="DTYPE", help=_RAW.format("all files"))
@click.option("--a-dtype", metavar="DTYPE", help=_RAW.format("A"))
@click.option("--b-dtype", metavar="DTYPE", help=_RAW.format("B"))
@click.option("--c-dtype", metavar="DTYPE", help=_RAW.format("C0"))
@click.option(
    "--precision", type=click.Choice(["ieee", "tf32"]), default="ieee", show_default=True,
    help="What float32 factors may be rounded to.",
)  # fmt: skip
@click.option("--verify", "check", is_flag=True, help="Check the result before it appears, with random vectors.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the random vectors, to repeat a check.")
@click.option("--force", is_flag=True, help="Replace an existing output.")
@click.option(
    "--resume/--no-resume", default=True, show_default=True,
    help="Go on with the unfinished work of a run that was stopped, or delete it.",
)  # fmt: skip
@click.option("--chunks", type=_Pair(), help="Chunks of a Zarr output. Default: up to 1024,1024.")
@click.option("--shards", type=_Pair(), help="Shards of a Zarr output: multiples of the chunks. Default: none.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
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
    _run(**options)


def _run(
    *, a: str, b: str, output: str, memory: str | None, alpha: int | float, beta: int | float, c0: str | None,
    transpose_a: bool, transpose_b: bool, out_dtype: str | None, dtype: str | None, a_dtype: str | None,
    b_dtype: str | None, c_dtype: str | None, precision: str, check: bool, seed: int | None, force: bool,
    as_json: bool, executor: str | None, compute_dtype: str | None, resume: bool, chunks: tuple[int, int] | None,
    shards: tuple[int, int] | None,
) -> None:  # fmt: skip
    from ..core.dtype import Precision
    from ..core.errors import ArgumentError
    from ..outofcore.budget import available_memory, parse_bytes
    from ..outofcore.matrix import TransposedSource
    from ..outofcore.multiply import multiply, plan_multiply
    from ..outofcore.opening import open_source, result_target
    from ..outofcore.result import output_dtype, result_dtype
    from ..outofcore.resume import open_work
    from ..outofcore.verify import vectors_at_a_time, verify
    from .executor import chosen_executor
    from .progress import product_progress

    for given, name, needed in (
        (c0 and beta == 0, "--c", "--beta"),
        (c_dtype and not c0, "--c-dtype", "--c"),
        (seed is not None and not check, "--seed", "--verify"),
    ):
        if given:
            raise ArgumentError(f"{name} is of no use without {needed}; give both, or neither")
    limit = parse_bytes(memory) if memory is not None else available_memory() // 2
    wanted = output_dtype(out_dtype) if out_dtype is not None else None
    computed = output_dtype(compute_dtype) if compute_dtype is not None else None
    tolerance = Precision.parse(precision)
    with contextlib.ExitStack() as stack:

        def opened(path: str, own: str | None, compute: AnyDType | None = None) -> MatrixSource:
            return stack.enter_context(contextlib.closing(open_source(path, path, own or dtype, compute)))

        a_file, b_file = opened(a, a_dtype, computed), opened(b, b_dtype, computed)
        c_file = opened(c0, c_dtype) if c0 else None
        left: MatrixSource = TransposedSource(a_file) if transpose_a else a_file
        right: MatrixSource = TransposedSource(b_file) if transpose_b else b_file
        result = result_dtype(left.dtype, right.dtype, wanted)
        shape = left.shape[0], right.shape[1]
        dtypes = left.dtype.name, right.dtype.name, result.name
        added = c_file.dtype.name if c_file and beta != 0 else None
        computer, room = stack.enter_context(chosen_executor(executor, tolerance, dtypes, added, limit))
        target = result_target(output, shape, result, chunks, shards)
        plan = plan_multiply(
            left, right, shape, result, computer, memory=room, alpha=alpha, beta=beta, c=c_file, grain=target.grain,
            scratch=target.scratch_bytes,
        )  # fmt: skip
        if check:
            # Not after hours of work.
            vectors_at_a_time(left.shape, right.shape, limit)
        decided = {
            "alpha": repr(alpha), "beta": repr(beta), "precision": tolerance.value, "executor": computer.describe(),
        }  # fmt: skip
        read = {"a": left, "b": right} | ({"c": c_file} if c_file else {})
        work = open_work(target, result, plan, decided, read, memory=room, force=force, resume=resume)
        sink = stack.enter_context(_kept_is_told(work.sink))
        if not as_json:
            click.echo(_plan_line(work, computer.describe(), limit))
        with product_progress("multiplying") as progress:
            report = multiply(
                left,
                right,
                sink,
                computer,
                memory=room,
                alpha=alpha,
                beta=beta,
                c=c_file,
                plan=work.plan,
                progress=progress,
                finished=work.finished,
            )
        verdict = None
        if check:
            with contextlib.closing(sink.written()) as written:
                verdict = verify(
                    left, right, written, memory=limit, alpha=alpha, beta=beta, c=c_file, precision=tolerance, seed=seed
                )
        if verdict is None or verdict.passed:
            sink.commit()
        else:
            sink.abort()
    if as_json:
        click.echo(json.dumps(_record(report, work, verdict, left, right, str(result), output)))
    else:
        click.echo(f"{report.seconds:.2f} s, {report.gflops:.1f} GFLOP/s: {output}")
        if verdict:
            click.echo(_verdict_line(verdict))
    if verdict and not verdict.passed:
        from ..core.errors import GemmuleError

        raise GemmuleError(
            f"{output}: error is {verdict.max_error_over_bound:.3g} of its bound, at most 1 is allowed; the "
            f"result was not kept; repeat the check with --seed {verdict.seed}, and report it if it fails again"
        )


@contextlib.contextmanager
def _kept_is_told(sink: JournaledSink) -> Iterator[JournaledSink]:
    """Open the sink; after a failure the command tells where the finished tiles are."""
    from .failures import LEFT

    try:
        with sink:
            yield sink
    finally:
        if sink.kept:
            left = f"{sink.kept}, and the same command goes on from there"
            click.get_current_context().meta[LEFT] = left


def _plan_line(work: Work, device: str, limit: int) -> str:
    from ..outofcore.budget import format_bytes, resident_memory

    plan = work.plan
    product = plan.product
    constant = -(-(resident_memory() + LIBRARY_BYTES) >> 20)
    tiles = f"{plan.tiles} tile{'s' * (plan.tiles != 1)} of {plan.tile_m} x {plan.tile_n}"
    if work.tiles_reused:
        tiles += f", {work.tiles_reused} of them finished before"
    return (
        f"{product.m} x {product.n} x {product.k}: {tiles}, slices {plan.tile_k} deep; {device}; "
        f"memory limit {format_bytes(limit)}, plus about {constant} MiB for Python and its libraries"
    )


def _verdict_line(verdict: Verdict) -> str:
    line = (
        f"verified with {verdict.vectors} random vectors (seed {verdict.seed}): error at most "
        f"{verdict.max_error_over_bound:.3g} of its bound; wherever it is, an element wrong by more than "
        f"{verdict.finds_errors_above:.3g} is missed with a probability of at most {verdict.missed_probability:.1e}"
    )
    if not verdict.rows_compared:
        return line
    rows = f"{verdict.rows_compared} rows that deviate most" if verdict.rows_compared > 1 else "row that deviates most"
    return line + f"; in the {rows}, every element is right to {verdict.element_bound:.3g}"


def _record(
    report: Report, work: Work, verdict: Verdict | None, a: MatrixSource, b: MatrixSource, out_dtype: str, output: str
) -> dict[str, Any]:
    import dataclasses
    import math

    record: dict[str, Any] = dataclasses.asdict(report)
    record["dtype"] = str(a.dtype) if a.dtype == b.dtype else f"{a.dtype},{b.dtype}"
    record["out_dtype"] = out_dtype
    record["output"] = output
    record["tiles_total"] = work.plan.tiles
    record["tiles_reused"] = work.plan.tiles - report.tiles_computed
    record["verified"] = None
    if verdict:
        # JSON has no infinity.
        record["verified"] = {
            name: value if not isinstance(value, float) or math.isfinite(value) else None
            for name, value in dataclasses.asdict(verdict).items()
        }
    return record
