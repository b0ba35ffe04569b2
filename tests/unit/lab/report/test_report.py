"""``gemmule report``: one page of record files, whole, and readable without a mouse or colours."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from gemmule.lab.drawing.theme import DARK, LIGHT
from gemmule.lab.plots import _families
from gemmule.lab.report.sources import machines, read_source
from support.report import records as made
from support.report.page import TIMED, Reader, made_page, run, undrawn  # noqa: F401 - a fixture


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return made_page(tmp_path_factory.mktemp("whole"), made.whole())


COMMITTED = sorted((Path(__file__).parents[4] / "benchmarks" / "results").glob("*.jsonl"))


#: The newest, and some of the others: all are read by make test-all.
SOME = {*COMMITTED[::8], *COMMITTED[-60:]}


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path in SOME else [pytest.mark.slow], id=path.stem) for path in COMMITTED],
)
def test_every_committed_record_can_be_read(path):
    assert read_source(path).records


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_committed_records_make_a_page(tmp_path):
    result = run(COMMITTED[0].parent, "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    assert re.search("Records of other kinds: .*ceiling, ", (tmp_path / "page.html").read_text())


def test_every_section_is_there(page):
    titles = [text for level, text in Reader(page).headings if level == 3]
    assert titles == ["At a glance", "The ladder over sizes", "Errors, and cuBLAS's",
                      "Transposes", "Tables of products", "How it was measured"]  # fmt: skip


def test_figures_are_those_of_the_records(page):
    tables = Reader(page).tables
    ladder = tables["Rate over size, float32 nn, M = N = K: TFLOP/s"]
    assert ladder[-1][0] == "4096"
    assert ladder[-1][1:3] == ["0.67", "6.69"]
    assert ladder[-1][-1] == "52.00"
    errors = tables["Largest error over size, float32 nn, M = N = K: largest error, u (|A| |B|)"]
    assert errors[0] == ["1024", "3.00", "4.00", "2.00"]
    assert tables["Bandwidth of transposes / that of the copy"][-1][1:3] == ["0.141", "0.706"]
    blocks = tables["Block shapes, 4096 x 4096 of 4 bytes: effective GB/s"]
    assert blocks == [["32 x 32", "16000"], ["64 x 8", "32000"], ["8 x 64", "4000"]]
    glance = tables["The fastest kernel of each type and layout, at the largest size with cuBLASLt"]
    assert glance == [["float32 nn", "0.952", "g07_cp_async", "49.5", "74.0 % of fp32", "4096 x 4096 x 4096"]]


@pytest.mark.usefixtures("undrawn")
def test_a_share_of_a_peak_says_of_which(tmp_path):
    product = made.gemm("d02_b_in_registers", 64, 64, 64, 20.6, dtype="float64")
    product |= {"peak_unit": "fp64_tensor", "peak_share": 0.308, "fma_share": 0.615, "fma_tflops": 33.5}
    tables = Reader(made_page(tmp_path, [made.experiment(), product])).tables
    ((*_, shares, _),) = tables["The fastest kernel of each type and layout, at the largest size with cuBLASLt"]
    assert shares == "30.8 % of fp64 tensor cores, 61.5 % of FMA units"


def test_every_rung_is_named_in_the_figures(page):
    texts = Reader(page).svg_texts
    for name in ("g01", "g04", "g05[tile_k=8]", "g05[tile_k=16]", "g07", "cuBLASLt", "peak of fp32: 66.9 TFLOP/s"):
        assert texts.count(name) >= 2, name  # the wide figure and the narrow one


def test_it_stands_alone(page):
    elements = Reader(page).elements
    assert not [tag for tag, _ in elements if tag in ("script", "iframe", "img", "object", "embed")]
    for tag, attributes in elements:
        for name in ("src", "href", "xlink:href", "srcset", "data", "action"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:,")), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"url\((?!#)|@import", page)
    policy = next(a["content"] for t, a in elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_it_can_be_followed_without_eyes_or_a_mouse(page):
    read = Reader(page)
    assert read.elements[0] == ("html", {"lang": "en"})
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in read.elements:
        for name in ("aria-labelledby", "href", "xlink:href"):
            if (target := attributes.get(name, "")) and not target.startswith("data:"):
                assert target.removeprefix("#") in ids, target
        if match := re.search(r"url\(#([^)]+)\)", attributes.get("clip-path", "") or ""):
            assert match[1] in ids
    levels = [level for level, _ in read.headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    tags = [tag for tag, _ in read.elements]
    assert all(tags.count(tag) == 1 for tag in ("header", "main", "nav"))
    tables, regions = tags.count("table"), [a for _, a in read.elements if a.get("role") == "region"]
    assert tables == tags.count("caption") == len(regions) >= 8
    assert all(a["tabindex"] == "0" and a["aria-labelledby"] for a in regions)
    assert all(a.get("scope") in ("row", "col") for tag, a in read.elements if tag == "th")
    figures = [a for tag, a in read.elements if tag == "svg"]
    assert all(a["role"] == "img" and a["aria-labelledby"] for a in figures)
    assert tags.count("figure") == tags.count("figcaption") == len(figures) / 2


def test_colours_come_from_the_page(page):
    drawn = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert not re.search(r"#[0-9a-fA-F]{6}\b", drawn)
    for variable in re.findall(r"var\((--[\w-]+)\)", drawn):
        assert page.count(f"{variable}: #") == 3, variable  # light, dark, and light again in print


def contrast(one, other):
    def luminance(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_colours_can_be_told_from_the_page(theme):
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    for colour in (theme.ink, theme.faint):
        assert contrast(colour, theme.page) >= 4.5, colour
    for colour in theme.series:
        assert contrast(colour, theme.page) >= 3, colour
    colours = [theme.page, theme.ink, theme.faint, theme.grid, *theme.series]
    assert len({colour.lower() for colour in colours}) == len(colours)  # each stands for one variable


def test_the_same_records_give_the_same_page(page, tmp_path):
    assert made_page(tmp_path, made.whole()) == page


def test_what_is_not_in_the_records_is_named(tmp_path):
    records = [made.experiment(), made.gemm("g01", 64, 64, 64, 1.0)]
    text = made_page(tmp_path, records)
    for line in (
        "The ladder over sizes: it takes gemm records of three sizes with M = N",
        "Errors, and cuBLAS&#39;s: it takes",
        "Transposes: there are no transpose records.",
    ):
        assert text.count(f"<li>{line}") == 1, line
    assert "<svg" not in text
    assert [level for level, _ in Reader(text).headings].count(4) == 1


def test_chips_are_never_mixed(tmp_path):
    sizes = (1024, 2048, 4096)
    one = [made.experiment(), *(made.gemm("g01_naive_uncoalesced", n, n, n, 0.5) for n in sizes)]
    other = [made.experiment("NVIDIA B200"), *(made.gemm("g06_double_buffer", n, n, n, 60.0) for n in sizes)]
    host = [made.experiment(None), {"record": "check", "what": "tests/x.py::test_y", "passed": 3}]
    other[0]["date"] = one[0]["date"].replace("2026", "2025")
    text = made_page(tmp_path, host, other, one)
    names = [heading for level, heading in Reader(text).headings if level == 2]
    assert names == [made.H100, "NVIDIA B200", "no GPU: Linux x86_64"]
    first, second, third = re.split("<h2", text)[1:]
    assert ("g01<" in first, "g06<" in first, "g01<" in second, "g06<" in second) == (True, False, False, True)
    assert "Records of other kinds: check." in third
    assert len(re.findall(r'id="([^"]+)"', text)) == len(set(re.findall(r'id="([^"]+)"', text)))


@pytest.mark.usefixtures("undrawn")
def test_the_newest_figure_counts(tmp_path):
    old = [
        made.experiment(date="20260101T000000"),
        made.gemm("g01", 64, 64, 64, 1.0),
        made.gemm("g02", 64, 64, 64, 9.0),
        made.transpose("t04_naive_col", 64, 3.0),
    ]
    batch = made.transpose("t04_naive_col", 64, 4.0) | {"batch": [7]}
    new = [made.experiment(date="20260201T000000"), made.gemm("g01", 64, 64, 64, 2.0), batch]
    sources = [read_source(made.write(tmp_path / name, records)) for name, records in (("b", new), ("a", old))]
    (machine,) = machines(sources)
    figures = sorted((r["kernel"], r.get("tflops") or r["gbps"]) for r in machine.records)
    assert figures == [("g01", 2.0), ("g02", 9.0), ("t04_naive_col", 3.0), ("t04_naive_col", 4.0)]
    assert machine.replaced == 1
    assert [source.name for source in machine.sources] == ["a", "b"]


@pytest.mark.usefixtures("undrawn")
def test_a_matrix_times_its_own_transpose_is_another_product(tmp_path):
    own = {"own_transpose": True}
    sizes = (1024, 2048, 4096)
    records = [made.experiment()]
    for n in sizes:
        for ratio, more in ((0.9, {}), (1.9, own)):
            records.append(made.gemm("h09" if not more else "h15", n, n, n, 600.0 * ratio) | {"ratio": ratio} | more)
    files = [
        made.write(tmp_path / name, [made.experiment(date=date), made.gemm("h09", 64, 64, 64, 1.0) | more])
        for name, date, more in (("a", "20260101T000000", {}), ("b", "20260201T000000", own))
    ]
    (machine,) = machines([read_source(file) for file in files])
    assert (machine.replaced, len(machine.records)) == (0, 2)
    tables = Reader(made_page(tmp_path, records)).tables
    glance = tables["The fastest kernel of each type and layout, at the largest size with cuBLASLt"]
    assert [row[:3] for row in glance] == [
        ["float32 nn", "0.900", "h09"], ["float32 nn own transpose", "1.900", "h15"]
    ]  # fmt: skip
    names = {plot.name: {r["kernel"] for r in plot.products} for plot in _families(records)}
    assert names["float32-nn-square"] == {"h09"}
    assert names["float32-nn-own-transpose-square"] == {"h15"}


@pytest.mark.usefixtures("undrawn")
def test_of_many_kernels_one_curve_and_the_fastest_are_shown(tmp_path):
    records = [made.experiment()]
    for n in (1024, 2048, 4096):
        records += [
            made.gemm(f"k{number}", n, n, n, 100.0 + number) | {"ratio": 0.5 + number / 100} for number in range(13)
        ]
    tables = Reader(made_page(tmp_path, records)).tables
    fastest = tables["Time of cuBLASLt / time of the kernel, float32 nn: the fastest kernel"]
    assert fastest == [[f"{n} x {n} x {n}", "0.620", "k12"] for n in (1024, 2048, 4096)]
    rate = "Rate over size, float32 nn, M = N = K: TFLOP/s"
    assert [row[:2] for row in tables[rate]] == [[str(n), "112.00"] for n in (1024, 2048, 4096)]
    assert len(tables[f"Every kernel: {rate}"][0]) == 15  # and the size, and cuBLASLt
    for record in records[1:]:
        record["chosen_by"] = "dispatch" if record["kernel"] == "k3" else "rung"
    (again := tmp_path / "called").mkdir()
    called = Reader(made_page(again, records)).tables[rate]
    assert [row[:2] for row in called] == [[str(n), "103.00"] for n in (1024, 2048, 4096)]


@pytest.mark.usefixtures("undrawn")
def test_names_are_text_and_no_markup(tmp_path):
    records = made.whole()
    for record in records[1:]:
        if record.get("kernel") == "gemm_reference":
            record["kernel"] = "<script>alert(1)</script>&"
    records[0]["command"] = "<img src=x onerror=y>"
    text = made_page(tmp_path, records)
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;alert(1)" in text


@pytest.mark.usefixtures("undrawn")
def test_counts_of_transposes_need_no_times(tmp_path):
    counts = {"load_sectors_per_request": 4.0, "store_sectors_per_request": 32.0, "l1_hit_rate": 0.25,
              "bank_conflict_share": 0.5}  # fmt: skip
    one = {"record": "transpose_counts", "kernel": "t01_naive", "config": {}, "itemsize": 4, "m": 512, "n": 256}
    for first in ([made.experiment(None)], made.whole()):
        folder = tmp_path / str(len(first))
        folder.mkdir()
        tables = Reader(made_page(folder, [*first, one | {"counts": counts}])).tables
        rows = tables["What transposes ask of the L1 caches, counted only"]
        assert [row[0] for row in rows] == ["t01_naive"]
        assert rows[0][-4:] == ["4.0", "32.0", "25 %", "50 %"]
        assert ("Bandwidth of transposes / that of the copy" in tables) == (len(first) > 1)


def test_many_curves_have_room_for_their_labels(tmp_path):
    # Where there is none, matplotlib warns that nothing is left of the axes.
    records = [made.transpose(f"kernel{number}", edge, 9.0) for number in range(50) for edge in (1024, 2048, 4096)]
    texts = Reader(made_page(tmp_path, [made.experiment(), *records])).svg_texts
    assert {f"kernel{number}" for number in range(50)} <= set(texts)


def test_a_transpose_has_one_curve_of_its_fastest_configs(tmp_path):
    rates = {8: (100.0, 900.0, 300.0), 16: (200.0, 800.0, 400.0)}
    records = [made.transpose("transpose_tiled", edge, rate, config={"block_x": 32, "block_y": rows})
               for rows, of in rates.items() for edge, rate in zip((1024, 2048, 4096), of, strict=True)]  # fmt: skip
    records.append(made.transpose("t11_swizzled_vectorised", 4096, 50.0, config={"block_x": 256, "block_y": 1}))
    found = Reader(made_page(tmp_path, [made.experiment(), *records]))
    rows = found.tables["Transposes, elements of 4 bytes: effective GB/s"]
    assert [row[:2] for row in rows] == [["1024", "200"], ["2048", "900"], ["4096", "400"]]
    assert {"t11", "transpose_tiled"} <= set(found.svg_texts)
    # A kernel with one block shape has no place among those of several.
    assert [row[0] for row in found.tables["Block shapes, 4096 x 4096 of 4 bytes: effective GB/s"]] == [
        "32 x 8",
        "32 x 16",
    ]


@pytest.mark.usefixtures("undrawn")
def test_an_experiment_may_name_its_hardware_in_words(tmp_path):
    made_page(tmp_path, [made.experiment(hardware="other.jsonl"), TIMED])
