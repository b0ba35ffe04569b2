"""Random products for judging a choice: their distribution, the options that name them, and what is said of them."""

from __future__ import annotations

import collections
import math

import numpy as np
import pytest

from gemmule.commands.bench_products import Shapes, parse_types
from gemmule.core.arch import Arch
from gemmule.core.chips import chip_named
from gemmule.core.errors import ArgumentError
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.lab import protocol
from gemmule.lab.bench_plan import BenchPlan
from gemmule.lab.draw_tables import draw_rows, line_of
from gemmule.lab.draws import Draw, parse_draw, without_draws
from gemmule.lab.gemm_bench import GemmBench
from gemmule.lab.products import LAYOUTS, gemm_problem
from pages.draws import draws_block
from support.fakes.bench import FakeBaseline, FakeDevice, FakeTorch, kernel_spec
from support.fakes.laboratory import laboratory

__all__ = ["laboratory"]

H100 = chip_named("h100")


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_extents_are_log_uniform_a_third_is_odd_and_the_rest_multiples_of_16_bytes(itemsize):
    products = Draw(3000, 5).products(itemsize)
    step = 16 // itemsize
    odd = [size for size, _ in products if all(extent % 2 for extent in size)]
    assert len(odd) == 1000
    assert all(extent % step == 0 for number, (size, _) in enumerate(products) if number % 3 != 2 for extent in size)
    extents = np.array([size for size, _ in products])
    assert extents.min() >= 64
    assert extents.max() <= 8192
    # As many between 64 and their geometric middle as above it, in each dimension.
    below = (extents < math.sqrt(64 * 8192)).mean(axis=0)
    assert np.all(np.abs(below - 0.5) < 0.04)
    counts = collections.Counter(layout for _, layout in products)
    assert set(counts) == set(LAYOUTS)
    assert min(counts.values()) > 650


def test_a_longer_draw_begins_with_a_shorter_one_and_types_share_layouts():
    assert Draw(300, 9).products(2)[:60] == Draw(60, 9).products(2)
    assert Draw(60, 9).products(2) != Draw(60, 10).products(2)
    assert [layout for _, layout in Draw(60, 9).products(2)] == [layout for _, layout in Draw(60, 9).products(4)]


@pytest.mark.parametrize(("low", "high", "itemsize"), [(1, 17, 1), (8, 100, 2), (63, 80, 1), (100, 116, 1)])
def test_extents_stay_within_narrow_limits(low, high, itemsize):
    for size, _ in Draw(200, 0, low, high).products(itemsize):
        assert all(low <= extent <= high for extent in size), size


@pytest.mark.parametrize(
    ("word", "draw"),
    [
        ("random:300:7", Draw(300, 7)),
        ("random:60:0xdec08ee1", Draw(60, 0xDEC08EE1)),
        ("random:200:5:8:8192", Draw(200, 5, 8, 8192)),
    ],
)
def test_words_that_name_a_draw(word, draw):
    assert parse_draw(word) == draw
    assert without_draws(["square", f"64,32,16,{word}", word]) == (["square", "64,32,16"], (draw, draw))


@pytest.mark.parametrize(
    "word", ["random:", "random:5", "random:0:1", "random:5:-1", "random:5:1:64", "random:5:1:64:70", "random:5:1:0:99",
             "random:five:1", "random:5:1:64:8192:3", "random:5:0xg", f"random:5:1:64:{2**30 + 1}",
             f"random:5:1:64:1{'0' * 400}"],
)  # fmt: skip
def test_words_that_do_not_are_refused_with_an_example(word):
    with pytest.raises(ArgumentError, match="random:") as error:
        parse_draw(word)
    assert len(str(error.value)) < 300


def test_types_with_precision_and_output():
    bf16, tf32, fp8 = parse_types(["bfloat16,float32:tf32", "float8_e4m3fn:float8:bfloat16"], None, "ieee")
    assert (bf16.dtype, bf16.out_dtype, bf16.precision.value) == ("bfloat16", "bfloat16", "ieee")
    assert (tf32.dtype, tf32.out_dtype, tf32.precision.value) == ("float32", "float32", "tf32")
    assert (fp8.dtype, fp8.out_dtype, fp8.precision.value) == ("float8_e4m3fn", "bfloat16", "float8")
    for word, told in (("float31", "float31"), ("float32:tf31", "tf31"), ("float32:tf32:float32:x", "DTYPE")):
        with pytest.raises(ArgumentError, match=told):
            parse_types([word], None, "ieee")


def test_shapes_of_several_types_layouts_and_batches():
    types = parse_types(["bfloat16", "float64"], None, "ieee")
    problems = Shapes(["128,96,64", "random:6:3"], batch=5).problems(types)
    assert len(problems) == 14
    assert [problem.a.dtype.name for problem in problems] == ["bfloat16"] * 7 + ["float64"] * 7
    assert problems[0].layout == "nn"
    assert len({problem.layout for problem in problems[1:7]}) > 2
    assert all(problem.batch == (5,) for problem in problems)
    assert {one.layout for one in Shapes(["random:6:3"], layout="nt").problems(types)} == {"nt"}


def test_an_untuned_choice_reads_no_table():
    problem = gemm_problem(4096, 4096, 4096, "bfloat16", "bfloat16", "nn")
    asked = {"multiprocessors": 132, "chip": "NVIDIA H200"}
    assert choose(problem, Arch(9, 0, True), REGISTRY, **asked).chosen_by == "tuned"
    assert choose(problem, Arch(9, 0, True), REGISTRY, **asked, tuned=False).chosen_by == "cost"


def measured(torch=None, batch=(), **seconds):
    device = FakeDevice({"call": 1e-3, "y0": 0.9e-3, "y1": 0.8e-3, "y2": 2e-3, "torch": 0.95e-3} | seconds)
    spec = kernel_spec("call")
    problems = (
        gemm_problem(96, 80, 64, "float32", "float32", "nt", batch=batch),
        gemm_problem(97, 81, 65, "float32", "float32", "tn", batch=batch),
    )
    plan = BenchPlan(problems, (), seconds=0.1, warm_up_seconds=0.01, chosen=lambda _: Choice(spec, spec.default),
                     about={"draws": [{"count": 2, "seed": 0xDEC08EE1}]})  # fmt: skip
    bench = GemmBench(
        plan, device, H100, FakeBaseline(device), torch and FakeTorch(device, torch if torch is not True else None)
    )
    return [{"record": "experiment", "commit": "dec08ee123"} | bench.about(), *bench.records()]


@pytest.fixture(autouse=True)
def _small_warm_up(laboratory):
    pass


@pytest.mark.parametrize("batch", [(), (3,)])
def test_pytorch_is_timed_in_the_same_turns(batch):
    block, *records = measured(torch=True, batch=batch)
    calls = [one for one in records if one["record"] == "gemm"]
    assert block["torch"] == "2.11.0"
    assert [one["torch_us"] for one in calls] == [950, 950]
    assert [one["torch_ratio"] for one in calls] == [0.95, 0.95]
    assert len(calls[0]["torch_samples_us"]) == len(calls[0]["samples_us"])
    assert calls[0]["yardstick_first_us"] == 900
    assert calls[0]["batch"] == list(batch)


def test_a_product_that_pytorch_does_not_take_is_listed():
    _, *records = measured(torch="PyTorch has no such product")
    skipped = [one for one in records if one["record"] == "skipped"]
    assert [(one["kernel"], one["reason"]) for one in skipped] == [("torch", "PyTorch has no such product")] * 2
    assert "torch skipped: PyTorch has no such product" in line_of(skipped[0])
    assert not any("torch_ratio" in one for one in records)


def test_the_table_of_a_draw():
    records = measured(torch=True)
    header, rows = draw_rows(records)
    cells = [dict(zip(header, row, strict=True)) for row in rows]
    assert [one["shapes"] for one in cells] == ["aligned", "odd"]
    assert cells[0] == {
        "type": "float32", "shapes": "aligned", "vs top heuristic": "0.900", "vs best of 8": "0.800",
        "vs PyTorch": "0.950", "lowest": "0.90", "below 0.95": "100%", "below 0.80": "0%", "compared": "1",
        "GEMMs": "1",
    }  # fmt: skip
    assert line_of(records[2]) == (
        "96 x 80 x 64 nt float32: call 1000.0 us, 0.900 vs top heuristic, 0.800 vs best of 8, 0.950 vs PyTorch"
    )
    assert "| 0.900 |" in draws_block(records)


def test_the_mean_of_a_draw_has_its_standard_error():
    # Logarithms -0.1, 0 and 0.1: mean 0, standard deviation 0.1.
    calls = [
        {
            "record": "gemm", "chosen_by": "dispatch", "dtype": "float32", "out_dtype": "float32", "precision": "ieee",
            "m": 64, "n": 64, "k": 64, "median_us": 100.0, "yardstick_first_us": 100.0 * math.exp(power),
        }
        for power in (-0.1, 0.0, 0.1)
    ]  # fmt: skip
    header, rows = draw_rows(calls)
    assert dict(zip(header, rows[0], strict=True))["vs top heuristic"] == f"1.000 ± {0.1 / math.sqrt(3):.3f}"


def test_a_page_shows_no_draw_of_another_seed_than_the_commit_has():
    block, *records = measured()
    with pytest.raises(KeyError, match="0xdec08ee1"):
        draws_block([block | {"draws": [{"count": 2, "seed": 1}]}, *records])


def test_a_wrong_matrix_of_a_batch_is_found():
    def spoil(target, value, calls):
        target[...] = value
        if target.ndim == 3:
            target[2, 5, 7] += 1

    device = FakeDevice(spoil={"call": spoil})
    spec = kernel_spec("call")
    problem = gemm_problem(96, 80, 64, "float32", "float32", "nn", batch=(3,))
    plan = BenchPlan((problem,), (Choice(spec, spec.default),), seconds=0.1, warm_up_seconds=0.01)
    found = [one for one in GemmBench(plan, device, H100, None).records() if one["record"] == "check"]
    assert len(found) == 1
    assert "matrix 2 of the batch" in found[0]["reason"]


def test_samples_of_a_short_point_are_short():
    assert protocol.sample_seconds(1.0) == protocol.SAMPLE_SECONDS
    assert protocol.sample_seconds(0.1) == pytest.approx(2e-3)
    assert protocol.calls_for(1e-5, 1, graph=False, sample=2e-3) == 200
