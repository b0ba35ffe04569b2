"""Kernels with TMA loads explained: their bytes, and their timelines, each of which shows its kernel's idea."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from gemmule.cli import gemmule
from gemmule.core.arch import Arch
from gemmule.core.chips import chip_named
from gemmule.core.errors import ArgumentError, UnsupportedError
from gemmule.core.spec import Choice
from gemmule.lab.explain import explain, page
from gemmule.lab.explain.named import EXPLAINED, problem_of
from gemmule.lab.explain.pipeline_sample import timeline_of
from gemmule.lab.explain.sample import Sample, buffers, unfolded
from gemmule.lab.explain.timeline_advice import keep_busy, sample_shares
from gemmule.lab.explain.timeline_json import timeline_dict
from gemmule.lab.explain.timeline_picture import draw_timeline
from gemmule.lab.explain.timeline_text import WIDTH, chart, timeline_text, waits_text
from gemmule.lab.explain.totals import totals
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import read_records
from gemmule.vgpu.instrument import CountedKernel
from pages.timelines import timeline_from
from support.vgpu.explanations import explained

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

H100, HOPPER = chip_named("h100"), Arch(9, 0, True)
ROOT = Path(__file__).parents[3]
KERNELS = [
    spec
    for spec in EXPLAINED
    if spec.operation == "gemm" and spec.next_kernel is None and all(arch.specific for arch in spec.archs)
]
SPECS = {spec.name: spec for spec in KERNELS}


@functools.cache
def line(kernel):
    """The timeline of a kernel in a large product."""
    choice = Choice(SPECS[kernel], SPECS[kernel].default)
    return timeline_of(gemm_problem(4096, 4096, 4096, "bfloat16", "bfloat16", "nn"), choice, H100, CountedKernel)


def spans(kernel, what, cta=0):
    return [span for span in line(kernel).spans if span.what == what and span.cta == cta]


def role(kernel, *does):
    return [found for found in line(kernel).roles if found.cta == 0 and found.does == does]


@pytest.mark.parametrize(
    "kernel",
    [pytest.param(spec.name, marks=[] if spec.name in ("h03_stages", "h06_cluster_multicast") else [pytest.mark.slow])
     for spec in KERNELS],
)  # fmt: skip
def test_formulas_and_counts_agree(kernel):
    """Where tiles divide the product: what L2 gives, to a cluster once, and what shared memory gets and gives."""
    found = explained(kernel, "512,768,256")
    levels = {level.name: level for level in found.levels}
    for name in ("shared: loaded", "shared: products"):
        assert levels[name].bytes == levels[name].formula_bytes > 0
    loaded = sum(32 * one.sectors for one in found.totals.by_line if one.kind == "bulk load")
    assert loaded == levels["L2"].formula_bytes - 512 * 768 * 2
    stored = sum(32 * one.sectors for one in found.totals.by_line if one.kind == "bulk store")
    assert stored in (0, 512 * 768 * 2)
    out = found.totals.engine_bytes.get("bulk store", 0)
    assert (out > 0) == (stored > 0)
    # What copies write into shared memory bounds nothing.
    assert found.totals.engine_passes == (levels["shared: products"].bytes + out) // 128


def test_k_tiles_shared_by_a_cluster_are_read_once():
    shared, alone = (explained(kernel, "512,768,256") for kernel in ("h06_cluster_multicast", "h05_persistent"))
    assert shared.totals.engine_bytes["bulk load"] == alone.totals.engine_bytes["bulk load"]
    assert shared.totals.l2_bytes < alone.totals.l2_bytes


def test_ctas_that_stay_are_counted_tile_by_tile():
    """Two CTAs for six tiles: what each does once is not counted three times."""
    spec = SPECS["h05_persistent"]
    choice = Choice(spec, type(spec.default)(ctas=2))
    problem = problem_of(choice, HOPPER, "384,512,384", None, None, None, None)
    # The number of CTAs is the launch's affair: the code is the same.
    kernel = CountedKernel(spec, spec.default, choice.signature(problem), HOPPER)
    found = explain(problem, choice, H100, lambda *_: kernel)
    recipe = spec.launch(problem, choice.config)
    whole = totals([Sample(problem, 1, 1)], [kernel.run(recipe, buffers(problem, 9), H100)])
    assert (found.tiles, found.ctas, found.persistent) == (6, 2, True)
    assert found.totals.engine_bytes == whole.engine_bytes
    assert found.totals.warps == pytest.approx(whole.warps, rel=0.002)
    assert max(limit.uneven for limit in found.limits) == 66
    assert "6, 3 for each CTA: persistent CTAs compute several" in page(found)


def test_one_stage_and_several():
    """h02 asks for a k-tile when the one before has been multiplied, h03 while it is."""
    for kernel, ahead in (("h02_wgmma_tma", False), ("h03_stages", True)):
        copies = {span.k_tile: span for span in spans(kernel, "copy")}
        products = {span.k_tile: span for span in spans(kernel, "products")}
        assert sorted(copies) == sorted(products) == list(range(6))
        assert all(copies[k].end <= products[k].begin for k in copies)
        assert all((copies[k + 1].begin < products[k].end) == ahead for k in range(5))
        assert role(kernel, "copies", "multiplies", "writes")[0].warps == (0, 1, 2, 3)
    assert line("h02_wgmma_tma").in_flight()[0] == 1
    # The multiprocessor holds several CTAs, which take turns.
    assert {span.cta for span in line("h02_wgmma_tma").spans} == {0, 1, 2}


def test_roles():
    """h04: one warp copies, and waits for both warpgroups that multiply; these wait for it."""
    found = line("h04_warp_specialised")
    (producer,) = role("h04_warp_specialised", "copies")
    consumers = role("h04_warp_specialised", "multiplies", "writes")
    assert [one.warps for one in (producer, *consumers)] == [(0,), (4, 5, 6, 7), (8, 9, 10, 11)]
    waits = {(wait.role, wait.about): wait for wait in found.waits}
    assert set(waits[producer, "free stages"].by) == set(consumers)
    # Of seven k-tiles, four find their stage empty from the start.
    assert waits[producer, "free stages"].times == 3
    assert all(waits[one, "slices"].by == (producer,) for one in consumers)
    assert found.stages == 4
    assert found.in_flight()[0] == 4
    assert not found.persistent


def test_ctas_that_stay_copy_while_they_write():
    """The next tile's k-tiles are asked for, and have come, before this one is written."""
    copies = {span.k_tile: span for span in spans("h05_persistent", "copy")}
    products = {span.k_tile: span for span in spans("h05_persistent", "products")}
    first_tile = [span for span in spans("h05_persistent", "write") if span.begin < products[7].begin]
    written = max(span.end for span in first_tile)
    assert all(copies[k].end < written for k in range(7, 11))
    assert line("h05_persistent").k_tiles == 7
    idle = {when for when, _ in line("h05_persistent").idle}
    assert "tile" in idle
    # Written by TMA, there is nothing to wait for.
    assert sample_shares(line("h07_tma_store"), 64)["ends"] < 0.25 * sample_shares(line("h05_persistent"), 64)["ends"]


def test_warpgroups_take_turns():
    """h08: each multiplies every other tile alone, and hands over to the other, which waits for that."""
    one, two = role("h08_pingpong", "multiplies", "writes")
    by_role = {found: [s for s in spans("h08_pingpong", "products") if s.role == found] for found in (one, two)}
    assert {span.k_tile // 8 for span in by_role[one]} == {0, 2}
    assert {span.k_tile // 8 for span in by_role[two]} == {1}
    assert all(a.end <= b.begin or b.end <= a.begin for a in by_role[one] for b in by_role[two])
    turns = {wait.role: wait.by for wait in line("h08_pingpong").waits if wait.about == "its turn"}
    assert turns == {one: (two,), two: (one,)}
    # While one writes, the other multiplies.
    (first, *_) = [span for span in spans("h08_pingpong", "store") if span.role == one]
    assert any(span.begin < first.end and span.end > first.begin for span in by_role[two])
    assert not any(when == "tile" for when, _ in line("h08_pingpong").idle)
    # Copies by both CTAs of the cluster.
    waits = [wait for wait in line("h08_pingpong").waits if (wait.role, wait.about) == (one, "slices")]
    assert {found.cta for found in waits[0].by} == {0, 1}


@pytest.mark.parametrize(
    ("kernel", "sentence"),
    [
        ("h02_wgmma_tma", "Keep more k-tiles in flight: the tensor cores wait for copies 7%"),
        ("h03_stages", "Load fewer bytes: copies take 1 steps for a step of products"),
        ("h04_warp_specialised", "Let CTAs stay: the tensor cores have nothing to do for 7%"),
        ("h05_persistent", "Multiply while a tile is written"),
        ("h08_pingpong", ""),
    ],
)
def test_each_rung_is_told_of_the_next(kernel, sentence):
    found = keep_busy(line(kernel), 64)
    assert found.startswith(sentence)
    assert bool(found) == bool(sentence)


@pytest.mark.parametrize("kernel", ["h02_wgmma_tma", "h04_warp_specialised", "h08_pingpong"])
def test_text_and_data(kernel):
    found = line(kernel)
    text = f"{timeline_text(found)}\n{waits_text(found)}"
    assert max(map(len, text.splitlines())) <= WIDTH
    assert all(row == row.rstrip() for row in text.splitlines())
    data = json.loads(json.dumps(timeline_dict(found), allow_nan=False))
    assert chart(timeline_from(data)) == chart(found)
    assert sum(data["longest_path"].values()) == pytest.approx(data["steps"], abs=0.01)
    idle = sum(one["steps"] for one in data["tensor_cores_idle"])
    work = sum(span.end - span.begin for span in found.spans if span.what == "products" and span.cta == 0)
    if kernel == "h08_pingpong":
        assert idle + work / found.step == pytest.approx(data["steps"], abs=0.05)
    assert data["tensor_cores_busy"] == pytest.approx(1 - idle / data["steps"], abs=0.001)


@pytest.mark.parametrize("kernel", ["h03_stages", "h04_warp_specialised", "h08_pingpong"])
def test_the_timeline_in_the_documentation_is_this_one(kernel):
    assert f"```\n{chart(line(kernel))}\n```" in (ROOT / "docs" / "notebook" / "hopper" / f"{kernel}.md").read_text()


def test_the_example_in_the_documentation_is_of_this_timeline():
    shown = (ROOT / "docs" / "explain.md").read_text().split("```\nstep ")[1].split("```")[0].strip().splitlines()
    assert shown[1:] == chart(line("h08_pingpong")).splitlines()[1 : len(shown)]


def test_no_product_was_faster_than_what_shared_memory_gives():
    """Products of few rows, at the full clock: their factors are read in two thirds of the time."""
    path = ROOT / "benchmarks" / "results" / "20261121T095731-nvidia-h100-80gb-hbm3-69e0ea9ddc.jsonl"
    ratios = []
    for record in read_records(path):
        if record.get("kernel") != "hopper_gemm" or record["dtype"] != "bfloat16" or record["m"] > 128:
            continue
        config = record["config"]
        problem = gemm_problem(record["m"], record["n"], record["k"], "bfloat16", "bfloat16", record["layout"])
        choice = Choice(SPECS["hopper_gemm"], SPECS["hopper_gemm"].default.of_record(config))
        ctas = math.prod(choice.spec.launch(problem, choice.config).grid)
        tiles = unfolded(choice.spec, choice.config, problem)
        passes = -(-problem.k // 64) * config["tile_m"] // 64 * (64 + config["tile_n"])
        ratios.append(record["min_us"] / (1e6 * -(-tiles // ctas) * passes / H100.boost_hz))
    assert len(ratios) > 10
    assert 1 < min(ratios) < 1.6


def test_integers_in_tensor_cores_have_a_peak():
    found = explained("hopper_gemm", "256,256,256", dtype="int8", layout="nt").as_json()
    assert (found["missing"], found["peak_unit"]) == ([], "int8 tensor cores")
    assert found["next"].startswith("Give every SM work")


def run(*arguments):
    return CliRunner().invoke(gemmule, ["explain", *arguments])


def test_packing_is_a_launch_before():
    found = explained("hopper_gemm_repacked", "100,70,90")
    assert found.choice.spec.name in ("hopper_gemm", "hopper_gemm_unaligned")
    (before,) = found.as_json()["before"]
    # A and B read, and written with rows of whole 128 bytes.
    assert before["bytes"] == 2 * (100 * 90 + 90 * 70) + 2 * (100 * 128 + 90 * 128)
    text = page(found)
    assert text.startswith("hopper_gemm_repacked, 100 x 70 x 90, H100")
    assert "hopper_gemm_repacked prepares operands before: " in text


def test_the_title_is_of_the_kernel_that_was_named_and_its_bound_of_all_launches():
    found = explained("gemm_upcast", "256,256,256", chip="rtx4090")
    title = page(found).split("\n\n")[0].replace("\n", " ")
    assert title.startswith("gemm_upcast, 256 x 256 x 256, RTX 4090: at most ")
    assert title.endswith("in mma_sync_gemm, the last of its launches")
    whole = found.rate(found.least_seconds + found.before[0].seconds)
    assert f"at most {whole / 1e3:.4g} TFLOP/s" in title
    assert whole < 0.9 * found.rate(found.least_seconds)


def test_sums_that_small_problems_do_not_keep_aside_are_refused():
    with pytest.raises(UnsupportedError, match=r"has workspaces \(long sums\) .*; give a --shape of a smaller K$"):
        explained("bf16x6_gemm", "128,192,1088", precision="bf16x6")


@pytest.mark.parametrize("name", ["t.png", "t.svg"])
def test_a_picture(name, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    kernel = "h02_wgmma_tma" if name.endswith("svg") else "h08_pingpong"
    draw_timeline(tmp_path / name, line(kernel), kernel, force=True)
    assert (tmp_path / name).stat().st_size > 10000
    with pytest.raises(ArgumentError, match="exists; give force=True"):
        draw_timeline(tmp_path / name, line(kernel), "", force=False)


def test_the_command_draws_and_says_what_it_assumes(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    path = str(tmp_path / "t.png")
    options = ("h03_stages", "--shape", "512,768,256", "--copy-latency", "3000", "--copy-bytes", "32", "--json")
    result = run(*options, "--timeline", path)
    assert result.exit_code == 0, result.output
    slow, usual = json.loads(result.stdout)["timeline"], explained("h03_stages", "512,768,256").as_json()["timeline"]
    assert (slow["rules"]["copy_latency_clocks"], slow["rules"]["copy_bytes_per_clock"]) == (3000, 32)
    assert slow["steps"] > usual["steps"] + 2400 / usual["step_clocks"]
    # A second time the file is there: said before anything runs.
    assert "t.png" in run(*options, "--timeline", path).output
    assert "neither .png nor .svg" in run(*options, "--timeline", str(tmp_path / "t.jpg")).output


@pytest.mark.parametrize("word", ["0", "-1", "inf", "nan"])
@pytest.mark.parametrize("option", ["--copy-bytes", "--copy-latency"])
def test_assumptions_that_are_none(option, word):
    result = run("h04_warp_specialised", "--shape", "256,256,256", option, word)
    assert result.exit_code == 2
    assert "is not above 0" in result.output


def test_a_kernel_without_a_pipeline_has_no_timeline(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    result = run("g02_naive_coalesced", "--shape", "64,64,64", "--timeline", str(tmp_path / "t.png"))
    assert result.exit_code == 1
    assert "it loads no k-tiles by TMA" in result.output
    rungs = sorted(name[:3] for name in SPECS if re.match(r"h\d\d_", name))
    assert f"explain hopper_gemm or one of {rungs[0]} to {rungs[-1]}" in result.output
    assert explained("g02_naive_coalesced", "64,64,64").as_json()["timeline"] is None


def test_few_tiles_are_shown_as_they_are():
    """Where every CTA has one tile, no second one is made up."""
    found = explained("h08_pingpong", "256,256,192").timeline
    assert (found.tiles, found.k_tiles) == (1, 3)
    assert dataclasses.replace(found, persistent=True).ctas == 2
