"""Counts and rooflines: arithmetic by hand, blocks of pages, and what is not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmule.core.chips import chip_named
from gemmule.lab.records import write_records
from pages import counted, rooflines
from pages.blocks import generated, pictures
from support.report import records as made

H100 = chip_named("h100")
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
SIZE = 1024
FLOP = 2 * SIZE**3


def of(kernel, read, written=None, sectors=None, config=None, dtype="float32", **more):
    values = {"dram__bytes_read.sum": read, "dram__bytes_write.sum": written, "lts__t_sectors_op_read.sum": sectors}
    return [
        made.counts(kernel, SIZE, counter, config, dtype, hardware=value)
        for counter, value in (values | more).items()
        if value is not None
    ]


def test_a_place_is_rate_over_bytes():
    records = [
        *of("g01_naive_uncoalesced", FLOP / 12, FLOP / 4 - FLOP / 12, FLOP / 64),
        made.gemm("g01_naive_uncoalesced", SIZE, SIZE, SIZE, 1.34),
        made.baseline(SIZE, SIZE, SIZE, library=50.0),
    ]
    (roofline,) = rooflines.rooflines(records, H100)
    (place,) = roofline.places
    assert (place.dram, place.l2, place.with_writes) == (pytest.approx(4), pytest.approx(2), True)
    assert place.attainable == pytest.approx(4 * H100.memory_bandwidth)
    assert (place.bound, place.reached) == ("device memory", pytest.approx(1.34e12 / (4 * H100.memory_bandwidth)))
    assert roofline.yardstick == pytest.approx(50e12)
    assert (roofline.plotted, roofline.roofs) == ((place,), (("fp32", H100.peaks.fp32),))


def test_only_a_time_of_the_same_product_counts():
    key = made.gemm("g", SIZE, SIZE, SIZE, 1.0)
    others = [
        key | {"k": 2 * SIZE}, key | {"layout": "nt"}, key | {"precision": "tf32"}, key | {"batch": [2]},
        key | {"config": {"tile_k": 9}}, key | {"dtype": "float64"}, key | {"kernel": "h"},
    ]  # fmt: skip
    for other in others:
        (roofline,) = rooflines.rooflines([*of("g", 1e6), other], H100)
        assert roofline.places[0].rate is None
        assert roofline.places[0].reached is None
        assert not roofline.drawn
    (roofline,) = rooflines.rooflines([*of("g", 1e6), *others, key], H100)
    assert roofline.places[0].rate == 1e12


def test_a_kernel_without_tensor_cores_has_the_lower_roof():
    fma = {"smsp__sass_thread_inst_executed_op_dfma_pred_on.sum": FLOP / 2}
    records = [
        *of("d01_shared_ab", 1e6, dtype="float64", **fma),
        *of("tensor", 1e6, dtype="float64", **dict.fromkeys(fma, 0.0)),
    ]
    (roofline,) = rooflines.rooflines(records, H100)
    assert [place.unit for place in roofline.places] == ["fp64", "fp64_tensor"]
    assert [place.peak for place in roofline.places] == [H100.peaks.fp64, H100.peaks.fp64_tensor]
    assert [unit for unit, _ in roofline.roofs] == ["fp64_tensor", "fp64"]
    # Both are beyond the ridge, and the table says which peak it is that is above them.
    header, rows = rooflines.table(roofline.places)
    assert [row[header.index("roof is")] for row in rows] == ["peak of fp64 FMA units", "peak of fp64 tensor cores"]


def test_a_type_that_no_unit_multiplies_has_no_roofline():
    assert rooflines.rooflines(of("g", 1e6, dtype="int32"), chip_named("b200")) == []
    assert rooflines.rooflines(of("g", 1e6, dtype="bfloat16"), chip_named("v100"))[0].roofs[0][0] == "fp32"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7, "7"), (15.64, "15.6"), (999.6e3, "1 M"), (999.4, "999"), (1.05e6, "1.05 M"), (2.4e9, "2.4 G"),
     (8.5e12, "8.5 T"), (0.5, "0.5")],
)  # fmt: skip
def test_counts_in_words(value, text):
    assert counted.scaled(value) == text


def test_rows_without_counters_are_left_out():
    header, rows = counted.table([("a", {"smsp__inst_executed.sum": 64.0}), ("b", {})])
    assert header == ["", "a", "b"]
    assert rows == [["instructions, of warps", "64", ""]]
    lanes = {"smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 32 * 48.0}
    _, rows = counted.table([("a", {"smsp__inst_executed.sum": 64.0} | lanes)])
    assert rows[1] == ["of them multiply-adds", "75.0 %"]
    assert counted.conflict_share({"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 0.0}) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [("long_scoreboard", "global memory"), ("short_scoreboard", "shared memory"), ("barrier", "a barrier"),
     ("dispatch_stall", "the dispatcher"), ("math_pipe_throttle", "a busy arithmetic pipe"),
     ("wait", "a fixed latency"), ("mio_throttle", "the queue to shared memory"),
     ("lg_throttle", "the queue to global memory"), ("no_instruction", "instructions")],
)  # fmt: skip
def test_reasons_to_wait_have_the_names_of_the_counters(name, text):
    others = {"smsp__average_warps_issue_stalled_selected_per_issue_active.ratio": 9.0}
    assert counted.waits(others) is None  # a warp that is chosen does not wait
    counter = f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio"
    assert counted.waits(others | {counter: 2.25}) == f"{text} (2.2)"


def test_the_reasons_that_were_counted_are_known():
    prefix, suffix = counted._STALL.split("{}")
    records = [json.loads(line) for path in sorted(RESULTS.glob("*.jsonl")) for line in path.read_text().splitlines()]
    names = {one["counter"] for one in records if one["record"] == "counts" and one["counter"].startswith(prefix)}
    reasons = {name.removeprefix(prefix).removesuffix(suffix) for name in names}
    assert set(counted._STALLS) <= reasons


def test_the_most_frequent_reasons_come_first():
    stall = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio".format
    counts = {stall("wait"): 1.0, stall("barrier"): 3.5, stall("lg_throttle"): 2.0}
    assert counted.waits(counts) == "a barrier (3.5), the queue to global memory (2.0)"


EXPERIMENT = made.experiment()


def block(name, *words):
    return f"<!-- generated: {' '.join([name, *words])} -->\nold\n<!-- end -->"


def test_pages_hold_counts_and_places(tmp_path):
    count = made.counts("g01_naive_uncoalesced", SIZE, "smsp__inst_executed.sum", hardware=2e6, virtual=3e6)
    other = of("g01_naive_uncoalesced", FLOP / 4, config={"tile_k": 16})
    counts = write_records(tmp_path, EXPERIMENT, [*of("g01_naive_uncoalesced", FLOP / 4), count, *other])
    timed = made.gemm("g01_naive_uncoalesced", SIZE, SIZE, SIZE, 1.34)
    times = write_records(tmp_path, made.experiment(date="20260102T000000"), [timed])
    text = generated(block("counts", "g01_naive_uncoalesced", counts.name, times.name), tmp_path)
    name = "g01_naive_uncoalesced[tile_k=8]"
    assert f"| 1024 x 1024 x 1024, float32 | {name} | {name}, virtual GPU | g01_naive_uncoalesced[tile_k=16] |" in text
    assert "| instructions, of warps | 2 M | 3 M |  |" in text
    assert "| kernel | FLOP/byte of DRAM | FLOP/byte of L2 | roof is | roof, TFLOP/s | TFLOP/s | of roof |" in text
    assert f"| {name} | 4.0 |  | device memory | 13.4 | 1.34 | 10.0 % |" in text
    assert "Counted at this size and not timed: g01_naive_uncoalesced[tile_k=16]." in text
    with pytest.raises(KeyError, match="no counts of g02"):
        generated(block("counts", "g02", counts.name), tmp_path)


def test_pages_hold_rooflines(tmp_path):
    records = [*of("g01_naive_uncoalesced", FLOP / 4), *of("d01_shared_ab", FLOP / 4, dtype="float64")]
    counts = write_records(tmp_path, EXPERIMENT, records)
    timed = made.gemm("g01_naive_uncoalesced", SIZE, SIZE, SIZE, 1.34)
    times = write_records(tmp_path, made.experiment(date="20260102T000000"), [timed])
    both = block("roofline", counts.name, times.name)
    text = generated(both, tmp_path, "../plots")
    name = f"{counts.stem}-roofline-float32-1024x1024x1024"
    assert f'srcset="../plots/{name}-dark.svg"' in text
    assert f'src="../plots/{name}.svg"' in text
    assert text.count("<picture>") == 1
    assert "Roofline, float64, 1024 x 1024 x 1024, H100 SXM 80 GB: counted, and not timed at this size." in text
    assert [plot.name for plot, _ in pictures(both, tmp_path).values()] == ["roofline-float32-1024x1024x1024"]
    assert "float32" not in generated(block("roofline", counts.name, "float64"), tmp_path).partition("old")[2]
    elsewhere = write_records(tmp_path, made.experiment("NVIDIA B200", "20260103T000000"), [timed])
    with pytest.raises(KeyError, match="of one GPU"):
        generated(block("roofline", counts.name, elsewhere.name), tmp_path)
