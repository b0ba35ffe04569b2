"""The generated blocks of the documentation, and its plots.

A block stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``. NAME is ``kernels``, ``dtypes``, ``gpus``,
or one of ``experiment FILE``, ``explained FILE``, ``bits FILE``, ``choices FILE``, ``counters FILE``, ``checks
FILE``, ``host_arrays FILE``, ``profile FILE``, ``speed FILE``, ``stream FILE``, ``streamed FILE``, ``bench FILE
[KERNEL …] [MxNxK …]`` for the figures of measured products (of those kernels and sizes only; cublaslt is the
baseline's name), ``ratios FILE`` for ratios to the baseline, ``searched FILE … [DTYPE …] [LAYOUT …] [PRESET …]``
for the best config of every product, and ``plots FILE [PLOT …]`` for their plots (those only), with a record file of
benchmarks/results; or ``roofline FILE … [DTYPE …]`` for the rooflines of what the files count and time, ``counts
KERNEL FILE …`` for a kernel's counts and its place on them, ``diff BEFORE AFTER`` for what a kernel changes of
another, and ``source KERNEL`` for its class. ``transposes FILE [KERNEL …]``, ``transpose_ratios FILE``,
``transpose_sweep FILE``, ``transpose_plots FILE`` and ``transpose_throughput [FILE] COUNTS`` show measured
transposes. ``neighbours FILE`` shows what odd sizes reach of aligned ones. ``training FILE`` shows loss curves with
layers of two kinds, ``streamed_files FILE`` products from files beside the disk alone, ``stream_shapes FILE``
streamed products of several shapes, ``numa_links FILE`` copies from every NUMA node, ``file_runs FILE`` each run of
them, ``disk_ways FILE`` the disk alone, ``stream_maps FILE`` tiles written into memory maps, ``stream_ways FILE``
pageable products by threads and buffers, ``stream_conditions FILE`` clocks and rates in core around streamed
products, ``stream_lines FILE`` copies by the length of their lines, ``stream_peers FILE`` streamed products beside
cuBLASXt, ``host_times FILE …`` the host's time of a call in a framework, ``overhead FILE`` what calls cost,
``epilogues FILE`` what epilogues cost, ``timeline FILE KERNEL`` a pipeline in steps and ``timeline_plot FILE KERNEL``
its picture, ``layout NAME`` the picture of a layout, ``removals FILE …`` how many removals of synchronisation the
virtual GPU notices, ``forms FILE`` which forms of Hopper's instructions give the same on both, and ``foreign FILE
…`` kernels of others that run there. ``fuzz FILE`` says how many random problems of each kernel were checked,
``sanitizer FILE`` what compute-sanitizer found, ``random_problems FILE …`` the same of earlier campaigns, ``untuned
FILE …`` what the cost model's choices reach of a search. ``tuned_cells CHIP DTYPE`` shows the aligned cells of a
shipped table, ``accuracy FILE [TYPE…]`` errors of guarded products and what ran, ``errors FILE`` those of others,
``float8 FILE`` products of 8-bit floats beside cuBLASLt's,
``glance FILE …`` what calls run in every type beside it, ``draws FILE`` what untuned calls reach on random products
and ``draw_plot FILE …`` their picture, ``versions FILE`` the same calls of two versions, ``batches FILE …`` products
of small matrices in batches, ``grouped FILE …`` grouped products, ``transpose_shapes FILE …`` transposes of extreme
shapes, ``transpose_layouts FILE …`` drawn ones by name, ``layers FILE`` the host's time of layers,
and ``models FILE`` the times of models.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmule.core.chips import chip_named
from gemmule.lab import bench_tables, gemm_tables
from gemmule.lab.gemm_operation import GEMM
from gemmule.lab.kernel_labels import labels
from gemmule.lab.pictures import Picture, fingerprint
from gemmule.lab.plots import Plot
from gemmule.lab.records import read_records
from gemmule.lab.tables import experiment_line

from . import checked_kernels, counted, faithfulness, frameworks, hopper_forms, rooflines, stream_shapes, transposes
from .accuracy import accuracy_table
from .batches import batches_table
from .call_overhead import overhead_table
from .ceilings import ceiling_table
from .disk import disk_ways_table, file_runs_table
from .draws import draws_block
from .epilogues import epilogue_table
from .errors import errors_table
from .explained import measured_block
from .few_rows import few_rows_table
from .float8 import float8_table
from .fuzz_campaigns import fuzz_block
from .glance_cells import glance_table
from .gpus import gpus_table
from .grouped import grouped_table
from .markdown import markdown
from .neighbours import neighbours
from .picture_blocks import PICTURES, pictures_block
from .profiles import profile_block
from .random_problems import random_problems_block, untuned_block
from .record_files import Record, together
from .registry import dtype_table, kernel_table
from .rung_diff import diff_block, diff_name, diff_text, source_block
from .scaled import quantized_table, scaled_table
from .searched import searched
from .streams import (
    device_stream_table,
    host_arrays_table,
    mapped_table,
    stream_conditions_table,
    stream_lines_table,
    stream_peers_table,
    stream_table,
    stream_ways_table,
    streamed_files_table,
)
from .timelines import timeline_block
from .transpose_shapes import transpose_layouts_table, transpose_shapes_table
from .tuned_cells import tuned_cells_block
from .versions import versions_table

_BLOCK = re.compile(
    r"<!-- generated: (?P<name>\S+)(?: (?P<file>(?!-->)\S+))?(?P<rest>(?: (?!-->)\S+)*) -->\n.*?<!-- end -->", re.DOTALL
)
#: A size among the words of a block.
_SIZE = re.compile(r"\d+x\d+x\d+")
#: Where plots lie, from the root.
PLOTS = Path("docs", "plots")
#: What pages show.
KINDS = ("svg",)


def generated(text: str, results: Path, plots_folder: str = "plots") -> str:
    """Return a page's text with its generated blocks made anew.

    Parameters
    ----------
    text : str
        The page.
    results : Path
        Folder of the record files.
    plots_folder : str
        Folder of the plots, as the page links to it.

    Raises
    ------
    KeyError
        If a block has a name that nothing generates.
    """

    def block(match: re.Match[str]) -> str:
        name, file, rest = match["name"], match["file"], match["rest"].split()
        if file is None:
            content = {"kernels": kernel_table, "dtypes": dtype_table, "gpus": gpus_table}[name]()
        elif name in ("diff", "source"):
            docs = Path(plots_folder).parent.as_posix()
            content = diff_block(file, rest[0], docs) if name == "diff" else source_block(file, docs)
        elif name in transposes.BLOCKS:
            content = transposes.BLOCKS[name](results, [file, *rest])
        elif name == "timeline":
            content = timeline_block(read_records(results / file), *rest)
        elif name == "counts":
            content = counts_block(file, together(results, rest))
        elif name == "tuned_cells":
            content = tuned_cells_block(results, file, *rest)
        elif name in _OF_SEVERAL:
            content = _OF_SEVERAL[name]([record for one in (file, *rest) for record in read_records(results / one)])
        elif name == "searched":
            words = [file, *rest]
            files = [word for word in words if word.endswith(".jsonl")]
            content = searched_block(together(results, files), [word for word in words if word not in files])
        elif name in PICTURES:
            content = pictures_block(*PICTURES[name](results, [file, *rest]), plots_folder)
        else:
            records = read_records(results / file)
            if name == "bench":
                content = bench_block(records, rest, Path(plots_folder).parent)
            elif name == "accuracy":
                content = accuracy_table(records, rest)
            else:
                tables = {
                    "bits": faithfulness.bits_table,
                    "ceilings": ceiling_table,
                    "choices": choices_block,
                    "counters": faithfulness.counters_table,
                    "epilogues": epilogue_table,
                    "errors": errors_table,
                    "disk_ways": disk_ways_table,
                    "experiment": experiment_line,
                    "explained": measured_block,
                    "few_rows": few_rows_table,
                    "file_runs": file_runs_table,
                    "float8": float8_table,
                    "forms": hopper_forms.forms_table,
                    "host_arrays": host_arrays_table,
                    "neighbours": neighbours_block,
                    "numa_links": stream_shapes.numa_links_table,
                    "overhead": overhead_table,
                    "profile": profile_block,
                    "ratios": ratios_block,
                    "sanitizer": checked_kernels.sanitizer_table,
                    "speed": faithfulness.speed_table,
                    "stream": stream_table,
                    "stream_maps": mapped_table,
                    "stream_conditions": stream_conditions_table,
                    "stream_lines": stream_lines_table,
                    "stream_peers": stream_peers_table,
                    "stream_shapes": stream_shapes.stream_shapes_table,
                    "stream_ways": stream_ways_table,
                    "streamed": device_stream_table,
                    "streamed_files": streamed_files_table,
                    "training": frameworks.training_table,
                }
                content = tables[name](records)
        head = match[0].partition("\n")[0]
        return f"{head}\n{content}\n<!-- end -->"

    return _BLOCK.sub(block, text)


def bench_block(records: Sequence[Mapping[str, Any]], words: Sequence[str], docs: Path = Path()) -> str:
    """Return the figures of measured products: of some kernels and sizes, or of all.

    Parameters
    ----------
    records : sequence of mapping
        A record file.
    words : sequence of str
        Kernels and sizes, MxNxK.
    docs : Path
        The folder of the documentation, as the page links to it.

    Raises
    ------
    KeyError
        If the file has no such kernel.
    """
    heads = {"vs cuBLASLt": "vs cuBLASLt (p10 to p90)", "error u": f"[error u]({(docs / 'glossary.md').as_posix()})"}
    sizes = {tuple(map(int, word.split("x"))) for word in words if _SIZE.fullmatch(word)}
    kernels = [word for word in words if not _SIZE.fullmatch(word)]
    chosen = [r for r in records if not kernels or r.get("kernel", r.get("library")) in kernels]
    wrong = set(kernels) - {r.get("kernel", r.get("library")) for r in records}
    if wrong:
        raise KeyError(f"the record has no kernel {', '.join(sorted(wrong))}")
    # A page shows what was measured, and says in lines below what was not.
    measured = [r for r in chosen if r["record"] not in ("skipped", "check")]
    if sizes:
        measured = [r for r in measured if (r.get("m"), r.get("n"), r.get("k")) in sizes]
    header, cells = bench_tables.figures(GEMM, measured)
    rows = markdown([heads.get(head, head) for head in header], cells)
    if sizes:
        return rows
    notes = [*bench_tables.skipped(GEMM, chosen), *gemm_tables.controls(chosen)]
    return "\n".join([rows, *(f"\n{note}." for note in notes)])


def checks_block(records: Sequence[Record]) -> str:
    """Return the checks of a record file, by file of tests."""
    totals: dict[str, list[int]] = {}
    for record in records:
        if record["record"] == "check":
            counts = totals.setdefault(record["what"].split("::")[0], [0, 0, 0])
            for place, name in enumerate(("passed", "failed", "skipped")):
                counts[place] += record.get(name, 0)
    rows = [[what, *map(str, counts)] for what, counts in totals.items()]
    return markdown(["checks", "passed", "failed", "skipped"], rows)


def ratios_block(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the ratios to the baseline, sizes by kernels."""
    return markdown(*bench_tables.ratios(GEMM, records))


def searched_block(records: Sequence[Mapping[str, Any]], only: Sequence[str]) -> str:
    """Return the best config at every size, of some types and layouts or of all."""
    table, means = searched(records, only)
    return f"{markdown(*table)}\n\n{means}."


def choices_block(records: Sequence[Record]) -> str:
    """Return the host time of choosing a kernel."""
    header = ["product", "type", "", "us", "10th percentile", "90th percentile"]
    words = {"choose_first": "first", "choose_again": "again"}

    def product(one: Record) -> list[str]:
        layout, precision = one.get("layout", "nn"), one.get("precision", "ieee")
        size = " x ".join(map(str, one["shape"])) + (f" {layout}" if layout != "nn" else "")
        return [size, one["dtype"] if precision == "ieee" else f"{one['dtype']}:{precision}"]

    rows = [
        [*product(one), words[one["path"]]]
        + [f"{one[field]:.1f}" for field in ("host_us", "host_us_low", "host_us_high")]
        for one in records
        if one["record"] == "overhead" and one["path"] in words
    ]
    return markdown(header, rows)


def counts_block(kernel: str, records: Sequence[Record]) -> str:
    """Return what was counted of a kernel, beside the virtual GPU's counts of it, and its place on the roofline.

    Parameters
    ----------
    kernel : str
        Its name.
    records : sequence of mapping
        An experiment block of the GPU, `counts` records, and `gemm` records for the rates.

    Raises
    ------
    KeyError
        If the kernel was not counted.
    """
    of_kernel = [one for one in counted.counted(records) if one.key[0] == kernel and one.layout == "nn"]
    if not of_kernel:
        raise KeyError(f"the records have no counts of {kernel}")
    names = labels(r for r in records if r["record"] == "counts" and r["kernel"] == kernel)
    places = {
        (roofline.dtype, roofline.shape, place.key): place
        for roofline in rooflines.rooflines(records, chip_named(str(records[0]["gpu"])))
        for place in roofline.places
    }
    parts = []
    for dtype, shape in dict.fromkeys((one.dtype, one.shape) for one in of_kernel):
        here = [one for one in of_kernel if (one.dtype, one.shape) == (dtype, shape)]
        columns = [
            column
            for one in here
            for column in ((names[one.key], one.hardware), (f"{names[one.key]}, virtual GPU", one.virtual))
            if column[1]
        ]
        header, rows = counted.table(columns)
        parts.append(markdown([f"{' x '.join(map(str, shape))}, {dtype}", *header[1:]], rows))
        found = [places[dtype, shape, one.key] for one in here if (dtype, shape, one.key) in places]
        if found:
            parts.append(markdown(*rooflines.table(found)))
        untimed = [place.name for place in found if place.rate is None]
        if untimed:
            parts.append(f"Counted at this size and not timed: {', '.join(untimed)}.")
    return "\n\n".join(parts)


def neighbours_block(records: Sequence[Record]) -> str:
    """Return what odd sizes reach of their aligned neighbours."""
    return markdown(*neighbours(records))


#: Tables of the records of one file or several.
_OF_SEVERAL = {
    "batches": batches_table,
    "checks": checks_block,
    "draws": draws_block,
    "foreign": checked_kernels.foreign_table,
    "fuzz": fuzz_block,
    "glance": glance_table,
    "grouped": grouped_table,
    "host_times": frameworks.host_times_table,
    "layers": frameworks.layers_table,
    "models": frameworks.models_table,
    "random_problems": random_problems_block,
    "quantized": quantized_table,
    "removals": checked_kernels.removals_table,
    "scaled": scaled_table,
    "transpose_layouts": transpose_layouts_table,
    "transpose_shapes": transpose_shapes_table,
    "untuned": untuned_block,
    "versions": versions_table,
}


def has_pictures(text: str) -> bool:
    """Return whether a page has blocks of pictures, without reading the records that those show."""
    return any(match["name"] in PICTURES for match in _BLOCK.finditer(text))


def pictures(text: str, results: Path) -> dict[str, tuple[Picture, str]]:
    """Return the pictures of a page's blocks, with the stem of their files, by the fingerprint in those files."""
    shown: dict[str, tuple[Picture, str]] = {}
    for match in _BLOCK.finditer(text):
        if match["name"] in PICTURES:
            found, stem = PICTURES[match["name"]](results, [match["file"], *match["rest"].split()])
            # What was counted and not timed has no picture.
            drawn = [plot for plot in found if isinstance(plot, Plot) or plot.drawn]
            shown.update({fingerprint(plot): (plot, stem) for plot in drawn})
    return shown


def listings(text: str) -> dict[str, str]:
    """Return the diffs of a page's blocks, by the name of their file."""
    pairs = [(match["file"], match["rest"].strip()) for match in _BLOCK.finditer(text) if match["name"] == "diff"]
    return {diff_name(*pair): diff_text(*pair) for pair in pairs}


def plots_link(page: Path, root: Path) -> str:
    """Return the folder of the plots as `page` links to it."""
    return Path(os.path.relpath(root / PLOTS, page.parent)).as_posix()


def pages(root: Path) -> list[Path]:
    """Return the pages that may hold generated blocks."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
