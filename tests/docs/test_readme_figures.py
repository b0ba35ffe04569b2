"""Every figure of the README's comparison is that of the tables that the records make."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SECTION = re.search(r"^## Is it faster\?\n(.*?)^## ", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
assert SECTION is not None
#: What the section says, a word after the other, without its plot and without the targets of its links.
TEXT = re.sub(r"<!-- generated.*?<!-- end -->|\]\([^)]*\)|[\[*`]", "", SECTION[1], flags=re.DOTALL)
SAID = " ".join(TEXT.split())

Row = dict[str, str]


def tables(page: str, kind: str) -> list[list[Row]]:
    """Return the tables of a kind of generated blocks, each row by the names of its columns, with its records."""
    text = (DOCS / page).read_text()
    found = []
    for records, block in re.findall(rf"<!-- generated: {kind} (.*?) -->\n(.*?)<!-- end -->", text, re.DOTALL):
        header, _, *rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines() if line[:1] == "|"
        ]
        header = [head.removesuffix(" (p10 to p90)") for head in header]
        found.append([{**dict(zip(header, row, strict=True)), "records": records} for row in rows])
    return found


def column(rows: Iterator[Row] | list[Row], name: str) -> list[float]:
    return [float(row[name].split()[0]) for row in rows if row.get(name)]


def span(values: list[float], digits: int) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


H100, H200 = tables("speed.md", "draws")
DRAWS = (H100, H200)


def draw(rows: list[Row], types: str, shapes: str) -> Row:
    (row,) = [row for row in rows if row["type"].startswith(types) and row["shapes"] == shapes]
    return row


def few_bfloat16() -> str:
    rows = [draw(rows, "bfloat16", "aligned") for rows in DRAWS]
    return (
        f"{slower(rows[0], 0.95)} aligned bfloat16 (H100) and {slower(rows[1], 0.95)} (H200) by "
        f"more than 5 %, the slowest {rows[0]['lowest']} and {rows[1]['lowest']} times as fast"
    )


def odd_float16() -> str:
    first, second = (draw(rows, "float16", "odd") for rows in DRAWS)
    return (
        f"{slower(first, 0.8)} odd float16 (H100, before the kernel for small GEMMs) "
        f"and {slower(second, 0.8)} (H200) by more than 20 %"
    )


def slower(row: Row, ratio: float) -> str:
    """Return the share of a draw's GEMMs below a ratio, and of how many."""
    return f"{row[f'below {ratio:.2f}']} of {row['compared']}"


def float64_on_an_h200() -> str:
    aligned, odd = (column([draw(H200, "float64", shapes)], "vs top heuristic")[0] for shapes in ("aligned", "odd"))
    return f"on the H200 float64, {aligned:.2f} aligned and {odd:.2f} odd"


def float64_on_an_h100() -> str:
    aligned, odd = (column([draw(H100, "float64", shapes)], "vs top heuristic")[0] for shapes in ("aligned", "odd"))
    return f"on the H100 float64, {aligned:.2f} aligned and {odd:.2f} odd"


def least() -> str:
    rows = [row for rows in DRAWS for row in rows if row["lowest"] and not row["type"].startswith("int8")]
    types = {row["type"] for row in rows}
    assert all(any(float(row["lowest"]) < 0.95 for row in rows if row["type"] == one) for one in types)
    return f"in every float type, down to {min(float(row['lowest']) for row in rows):.2f}"


def batches() -> str:
    rows = [row for row in tables("notebook/kernels.md", "batches")[0] if row["type"] == "float32"]
    sizes = sorted({int(row["products"].split()[-1]) for row in rows})
    times = column(rows, "of cuBLASLt's best of 8")
    shapes = " to ".join(f"{size} x {size} x {size}" for size in (sizes[0], sizes[-1]))
    return f"Batches of float32 matrices, {shapes} | {max(times):.1f} to {min(times):.1f} | cuBLASLt's best of 8 | H100"


def host_rows() -> list[Row]:
    return list(itertools.chain(*tables("notebook/decisions/0005-where-host-arrays-run.md", "host_arrays")))


def host_arrays() -> str:
    times = column([row for row in host_rows() if int(row["M = N = K"]) >= 4096], "best of these / gm")
    without = min(int(row["M = N = K"]) for row in host_rows() if not row["NumPy, ms"])
    return f"from 4096 on | {span(times, 1)} | the faster of NumPy and PyTorch (PyTorch alone from {without} on)"


def small_host_arrays() -> str:
    # Those of the first table: others are of former copies.
    newest = tables("notebook/decisions/0005-where-host-arrays-run.md", "host_arrays")[0]
    times = column([row for row in newest if int(row["M = N = K"]) <= 1024], "best of these / gm")
    return f"NumPy arrays up to 1024 | {span(times, 2)} |"


def emulation() -> str:
    rows = [row for table in tables("notebook/emulation.md", "bench") for row in table]
    large = [row for row in rows if row["kernel"] == "ozaki_gemm" and int(row["M x N x K"].split()[0]) >= 3072]
    times = span(column(large, "vs cuBLASLt"), 1)
    return f"float64 by emulation, M = N = K from 3072 on | {times} | cuBLASLt's best of 8 |"


def models(mode: str, *models: str) -> list[Row]:
    """Return the newest row of each cell on each GPU."""
    rows = [row for table in tables("notebook/frameworks.md", "models") for row in table if row["mode"] == mode]
    newest = {(row["records"].split("-")[2], row["model"], row["phase, rows x tokens"]): row for row in rows}
    return [row for row in newest.values() if row["model"].startswith(models)]


def chips(rows: list[Row]) -> str:
    """Return the GPUs of records, as a page names them."""
    return " and ".join(sorted({re.search(r"h\d00", row["records"])[0].upper() for row in rows}))


def eager_models() -> str:
    rows = models("eager", "llama")
    trained = [row for row in rows if row["phase, rows x tokens"].startswith("train")]
    inferred = column([row for row in rows if row not in trained], "ratio")
    return (
        f"Llama, eager | {span(inferred, 2)} | PyTorch's layers | H100, H200 | "
        f"| a training step, eager (0.78: an H100, measured before a change that took an H200 from 0.78 to 1.04)"
        f" | {span(column(trained, 'ratio'), 2)} |"
    )


def compiled_decode() -> str:
    rows = [row for row in models("compiled", "llama") if row["phase, rows x tokens"].startswith("decode")]
    (gpu,) = {row["records"].split("-")[2] for row in rows}
    ratios = span(column(rows, "ratio"), 2)
    return f"under torch.compile, tuned | {ratios} | PyTorch's layers | {gpu.upper()} |"


def one_token() -> str:
    rows = [row for row in models("eager", "mixtral", "qwen") if row["phase, rows x tokens"] == "decode 1 x 1"]
    return f"one token of a mixture of experts | {span(column(rows, 'ratio'), 2)} |"


def scaled() -> str:
    (rows,) = tables("notebook/scaled.md", "scaled")
    large = [row for row in rows if int(row["M x N x K"].split()[0]) >= 4096]
    ratios = column(large, "of `torch._scaled_mm`")
    return f"8-bit GEMMs with scales, large | {span(ratios, 2)} | torch._scaled_mm |"


def grouped() -> str:
    # Those beside another product say so.
    every = (row for rows in tables("notebook/hopper/hopper_grouped.md", "grouped") for row in rows)
    rows = [row for row in every if " of `torch" not in row["product"]]
    return f"mixtures of experts | {span(column(rows, 'of `torch._grouped_mm`'), 2)} | torch._grouped_mm |"


def streamed() -> str:
    kinds = ("stream_peers", "stream_shapes")
    rows = [row for kind in kinds for table in tables("notebook/outofcore_measured.md", kind) for row in table]
    # The newest row of a product counts.
    newest = {(row["product"], row["operands"]): row for row in rows}
    times = span(column(list(newest.values()), "cuBLASXt / gemmule"), 2)
    return f"Larger than the GPU's memory | {times} | cuBLASXt | H200 |"


def complex_products() -> str:
    # The page's table, whose figures are the notebook's newest.
    section = (DOCS / "complex.md").read_text().partition("## Measured")[2]
    rows = re.findall(r"^\| (?:complex\d+ )?\| H\d00 \|[^|]*\|([^|]*)\|", section, re.MULTILINE)
    times = span([float(x) for row in rows for x in row.split(",")], 2)
    return f"Complex, without emulation | {times} | cuBLASLt's best of 8 |"


CLAIMS: list[Callable[[], str]] = [
    few_bfloat16, odd_float16, float64_on_an_h200, float64_on_an_h100, least, batches, host_arrays, small_host_arrays,
    emulation, eager_models, compiled_decode, one_token, scaled, grouped, streamed, complex_products,
]  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_the_readme_says_what_the_tables_do(claim):
    assert claim() in SAID


def test_no_figure_is_without_a_claim():
    rest = SAID
    for claim in CLAIMS:
        rest = rest.replace(claim(), "")
    assert re.findall(r"\d+\.\d+", rest) == []


@pytest.mark.parametrize("rows", DRAWS, ids=["H100", "H200"])
def test_what_is_called_faster_is_so_in_the_mean(rows):
    compared = [row for row in rows if row["compared"] != "0"]
    slower = {(row["type"], row["shapes"]) for row in compared if column([row], "vs top heuristic")[0] <= 1}
    assert slower <= {("float64", "aligned")}


def test_what_is_called_equal_is_within_two_standard_errors():
    assert "Equal within two standard errors: on the H100 float64" in SAID
    equal = [("float8", "aligned"), ("float64", "aligned"), ("float64", "odd")]
    for row in (draw(H100, *one) for one in equal):
        mean, error = map(float, row["vs top heuristic"].split(" ± "))
        assert abs(mean - 1) <= 2 * error


def llama_2048() -> str:
    eager, graph, compiled = (models(mode, "llama-8x2048") for mode in ("eager", "graph", "compiled"))
    h100, h200 = ([row for row in eager if gpu in row["records"]] for gpu in ("h100", "h200"))
    return (
        f"| Llama, 8 layers of width 2048, H100 and H200 | {ratios(eager, 'decode', 'prefill')} | "
        f"prefill {ratios(compiled, 'prefill')}, decode {ratios(compiled, 'decode')} | "
        f"{ratios(graph, 'decode', 'prefill')} | "
        f"H200 {ratios(h200, 'train')}; H100 {ratios(h100, 'train')}, in a graph {ratios(graph, 'train')} |"
    )


def llama_4096() -> str:
    eager, graph, compiled = (models(mode, "llama-8x4096") for mode in ("eager", "graph", "compiled"))
    return (
        f"| Llama, width 4096, H100 and H200 | {ratios(eager, 'decode', 'prefill')} | "
        f"prefill {ratios(compiled, 'prefill')}, decode {ratios(compiled, 'decode')} | "
        f"{ratios(graph, 'decode', 'prefill')} | {ratios(eager, 'train')} |"
    )


def ratios(rows: list[Row], *phases: str) -> str:
    """Return the span of some phases, or the only value, as it is written."""
    values = column([row for row in rows if row["phase, rows x tokens"].startswith(phases)], "ratio")
    return span(values, 2) if len({f"{one:.2f}" for one in values}) > 1 else f"{values[0]:.2f}"


def heading() -> str:
    return f"| model, GPU | eager | `torch.compile`, {chips(models('compiled', 'llama'))} only |"


@pytest.mark.parametrize("row", [heading, llama_2048, llama_4096], ids=lambda row: row.__name__)
def test_the_page_of_frameworks_says_what_the_notebook_does(row):
    assert row() in (DOCS / "frameworks.md").read_text()
