"""Tables, plots and generated pages: made from records only, always the same."""

from __future__ import annotations

import re
import resource

import pytest

from gemmule.core.chips import chip_named
from gemmule.core.errors import FileAccessError, FileFormatError, UnsupportedError
from gemmule.core.spec import Choice
from gemmule.lab import bench_tables, gemm_tables, protocol
from gemmule.lab.bench_plan import BenchPlan
from gemmule.lab.drawing.canvas import Page, figure_on, inline_svg
from gemmule.lab.drawing.curves import draw_curves
from gemmule.lab.drawing.theme import DARK
from gemmule.lab.gemm_bench import GemmBench
from gemmule.lab.gemm_operation import GEMM
from gemmule.lab.kernel_labels import labels
from gemmule.lab.pictures import draw, fingerprint
from gemmule.lab.plots import Plot, error_plots, plots
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import RecordFile, read_records, write_records
from gemmule.lab.styles import Style, short
from pages.__main__ import main
from pages.blocks import bench_block, generated, pictures, plots_link
from pages.neighbours import neighbours
from pages.picture_blocks import pictures_block
from support.fakes.bench import CONFIGS, FakeBaseline, FakeDevice, kernel_spec, only
from support.fakes.modules import not_installed

EXPERIMENT = {
    "record": "experiment", "date": "20260101T000000", "command": "gemmule bench gemm", "commit": "0123456789",
    "python": "3.12.3", "packages": {"numpy": "2.5"}, "gpu": "NVIDIA H100 80GB HBM3", "driver": "580",
}  # fmt: skip
SECONDS = {"g01": 3e-3, "g02": 2e-3, "d01_shared_ab": 2e-3, "d02_b_in_registers": 1e-3, "y0": 1e-3, "y1": 0.9e-3}
G01, G02 = kernel_spec("g01", only("float32")), kernel_spec("g02")
PAPER = kernel_spec("d01_shared_ab"), kernel_spec("d02_b_in_registers")


def measured(sizes, choices, dtype="float32", device=None):
    device = device or FakeDevice(SECONDS)
    problems = tuple(gemm_problem(*size, dtype, dtype, "nn") for size in sizes)
    plan = BenchPlan(problems, tuple(choices), seconds=0.05, warm_up_seconds=0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "WARM_UP_EDGE", 64)
        return [EXPERIMENT, *GemmBench(plan, device, chip_named("h100"), FakeBaseline(device)).records()]


@pytest.fixture(scope="module")
def records():
    sizes = [(32, 32, 16), (64, 64, 16), (128, 128, 16), (48, 32, 16)]
    return measured(sizes, [Choice(G01, CONFIGS[0]), Choice(G02, CONFIGS[0]), Choice(G02, CONFIGS[2])])


@pytest.fixture(scope="module")
def doubles():
    choices = [Choice(spec, config) for spec in PAPER for config in CONFIGS[:2]] + [Choice(G01, CONFIGS[0])]
    return measured([(32, 32, 32), (64, 64, 64), (96, 96, 96)], choices, "float64")


def test_names_tell_configs_apart_and_no_more(records):
    names = set(labels(records).values())
    assert names == {"g01", "g02[tile_m=64]", "g02[tile_m=128]"}


def test_figures_have_a_row_for_each_kernel_and_size(records):
    header, rows = bench_tables.figures(GEMM, records)
    assert header == ["kernel", "M x N x K", "min us", "mean us", "median us", "max us", "GFLOP/s", "of peak",
                      "vs cuBLASLt", "error u"]  # fmt: skip
    assert len(rows) == 4 * 4
    assert all(len(row) == len(header) for row in rows)
    assert [row[0] for row in rows[:2]] == ["cuBLASLt", "g01"]
    assert rows[1][1:6] == ["32 x 32 x 16", "3000.0", "3000.0", "3000.0", "3000.0"]
    assert rows[0][8] == "1"
    assert rows[1][8] == "0.300 (0.300 to 0.300)"


def test_float64_shows_both_peaks_and_what_was_skipped(doubles):
    header, rows = bench_tables.figures(GEMM, doubles, with_size=False)
    assert header[6:8] == ["of peak", "of FMA peak"]
    assert header[-1] == "note"
    assert ("g01", "", "skipped: takes float32, not float64") in [(row[0], row[1], row[-1]) for row in rows]
    assert {row[-1] for row in rows if row[0] != "g01"} == {""}
    assert bench_tables.skipped(GEMM, doubles) == [
        "g01 skipped at 32 x 32 x 32, 64 x 64 x 64, 96 x 96 x 96: takes float32, not float64"
    ]  # fmt: skip


def test_ratios_are_sizes_by_kernels(records):
    header, rows = bench_tables.ratios(GEMM, records)
    assert header == ["M x N x K", "g01", "g02[tile_m=64]", "g02[tile_m=128]"]
    assert rows[0] == ["32 x 32 x 16", "0.300", "0.450", "0.450"]
    assert len(rows) == 4


def test_odd_sizes_stand_beside_their_aligned_neighbours():
    sizes = [(128, 128, 128), (127, 127, 127), (128, 127, 128), (64, 64, 64)]
    records = measured(sizes, [Choice(G01, CONFIGS[0]), Choice(G02, CONFIGS[0])])
    late = [record | {"alignment": 4} for record in records[1:] if record["m"] == record["n"] == 128]
    header, rows = neighbours([*records, *late])
    assert header[4:6] == ["of the neighbour's", "neighbour's kernel"]
    rates = {(r["m"], r["n"]): r["tflops"] for r in records if r.get("kernel") == "g02"}
    assert [(row[0], row[1], row[4], row[5]) for row in rows] == [
        ("127 x 127 x 127", "g02", f"{rates[127, 127] / rates[128, 128]:.3f}", "g02"),
        ("128 x 127 x 128", "g02", f"{rates[128, 127] / rates[128, 128]:.3f}", "g02"),
        ("128 x 128 x 128, at 4 bytes", "g02", "1.000", "g02"),
    ]
    assert all(float(row[4]) > 0.9 for row in rows)


def test_neighbours_of_several_types_are_told_apart():
    records = measured([(128, 128, 128), (127, 127, 127)], [Choice(G01, CONFIGS[0])])
    slow = [one | {"dtype": "float16", "tflops": one["tflops"] / 2} for one in records if one["record"] == "gemm"]
    slow[1] |= {"tflops": slow[1]["tflops"] / 2}
    header, rows = neighbours([*records, *slow])
    kinds = {row[header.index("types")]: float(row[header.index("of the neighbour's")]) for row in rows}
    assert list(kinds) == [records[-1]["dtype"], "float16"]
    assert kinds["float16"] == pytest.approx(kinds[records[-1]["dtype"]] / 2, abs=1e-3)


def test_a_control_outside_its_limits_is_told():
    record = {"record": "yardstick", "m": 8, "n": 8, "k": 8, "control": 1.02, "control_low": 0.98, "control_high": 1.1}
    record |= {"control_high": 1.04}
    assert gemm_tables.controls([record, record | {"control": 1.009}]) == [
        "control at 8 x 8 x 8: the baseline is 1.020 times itself (0.980 to 1.040); ratios there say no more than that"
    ]
    for spread in ({"control_low": 0.94}, {"control_high": 1.06}):
        assert len(gemm_tables.controls([record | {"control": 1.0} | spread])) == 1


def test_configs_that_were_skipped_are_told_apart():
    choices = [Choice(G01, config) for config in CONFIGS]
    records = measured([(32, 32, 32)], choices, "float64")
    names = {"g01[tile_m=64,stages=2]", "g01[tile_m=128,stages=2]", "g01[tile_m=128,stages=3]"}
    assert {row[0] for row in bench_tables.figures(GEMM, records)[1]} == names
    assert {line.partition(" ")[0] for line in bench_tables.skipped(GEMM, records)} == names


def test_other_outputs_and_precisions_are_other_plots(records):
    others = [one | {"out_dtype": "float64"} for one in records[1:]] + [
        one | {"precision": "tf32"} for one in records[1:]
    ]
    assert [plot.name for plot in plots([*records, *others])] == [
        "float32-nn-k16", "float32-float64-nn-k16", "float32-tf32-nn-k16"
    ]  # fmt: skip


def test_a_complex_product_has_four_times_the_operations(records):
    (real, *_), (complex_, *_) = plots(records), plots([r | {"dtype": "complex64"} for r in records])
    assert complex_.library == {size: pytest.approx(4 * rate) for size, rate in real.library.items()}


def test_what_there_is_to_plot(records, doubles):
    (plot,) = plots(records)
    assert (plot.name, plot.axis) == ("float32-nn-k16", "M = N, K = 16")
    assert plot.curves[0][0] == "g01"
    assert sorted(plot.library) == sorted(plot.curves[0][1]) == [32, 64, 128]  # what is not square is not on the axis
    assert plot.library[128] == pytest.approx(2 * 128 * 128 * 16 / 0.9e-3 / 1e12)
    assert plot.peaks == ((66.9, "peak of fp32: 66.9 TFLOP/s"),)
    (paper,) = plots(doubles)  # and not the same again as every kernel
    assert paper.name == "float64-nn-square-registers"
    assert [name.partition("[")[0] for name, _ in paper.curves] == ["normal: d01_shared_ab"] * 2 + [
        "opt: d02_b_in_registers"
    ] * 2
    assert [rate for rate, _ in paper.peaks] == [33.5, 66.9]
    assert plots([r for r in records if r.get("m") != 32]) == []  # two sizes make no curve


def test_plots_are_the_same_every_time(records, doubles, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    for plot in (*plots(records), *plots(doubles)):
        first, second = (draw(plot, tmp_path / folder, "stem") for folder in "ab")
        assert [path.name for path in first] == [f"stem-{plot.name}.png", f"stem-{plot.name}.svg"]
        assert [path.name for path in draw(plot, tmp_path, "stem", (DARK,))] == [
            f"stem-{plot.name}-dark.png", f"stem-{plot.name}-dark.svg"
        ]  # fmt: skip
        for one, other in zip(first, second, strict=True):
            assert one.read_bytes() == other.read_bytes()
            assert fingerprint(plot).encode() in one.read_bytes()
        svg = first[1].read_text()
        assert "dc:date" not in svg
        # Text is drawn as outlines; what it says stands beside them.
        for name, _ in plot.curves:
            assert f"<!-- {short(name)} -->" in svg
        assert "<!-- cuBLASLt -->" in svg


def test_a_fingerprint_is_that_of_the_figures(records):
    (plot,) = plots(records)
    assert plots(records) == [plot]
    slower = [one | {"tflops": one["tflops"] / 2} if one["record"] == "gemm" else one for one in records]
    assert fingerprint(plots(slower)[0]) != fingerprint(plot)


def test_kernels_that_err_alike_are_one_curve(records):
    (plot,) = error_plots(records)
    (name, curve), *rest = plot.curves
    assert name == "all 3 kernels"
    assert rest == []
    assert curve == {r["m"]: r["error_u"] for r in records if r.get("kernel") == "g01" and r["m"] == r["n"]}
    assert plot.library == {r["m"]: r["error_u"] for r in records if r["record"] == "yardstick" and r["m"] == r["n"]}
    other = [one | {"error_u": 9.0} if one.get("kernel") == "g01" else one for one in records]
    (plot,) = error_plots(other)
    assert [name for name, _ in plot.curves] == ["g01", "g02[tile_m=64] and 1 more"]
    assert error_plots([one for one in records if one["record"] == "gemm"]) == []  # there is nothing to compare with


def test_exact_sums_have_no_curves_of_errors(records):
    assert error_plots([one | {"error_u": 0.0} if "error_u" in one else one for one in records]) == []
    only_ours = [one | {"error_u": 0.0} if one["record"] == "gemm" and "error_u" in one else one for one in records]
    assert len(error_plots(only_ours)) == 1


def test_long_labels_leave_room_for_the_axes():
    """Matplotlib warns where they do not, which is an error here."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    name = f"hopper_gemm[{','.join(f'field_{number}=128' for number in range(9))}]"
    curves = ((name, {128: 1.0, 256: 2.0}), (f"{name} and 9 more", {128: 2.0, 256: 1.0}))
    plot = Plot("error", "errors", "M = N = K", curves, {}, (), styles=(Style(0, 0), Style(0, 1)))
    page = Page(width=358, height=380, text=12, narrow=True)
    with figure_on(page, text_as="none") as figure:
        draw_curves(figure, plot, page)
        assert "…" in inline_svg(figure, "error", "errors")


def test_plots_without_matplotlib_name_the_remedy(records, tmp_path):
    with not_installed("matplotlib"), pytest.raises(UnsupportedError, match=re.escape("pip install 'gemmule[report]'")):
        draw(plots(records)[0], tmp_path, "stem")


def test_pages_hold_figures_ratios_and_plots(records, tmp_path):
    results = tmp_path / "benchmarks" / "results"
    path = write_records(results, EXPERIMENT, records[1:])
    blocks = [f"bench {path.name} g01 cublaslt", f"ratios {path.name}", f"plots {path.name}", f"experiment {path.name}"]
    text = "\n\n".join(f"<!-- generated: {block} -->\nold\n<!-- end -->" for block in blocks)
    page = tmp_path / "docs" / "ladder" / "g01.md"
    page.parent.mkdir(parents=True)
    page.write_text(text)
    (tmp_path / "README.md").write_text("nothing generated")
    main(tmp_path)
    new = page.read_text()
    assert generated(new, results, plots_link(page, tmp_path)) == new
    assert new.count("\n| g01 | ") == 4
    assert "| g02 | " not in new
    assert "| 32 x 32 x 16 | 0.300 | 0.450 | 0.450 |" in new
    assert f'src="../plots/{path.stem}-float32-nn-k16.svg">' in new
    assert f'srcset="../plots/{path.stem}-float32-nn-k16-dark.svg">' in new
    for block in blocks:
        assert f"<!-- generated: {block} -->" in new
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    ((mark, (plot, stem)),) = pictures(new, results).items()
    assert (plot, stem) == (plots(records)[0], path.stem)
    for name in ("", "-dark"):
        file = tmp_path / "docs" / "plots" / f"{path.stem}-float32-nn-k16{name}.svg"
        assert mark.encode() in file.read_bytes()


def test_a_page_may_show_one_plot_of_several(doubles, records, tmp_path):
    path = write_records(tmp_path, EXPERIMENT, [*records[1:], *doubles[1:]])
    text = "<!-- generated: plots {} -->\nold\n<!-- end -->"
    assert generated(text.format(path.name), tmp_path).count("<picture>") == 2
    assert generated(text.format(f"{path.name} float32-nn-k16"), tmp_path).count("<picture>") == 1
    with pytest.raises(KeyError, match="no plot float32-nn-k17, but float32-nn-k16, float64"):
        generated(text.format(f"{path.name} float32-nn-k17"), tmp_path)


def test_a_page_says_what_was_not_measured(doubles):
    block = bench_block(doubles, [])
    assert block.endswith("g01 skipped at 32 x 32 x 32, 64 x 64 x 64, 96 x 96 x 96: takes float32, not float64.")
    assert "| g01 |" not in block
    with pytest.raises(KeyError, match="g09"):
        bench_block(doubles, ["g09"])
    assert pictures_block(plots(doubles), "stem", "plots").count("<img") == 1


def test_a_record_file_has_its_name_when_it_is_complete(tmp_path):
    file = RecordFile(tmp_path / "new", EXPERIMENT)
    with file:
        file.write({"record": "gemm", "n": 1})
        # What is there could be read if the run were cut short now.
        assert read_records(file.partial)[1] == {"record": "gemm", "n": 1}
        assert not file.path.exists()
    assert file.path.name == "20260101T000000-nvidia-h100-80gb-hbm3-0123456789.jsonl"
    assert read_records(file.path)[0]["record"] == "experiment"
    assert not file.partial.exists()
    with pytest.raises(FileExistsError), RecordFile(tmp_path / "new", EXPERIMENT):
        pass


def test_a_record_that_cannot_be_written_is_an_error_of_its_file(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(FileAccessError, match="writing it failed"), RecordFile(tmp_path, EXPERIMENT) as file:
            file.write({"record": "gemm", "samples_us": [1.5] * 10000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == [file.partial.name]


def test_a_run_that_is_cut_short_leaves_what_it_measured(tmp_path):
    file = RecordFile(tmp_path, EXPERIMENT)

    def run():
        with file:
            file.write({"record": "gemm"})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert [path.name for path in tmp_path.iterdir()] == [file.partial.name]
    assert len(read_records(file.partial)) == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json\n",
        '{"record": "gemm"}\n',
        "[1]\n",
        '{"record": "experiment"}\n7\n',
        '{"record": "experiment"}\n{}\n',
    ],
)
def test_what_is_no_record_file_is_refused(text, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(FileFormatError, match="not a record file"):
        read_records(path)
