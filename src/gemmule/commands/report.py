"""``gemmule report``: record files as one page."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(
    "report",
    short_help="Make one HTML page of record files; needs no GPU.",
    epilog="Example: gemmule report benchmarks/results -o report.html",
)
@click.argument("results", metavar="RESULTS...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True,
    help="The page.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an existing page.")
def report_command(*, results: tuple[Path, ...], output: Path, force: bool) -> None:
    """Make one self-contained HTML page of record files, or of the record files in folders; needs no GPU.

    The ladder over sizes beside cuBLAS and the peak, the roofline, errors, counts, transposes, all tables, and how
    everything was measured. Files of different GPUs stand apart. What the records do not hold is left out, and named.
    """
    from ..lab.report.page import report
    from ..lab.report.sources import record_files
    from ..lab.whole_files import check_target, write_whole
    from .progress import steps_progress

    files = record_files(results)
    # Drawing takes a while: what cannot be written is told before.
    check_target(output, force=force, inputs=files)
    page = report(files, lambda drawings: steps_progress("drawing", drawings))
    write_whole(output, page, force=force, inputs=files)
    click.echo(f"report: {output}")
