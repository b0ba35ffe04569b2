"""``gemmule bench transpose``: what is measured, refused, printed, recorded and drawn, on a scripted device."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.core.arch import Arch
from gemmule.core.chips import chip_named
from gemmule.core.errors import ArgumentError, CompileError, DriverError, DTypeError, UnsupportedError
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.lab.bench_plan import BenchPlan
from gemmule.lab.bench_tables import figures
from gemmule.lab.transpose_bench import TransposeBench
from gemmule.lab.transpose_operation import TRANSPOSE
from gemmule.lab.transpose_plots import transpose_plots
from gemmule.lab.transposes import (
    is_copy,
    itemsize_of,
    parse_sizes,
    problem_for,
    random_matrix,
    transpose_of,
    transposes_of,
)
from support.batched_transposes import batched
from support.fakes.transpose_bench import SECONDS, Device

HOPPER = Arch.parse("sm_90a")
SPECS = {spec.name: spec for spec in REGISTRY}
H100 = chip_named("H100 SXM")


def measured(device, *names, sizes=((40, 24),), itemsizes=(4,), **options):
    choices = tuple(Choice(SPECS[name], SPECS[name].default) for name in names)
    plan = BenchPlan(
        transposes_of(sizes, itemsizes), choices, seconds=0.01, warm_up_seconds=0.01, chosen=options.pop("chosen", None)
    )
    return list(TransposeBench(plan, device, H100, **options).records())


def test_the_figures_of_a_record():
    (record,) = measured(Device(SECONDS), "transpose_tiled", sizes=[(4000, 250)], itemsizes=(2,))
    moved = 2 * 4000 * 250 * 2
    assert record["record"] == "transpose"
    assert (record["m"], record["n"], record["itemsize"]) == (4000, 250, 2)
    assert record["median_us"] == record["min_us"] == record["max_us"] == 1250
    assert record["gbps"] == pytest.approx(moved * 1e-9 / 1.25e-3, abs=0.01)
    assert record["copy_gbps"] == pytest.approx(moved * 1e-9 / 1e-3, abs=0.01)
    assert record["ratio"] == record["paired_ratio"] == 0.8
    assert record["torch_ratio"] == 4
    assert record["peak_share"] == pytest.approx(record["gbps"] * 1e9 / H100.memory_bandwidth, abs=1e-4)
    assert len(record["samples_us"]) == len(record["copy_samples_us"]) >= 3


def test_the_faster_of_two_copies():
    """The copy moves all bytes in 1 ms, and half of them in 0.25 or in 0.75."""
    for seconds, copy_gbps in [(0.25e-3, 8.0), (0.75e-3, 4.0)]:
        device = Device(SECONDS | {"part": seconds})
        (record,) = measured(device, "transpose_tiled", sizes=[(1000, 1000)], itemsizes=(2,))
        assert record["part_copy_bytes"] == 1_000_000
        assert record["part_copy_gbps"] == pytest.approx(2e-3 / seconds, abs=0.01)
        assert record["ratio"] == 0.8
        assert record["faster_copy_ratio"] == pytest.approx(3.2 / copy_gbps)
        assert record["torch_ratio"] == 4
        header, (row,) = figures(TRANSPOSE, [record])
        assert row[header.index("/ faster copy")] == f"{3.2 / copy_gbps:.3f}"
        assert row[header.index("x PyTorch")] == "4.00"


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
def test_every_element_size_is_checked_bit_by_bit(itemsize):
    def one_bit(target, index):
        if index == 0:
            target.view(np.uint8).reshape(-1)[-1] ^= 1

    assert measured(Device(SECONDS), "transpose_tiled", itemsizes=(itemsize,))[0]["record"] == "transpose"
    (wrong,) = measured(Device(SECONDS, {"transpose_tiled": one_bit}), "transpose_tiled", itemsizes=(itemsize,))
    assert wrong["record"] == "check"
    assert wrong["failed"] == 1
    assert "row 23 of the result is wrong, first at column 39" in wrong["reason"]


def test_a_batch_is_compared_matrix_by_matrix():
    def second(target, index):
        target[1, 3, 5] ^= 1

    (record,) = measured(Device(SECONDS), "transpose_tiled", sizes=[(7, 40, 24)])
    assert (record["batch"], record["m"], record["n"]) == ([7], 40, 24)
    assert record["gbps"] == pytest.approx(2 * 7 * 40 * 24 * 4 * 1e-9 / 1.25e-3, abs=0.01)
    assert TRANSPOSE.size_text(record) == "7 x 40 x 24 of 4 bytes"
    (wrong,) = measured(Device(SECONDS, {"transpose_tiled": second}), "transpose_tiled", sizes=[(7, 40, 24)])
    assert f"row {24 + 3} of the result is wrong, first at column 5" in wrong["reason"]
    with pytest.raises(UnsupportedError, match="torch transposes 7 x 40 x 24 of 4 bytes wrongly"):
        measured(Device(SECONDS, {"torch": second}), "transpose_tiled", sizes=[(7, 40, 24)])


def test_what_is_wrong_in_the_last_buffer_set_only_is_found():
    device = Device(SECONDS)

    def last(target, index):
        if index == device.sets[0] - 1:
            target[3, 5] += 1

    device.spoil["transpose_tiled"] = last
    (wrong,) = measured(device, "transpose_tiled")
    assert device.sets[0] > 1
    assert "row 3 of the result is wrong, first at column 5" in wrong["reason"]


def test_what_is_not_written_is_found():
    """The poisons differ in every byte, so that neither is right by chance."""
    keep = np.uint32(0x55555555)

    class Lazy(Device):
        def kernel(self, problem, choice, operands):
            work = super().kernel(problem, choice, operands)
            operands.a[7, 9] = keep

            def call():
                before = operands.outputs[work.calls % operands.sets][9, 7].copy()
                index = work.calls % operands.sets
                work()
                operands.outputs[index][9, 7] = before

            call.sample = work.sample
            return call

    (wrong,) = measured(Lazy(SECONDS), "transpose_tiled")
    assert wrong["record"] == "check"
    assert "0xaa" in wrong["reason"]


def test_a_large_result_is_compared_in_rows(monkeypatch):
    monkeypatch.setattr("gemmule.lab.transpose_bench._WHOLE_BELOW", 100)

    def everywhere(target, index):
        target[:, 11] ^= 1

    assert measured(Device(SECONDS), "transpose_tiled")[0]["record"] == "transpose"
    (wrong,) = measured(Device(SECONDS, {"transpose_tiled": everywhere}), "transpose_tiled")
    assert "first at column 11" in wrong["reason"]


def test_kernels_that_do_not_run():
    spoil = {"t04_naive_col": CompileError("no"), "t03_naive_row": UnsupportedError("not here")}
    records = measured(Device(SECONDS, spoil), "t04_naive_col", "t03_naive_row", "t11_swizzled_vectorised",
                       sizes=[(33, 31)])  # fmt: skip
    assert [(r["record"], r["reason"]) for r in records[1:]] == [("failed", "no"), ("skipped", "not here")]
    assert records[0]["record"] == "skipped"
    assert "multiples of 16 bytes" in records[0]["reason"]
    gone = DriverError("cuLaunchKernelEx", "CUDA_ERROR_LAUNCH_FAILED", "gone")
    broken = Device(SECONDS, {"t04_naive_col": gone})
    asked = iter([1 << 40])

    def memory_free():
        for free in asked:
            return free
        raise gone

    broken.memory_free = memory_free
    bench = TransposeBench(
        BenchPlan((transpose_of(8, 8, 4),), (Choice(SPECS["t04_naive_col"], SPECS["t04_naive_col"].default),)),
        broken,
        H100,
    )
    found = bench.records()
    assert next(found)["record"] == "check"
    with pytest.raises(DriverError, match="gone"):
        next(found)


def test_too_little_memory_and_peers_that_are_wrong():
    (skipped,) = measured(Device(SECONDS, free=1000), "transpose_tiled")
    assert "GB of the GPU's memory are free" in skipped["reason"]

    def wrong(target, index):
        target[0, 0] ^= 1

    with pytest.raises(UnsupportedError, match="torch transposes 40 x 24 of 4 bytes wrongly"):
        measured(Device(SECONDS, {"torch": wrong}), "transpose_tiled")
    assert "torch_us" not in measured(Device(SECONDS), "transpose_tiled", peers=False)[0]


def test_bounds_are_measured_as_copies():
    (record,) = measured(Device(SECONDS), "t01_copy_row")
    assert record["ratio"] == 0.5
    assert "torch_ratio" not in record
    for name in ("t01_copy_row", "t02_copy_col"):
        assert is_copy(problem_for(SPECS[name], SPECS[name].default, HOPPER, transpose_of(64, 32, 4)))
    for name in ("t03_naive_row", "transpose_tiled", "transpose_reference"):
        assert not is_copy(problem_for(SPECS[name], SPECS[name].default, HOPPER, transpose_of(64, 32, 4)))


def test_a_transpose_in_place_works_on_a_copy_of_the_source():
    (record,) = measured(Device(SECONDS), "transpose_in_place", sizes=[(40, 40)], itemsizes=(2,))
    assert record["record"] == "transpose"
    assert record["gbps"] == pytest.approx(2 * 40 * 40 * 2 * 1e-9 / 1e-3, abs=0.01)

    def one_bit(target, index):
        target[3, 4] ^= 1

    (wrong,) = measured(Device(SECONDS, {"transpose_in_place": one_bit}), "transpose_in_place", sizes=[(40, 40)])
    assert "row 3 of the result is wrong, first at column 4" in wrong["reason"]
    (oblong,) = measured(Device(SECONDS), "transpose_in_place", sizes=[(40, 24)])
    assert oblong["record"] == "skipped"
    assert "two axes of equal length" in oblong["reason"]


def test_what_a_call_would_run_is_measured_once():
    def chosen(problem):
        return choose(problem, HOPPER, multiprocessors=132)

    (record,) = measured(Device(SECONDS), sizes=[(512, 512)], chosen=chosen)
    assert record["chosen_by"] == "dispatch"
    assert record["kernel"] == "transpose_tiled"
    config = chosen(transpose_of(512, 512, 4)).config
    plan = BenchPlan(
        (transpose_of(512, 512, 4),), (Choice(SPECS["transpose_tiled"], config),), chosen=chosen, seconds=0.01
    )
    assert len(list(TransposeBench(plan, Device(SECONDS), H100).records())) == 1


@pytest.mark.parametrize("in_order", [False, True])
def test_launches_in_order(in_order):
    """Launches overlap unless they are measured in order; the table of the figures says which."""
    device, found = Device({"transpose_in_registers": 1e-3, **SECONDS}), []
    kernel = device.kernel

    def seen(problem, choice, operands):
        found.append(choice.spec.launch(problem, choice.config).overlaps)
        return kernel(problem, choice, operands)

    device.kernel = seen
    records = measured(device, "transpose_in_registers", itemsizes=(1,), in_order=in_order)
    assert found == [not in_order]
    _, ((name, *_),) = figures(TRANSPOSE, records)
    assert name == "transpose_in_registers" + (", in order" if in_order else "")


def test_sizes_and_elements():
    assert parse_sizes(["source", "8,9", "4096,4096", "7,8,9"]) == ((4096, 4096), (8, 9), (7, 8, 9))
    assert transposes_of([(7, 40, 24)], [4]) == (batched(transpose_of(40, 24, 4), (7,)),)
    assert itemsize_of("float16") == itemsize_of("bfloat16") == itemsize_of("2") == 2
    assert itemsize_of("complex128") == 16
    for words, error in [
        (["8"], r"any \[BATCH,\]M,N in whole"),
        (["8,9,10,11"], r"any \[BATCH,\]M,N in whole"),
        (["0,3"], "from 1"),
        (["sources"], "did you mean source"),
    ]:
        with pytest.raises(ArgumentError, match=error):
            parse_sizes(words)
    with pytest.raises(ArgumentError, match="'3' is 3 bytes"):
        itemsize_of("3")
    with pytest.raises(DTypeError, match="float12"):
        itemsize_of("float12")
    for objects in ("object", "O"):
        with pytest.raises(DTypeError, match="holds Python objects; name one of numbers"):
            itemsize_of(objects)


def test_random_bits_depend_on_the_seed_only(monkeypatch):
    first = random_matrix(700, 900, 4, 1)
    monkeypatch.setattr("gemmule.lab.transposes.usable_cpus", lambda: 1)
    np.testing.assert_array_equal(first, random_matrix(700, 900, 4, 1))
    assert not np.array_equal(first, random_matrix(700, 900, 4, 2))
    assert abs(np.unpackbits(first.view(np.uint8)).mean() - 0.5) < 0.001


def test_plots_and_tables_of_records():
    device = Device(SECONDS)
    records = [{"record": "experiment", "gpu": "NVIDIA H100 80GB HBM3"}]
    records += measured(
        device, "transpose_tiled", "t04_naive_col", sizes=[(64, 64), (128, 128), (256, 256), (2, 32, 32)]
    )
    configs = SPECS["t04_naive_col"].configs
    plan = BenchPlan(
        (transpose_of(64, 64, 4),), tuple(Choice(SPECS["t04_naive_col"], c) for c in configs), seconds=0.01
    )
    records += list(TransposeBench(plan, device, H100).records())
    sizes, blocks = transpose_plots(records)
    assert sizes.places == ("64", "128", "256")
    assert blocks.bars
    assert blocks.places == tuple(f"{c.block_x} x {c.block_y}" for c in configs)
    header, rows = figures(TRANSPOSE, records)
    assert len(rows) == 8 + len(configs)
    assert "x PyTorch" in header
