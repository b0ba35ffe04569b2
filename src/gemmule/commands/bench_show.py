"""``gemmule bench show``: recorded products and transposes, without a GPU."""

from __future__ import annotations

from pathlib import Path

import click

from ..core.errors import FileFormatError
from .bench_output import OPTIONAL, draw, line, only_calls, print_ratios, title_of
from .bench_transpose import show_transposes
from .tables import echo_text, print_table


@click.command(
    "show",
    short_help="Show recorded products and transposes; needs no GPU.",
    epilog="Example: gemmule bench show benchmarks/results/FILE.jsonl --plot plots",
)
@click.argument("file", metavar="FILE|FOLDER", type=click.Path(path_type=Path))
@click.option(
    "--plot", metavar="FOLDER", type=click.Path(), help="Write plots over the sizes to FOLDER, as PNG and SVG."
)
def show_command(*, file: Path, plot: str | None) -> None:
    """Show the products and transposes of a record file, or of all record files in a folder; needs no GPU."""
    from ..lab.drawing.canvas import check_matplotlib
    from ..lab.report.sources import record_files

    if plot is not None:
        check_matplotlib()
    files = record_files([file])
    without: list[Path] = []
    for number, path in enumerate(files):
        if not _show(path, plot, heading=path.name if len(files) > 1 else None, after_blank=number > len(without)):
            without.append(path)
    if len(without) == len(files):
        raise FileFormatError(
            f"{file.name}: the {'folder' if file.is_dir() else 'file'} has no products and no transposes; give one "
            f"that `gemmule bench` wrote, or see all that it holds with `gemmule report {file}`"
        )
    if without:
        click.echo(
            f"\nwithout products and transposes: {', '.join(path.name for path in without)}; `gemmule report {file}` "
            "shows what they hold"
        )


def _show(path: Path, plot: str | None, *, heading: str | None, after_blank: bool) -> bool:
    """Print the products or transposes of a record file, after a heading; return whether there are any.

    `after_blank` is whether an empty line precedes the heading.
    """
    from ..lab.bench_tables import figures, ratios
    from ..lab.gemm_operation import GEMM, size_text
    from ..lab.gemm_tables import controls, speed_up_line
    from ..lab.plots import plots
    from ..lab.records import read_records
    from ..lab.tables import experiment_line
    from ..lab.transpose_operation import TRANSPOSE

    records = read_records(path)
    products = GEMM.of(records)
    transposes = bool(TRANSPOSE.of(records))
    if not products and not transposes:
        return False
    if heading is not None:
        click.echo(f"\n{heading}" if after_blank else heading)
    if show_transposes(records, path, plot):
        return True
    tables = []
    try:
        head = experiment_line(records)
        for title in dict.fromkeys(title_of(one, size_text(one)) for one in products):
            of_size = [one for one in products if title_of(one, size_text(one)) == title]
            tables.append((title, *figures(GEMM, of_size, with_size=False, paired=True)))
        controls(products), ratios(GEMM, products), plots(records)
        verdict = speed_up_line(products)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"{path.name}: not a whole record of products ({type(error).__name__}: {error}); give one that "
            "`gemmule bench gemm` wrote"
        ) from error
    if verdict:
        echo_text(verdict)
    echo_text(head)
    if only_calls(products):
        line(products)
    else:
        for title, header, rows in tables:
            print_table(title, header, rows, optional=OPTIONAL)
    print_ratios(products)
    if plot is not None:
        draw(records, Path(plot), path.stem, quiet=False)
    return True
