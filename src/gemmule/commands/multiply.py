"""``gemmule multiply``: the product of two files, at any size."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..outofcore.matrix import MatrixSource
    from ..outofcore.multiply import Report
    from ..outofcore.npy_source import NpySource
    from ..outofcore.plan import StreamPlan
    from ..outofcore.verify import Verdict

#: Allowance for what BLAS, threads and the allocator take once Python and its libraries are loaded; 8 MiB were seen.
LIBRARY_BYTES = 32 << 20

_RAW = "Type of raw items in {}, which NumPy cannot name: bfloat16, float8_e4m3fn or float8_e5m2."


class _Number(click.ParamType[Any]):
    """An integer where it is written as one, else a float."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(value)
        return self.fail(f"{value!r} is not a number.", param, ctx)


@click.command("multiply", epilog="Example: gemmule multiply A.npy B.npy -o C.npy --memory 2GB --verify")
@click.argument("a", metavar="A.npy", type=click.Path())
@click.argument("b", metavar="B.npy", type=click.Path())
@click.option("-o", "--output", metavar="C.npy", type=click.Path(), required=True, help="File for the result.")
@click.option(
    "--memory", metavar="SIZE", help="Limit for all buffers, e.g. 256MiB or 2GB. Default: half of what is free."
)
@click.option("--alpha", type=_Number(), default=1, show_default=True, help="Factor of the product.")
@click.option("--beta", type=_Number(), default=0, show_default=True, help="Factor of the matrix that is added.")
@click.option("--c", "c0", metavar="C0.npy", type=click.Path(), help="Matrix to add, for --beta.")
@click.option("--transpose-a", is_flag=True, help="Multiply the transpose of A.")
@click.option("--transpose-b", is_flag=True, help="Multiply by the transpose of B.")
@click.option("--out-dtype", metavar="DTYPE", help="Type of the result. Default: the common type; int32 for int8.")
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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option(
    "--executor", type=click.Choice(["gpu", "host", "vgpu"]), help="Where to compute. Default: the GPU if there is one."
)
def multiply_command(**options: Any) -> None:
    """Multiply two matrices in .npy files: C = alpha * A @ B + beta * C0.

    The matrices may be larger than memory: the result is computed in tiles, within the memory limit. The output
    appears under its name only when it is complete.
    """
    _run(**options)


def _run(
    *, a: str, b: str, output: str, memory: str | None, alpha: int | float, beta: int | float, c0: str | None,
    transpose_a: bool, transpose_b: bool, out_dtype: str | None, dtype: str | None, a_dtype: str | None,
    b_dtype: str | None, c_dtype: str | None, precision: str, check: bool, seed: int | None, force: bool,
    as_json: bool, executor: str | None,
) -> None:  # fmt: skip
    from ..core.dtype import Precision
    from ..core.errors import ArgumentError
    from ..outofcore.budget import available_memory, parse_bytes
    from ..outofcore.matrix import TransposedSource
    from ..outofcore.multiply import multiply, plan_multiply
    from ..outofcore.npy_sink import NpySink
    from ..outofcore.result import output_dtype, result_dtype
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
    tolerance = Precision.parse(precision)
    with contextlib.ExitStack() as stack:
        a_file = stack.enter_context(_open(a, a_dtype, dtype))
        b_file = stack.enter_context(_open(b, b_dtype, dtype))
        c_file = stack.enter_context(_open(c0, c_dtype, dtype)) if c0 else None
        files = [file for file in (a_file, b_file, c_file) if file]
        left: MatrixSource = TransposedSource(a_file) if transpose_a else a_file
        right: MatrixSource = TransposedSource(b_file) if transpose_b else b_file
        result = result_dtype(left.dtype, right.dtype, wanted)
        shape = left.shape[0], right.shape[1]
        dtypes = left.dtype.name, right.dtype.name, result.name
        added = c_file.dtype.name if c_file and beta != 0 else None
        computer, room = stack.enter_context(chosen_executor(executor, tolerance, dtypes, added, limit))
        plan = plan_multiply(left, right, shape, result, computer, memory=room, alpha=alpha, beta=beta, c=c_file)
        if check:
            # Not after hours of work.
            vectors_at_a_time(left.shape, right.shape, limit)
        sink = stack.enter_context(NpySink(output, shape, result, force=force, inputs=files))
        if not as_json:
            click.echo(_plan_line(plan, computer.describe(), limit))
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
                plan=plan,
                progress=progress,
            )
        verdict = None
        if check:
            with sink.written() as written:
                verdict = verify(
                    left, right, written, memory=limit, alpha=alpha, beta=beta, c=c_file, precision=tolerance, seed=seed
                )
        if verdict is None or verdict.passed:
            sink.commit()
    if as_json:
        click.echo(json.dumps(_record(report, verdict, left, right, str(result), output)))
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


def _open(path: str, own: str | None, common: str | None) -> NpySource:
    from ..core.errors import DTypeError
    from ..outofcore.npy_source import NpySource

    given = own or common
    source = NpySource(path, given)
    if given and source.dtype.name != given:
        source.close()
        raise DTypeError(
            f"{path}: the file says {source.dtype}, not {given}; leave the option out, or give another file's type "
            "with --a-dtype, --b-dtype or --c-dtype"
        )
    return source


def _plan_line(plan: StreamPlan, device: str, limit: int) -> str:
    from ..outofcore.budget import format_bytes, resident_memory

    product = plan.product
    constant = -(-(resident_memory() + LIBRARY_BYTES) >> 20)
    tiles = f"{plan.tiles} tile{'s' * (plan.tiles != 1)} of {plan.tile_m} x {plan.tile_n}"
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
    report: Report, verdict: Verdict | None, a: MatrixSource, b: MatrixSource, out_dtype: str, output: str
) -> dict[str, Any]:
    import dataclasses
    import math

    record: dict[str, Any] = dataclasses.asdict(report)
    record["dtype"] = str(a.dtype) if a.dtype == b.dtype else f"{a.dtype},{b.dtype}"
    record["out_dtype"] = out_dtype
    record["output"] = output
    record["verified"] = None
    if verdict:
        # JSON has no infinity.
        record["verified"] = {
            name: value if not isinstance(value, float) or math.isfinite(value) else None
            for name, value in dataclasses.asdict(verdict).items()
        }
    return record
