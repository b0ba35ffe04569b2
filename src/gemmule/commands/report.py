"""``gemmule report``: record files as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(
    "report",
    epilog="Example: gemmule report benchmarks/results -o report.html",
)
@click.argument("results", metavar="RESULTS...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True,
    help="File of the page.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an existing page.")
def report_command(*, results: tuple[Path, ...], output: Path, force: bool) -> None:
    """Write record files, or folders of them, as one self-contained HTML page; needs no GPU.

    The page shows the ladder over sizes compared with cuBLAS and the peak, the roofline, errors, counts, transposes,
    all tables, and the protocol of each measurement. GPUs have separate sections. Missing parts are listed.
    """
    from ..lab.report.page import report
    from ..lab.report.sources import record_files
    from ..lab.whole_files import check_target, write_whole
    from .progress import steps_progress

    files = record_files(results)
    # Drawing takes a while, so the output is checked first.
    check_target(output, force=force, inputs=files)
    page = report(files, lambda drawings: steps_progress("drawing", drawings))
    write_whole(output, page, force=force, inputs=files)
    click.echo(f"report: {output}")
