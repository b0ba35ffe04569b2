"""Explanations without a kernel: the sentence, the small problems that stand for a large one, refusals."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gemmule.cli import gemmule
from gemmule.core.arch import Arch
from gemmule.core.chips import chip_named
from gemmule.core.errors import ArgumentError, UnsupportedError
from gemmule.dispatch.select import choose
from gemmule.lab.explain import arch_for
from gemmule.lab.explain.advice import Figures, advice
from gemmule.lab.explain.limits import ARITHMETIC, ISSUE, L1, L2, MATRIX, MEMORY, _arithmetic, busiest_share, waiting
from gemmule.lab.explain.named import _UNEXPLAINED, EXPLAINED, as_called, choice_named, problem_of
from gemmule.lab.explain.sample import _points, buffers, extents, resized, samples, spanned, tile_of
from gemmule.lab.products import gemm_problem
from pages.explained import measured_block

PLAIN = Figures(
    seconds=((ARITHMETIC, 1.0), (ISSUE, 0.9), (L1, 0.5), (MEMORY, 0.1)),
    ctas=1320, multiprocessors=132, multiply_adds=80, instructions=100, memory_bytes=10, least_bytes=10,
)  # fmt: skip


def slowest(unit, **changes):
    seconds = tuple((name, 2.0 if name == unit else spent) for name, spent in (*PLAIN.seconds, (L2, 0.2)))
    return dataclasses.replace(PLAIN, seconds=seconds, **changes)


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        (slowest(L1, global_passes=330, needed_passes=20), "Coalesce: requests to global memory touch 16.5 times"),
        (slowest(L1, global_passes=20, needed_passes=20), "Share what is loaded: 0.25 lines of L1"),
        (slowest(L1, shared_passes=100, conflicts=40, global_passes=4, needed_passes=4),
         "Remove the bank conflicts: 38%"),
        (slowest(L1, shared_passes=160, global_passes=4, needed_passes=4), "Keep more in registers: 2 wavefronts"),
        (slowest(L1, shared_passes=80, tensor_cores=True), "Keep more in registers: 1 wavefronts of shared memory for "
         "one matrix instruction; let each warp"),
        (slowest(L1, product=False, shared_passes=80), "Move more bytes with each instruction"),
        (slowest(L2), "Load less from L2"),
        (slowest(L2, product=False), "Load less from L2"),
        (slowest(MEMORY, memory_bytes=30), "Read less from device memory, which takes the longest: 3.0 times"),
        (slowest(MEMORY), "Nothing in the kernel"),
        (slowest(MEMORY, product=False, exposed_seconds=1.0, distance=4),
         "Keep more loads in flight: a thread uses a loaded value after 4"),
        (slowest(ISSUE, exposed_seconds=1.0, distance=7), "Hide the latency: a k-tile is used 7"),
        (slowest(ISSUE, multiply_adds=30), "Spend fewer instructions on what does not multiply, which is 70%"),
        (slowest(ISSUE, registers_between=True), "Take the copies out of the instruction stream: 80%"),
        (slowest(ISSUE, registers_between=True, asynchronous=True), "Little is left on these units: 80%"),
        (slowest(ISSUE, tensor_cores=True), "Give each instruction more to do"),
        (slowest(ISSUE, product=False), "Move more bytes with each instruction"),
        (PLAIN, "Little is left on these units"),
        (dataclasses.replace(PLAIN, ctas=16), "Give every SM work: 16 CTAs leave 116 of 132 "
         "SMs idle"),
        (dataclasses.replace(PLAIN, ctas=1), "Give every SM work: 1 CTA leaves 131 of 132"),
        (slowest(ARITHMETIC, tensor_cores=True), "Little is left: the tensor cores take the longest"),
        (slowest(ISSUE, exposed_seconds=1.0, distance=7, asynchronous=True), "Hide the latency: a load is "
         "waited for 7 instructions later"),
        (slowest(L1, shared_passes=160, registers=220), "Load less from shared memory: 2 wavefronts of shared memory "
         "for one multiply-add of a warp, and 220 of 255 registers per thread leave no room"),
        (slowest(L1, shared_passes=160, registers=128, spill_bytes=64), "Load less from shared memory: 2 wavefronts of "
         "shared memory for one multiply-add of a warp, and 64 bytes a thread already spill"),
        (slowest(ISSUE, multiply_adds=30, registers=220), "Spend fewer instructions on what does not multiply, which is"
         " 70% of them: wider loads and fewer addresses"),
        (slowest(L1, shared_passes=160, multiply_adds=0), "Keep more in registers: 160 (and no multiply-adds)"),
    ],
)  # fmt: skip
def test_the_sentence_follows_from_the_figures(figures, sentence):
    found = advice(figures)
    assert found.startswith(sentence)
    assert found.endswith(".")


def test_uneven_shares_come_second():
    """144 CTAs of 132 multiprocessors: what limits each of them comes first."""
    found = advice(slowest(L1, shared_passes=100, conflicts=40, ctas=144))
    assert found.startswith("Remove the bank conflicts")
    assert "12 of 132 SMs have 2 CTAs, the others 1; the launch takes as long as 2" in found
    assert "Besides" not in advice(slowest(L1, shared_passes=100, conflicts=40, ctas=264))


def test_no_second_buffer_where_copies_are_asynchronous():
    waits = slowest(ISSUE, exposed_seconds=1.0, distance=7)
    assert "two buffers" in advice(waits)
    assert "two buffers" not in advice(dataclasses.replace(waits, asynchronous=True))


def test_no_larger_rectangle_without_registers():
    assert "larger rectangle of the result, or" in advice(PLAIN)
    assert "give each thread" not in advice(dataclasses.replace(PLAIN, registers=220))


def test_conflicts_are_named_only_where_they_matter():
    few = slowest(L1, shared_passes=100, conflicts=5, worst_conflict="here.py:3")
    assert "here.py:3" not in advice(few)
    assert "here.py:3" in advice(dataclasses.replace(few, conflicts=50))


def test_a_little_waiting_is_no_reason():
    assert advice(slowest(ISSUE, exposed_seconds=0.1)).startswith("Little is left")


@given(
    st.integers(1, 5000), st.integers(1, 96), st.integers(0, 200), st.booleans(), st.integers(0, 9), st.integers(0, 9)
)
def test_points_stand_for_an_extent(extent, period, least, proportional, start, slope):
    """Anything linear in the whole periods, with a rest that may cost what it wants, is met exactly."""
    least = 0 if proportional else least
    points = _points(extent, period, least, proportional=proportional)
    assert all(point % period == extent % period and point >= min(extent, least) for point, _ in points)
    assert max(point for point, _ in points) <= extent

    def cost(length):
        whole, rest = divmod(length, period)
        # Where counts are proportional, nothing is done beside the periods and the rest.
        return slope * whole + (7 * rest + start if rest or not proportional else 0)

    assert sum(factor * cost(point) for point, factor in points) == cost(extent)


TILES = {
    "g01_naive_uncoalesced": (32, 32), "g02_naive_coalesced[1]": (16, 16), "g03_shared_tile": (32, 32),
    "g05_conflict_free": (128, 128), "g07_cp_async": (128, 256), "d02_b_in_registers": (16, 64),
    "gemm_reference": (64, 64),
    # A first tile that is shorter is not taken for the others.
    "transpose_gathered": (16, 32), "transpose_gathered[3]": (64, 16), "transpose_word_aligned": (32, 60),
    "transpose_word_aligned[4]": (32, 60), "transpose_tiled": (64, 64),
}  # fmt: skip


@pytest.mark.parametrize(("name", "tile"), TILES.items())
def test_the_tile_is_read_off_the_launch(name, tile):
    choice = choice_named(name)
    shape = "300,100" if name.startswith("transpose") else "1000,900,800"
    problem = problem_of(choice, Arch(9, 0, True), shape, None, None, None, None)
    assert tile_of(choice.spec, choice.config, problem)[:2] == tile


SIZES = [(8192, 8192, 8192), (4097, 5003, 6001), (8, 8, 8)]


@pytest.mark.parametrize("spec", [spec for spec in EXPLAINED if spec.next_kernel is None], ids=lambda spec: spec.name)
@pytest.mark.parametrize(
    ("size", "some"),
    [
        # Each config is looked at in one size, the default one in all.
        *((size, slice(first, None, len(SIZES))) for first, size in enumerate(SIZES)),
        *(
            pytest.param(size, slice(None), marks=pytest.mark.slow)
            for size in (*SIZES, (70001, 64, 33), (5008, 5008, 64))
        ),
    ],
    ids=str,
)
def test_samples_are_small_and_alike(spec, size, some):
    """Every sample is compiled as the whole is, and its factors add up to one launch or to whole tiles of it."""
    shape = ",".join(map(str, size[: 3 if spec.operation == "gemm" else 2]))
    is_hopper = all(arch.specific for arch in spec.archs)
    for config in dict.fromkeys((spec.default, *spec.configs[some])):
        choice = dataclasses.replace(choice_named(spec.name), config=config)
        problem = problem_of(choice, Arch(9, 0, True), shape, None, None, None, None)
        if spec.why_not(problem, Arch(9, 0, True), config) is not None:
            continue
        whole = extents(problem)
        found = samples(spec, config, problem)
        # Of pairs of tiles, too: what is of the second degree is met.
        assert sum(sample.weight * math.prod(extents(sample.problem)) for sample in found) == math.prod(whole)
        for sample in found:
            assert choice.signature(sample.problem) == choice.signature(problem)
            assert all(small <= large for small, large in zip(extents(sample.problem), whole, strict=True))
            # A product of tensor cores is many multiply-adds in one step.
            most = 4 << 30 if is_hopper or spec.name.startswith("mma_sync") else 1 << 27
            assert math.prod(extents(sample.problem)) < most
            # Memory is that of the problem, whatever the config.
            for name, array in buffers(sample.problem, 0).items() if config is spec.default else ():
                assert len(array) == spanned(sample.problem.operands()[name])


@pytest.mark.parametrize("name", _UNEXPLAINED)
def test_what_cannot_be_explained_names_what_can(name):
    with pytest.raises(UnsupportedError, match=f"^{name} cannot be explained: .*; explain (\\w+) instead") as refused:
        choice_named(name)
    instead = str(refused.value).rpartition("; explain ")[2].removesuffix(" instead")
    assert choice_named(instead).spec in EXPLAINED


def test_rows_keep_their_place_in_a_line():
    problem = gemm_problem(3000, 2001, 1003, "float32", "float32", "tn")
    small = resized(problem, (40, 17, 35))
    assert (small.m, small.n, small.k) == (40, 17, 35)
    assert small.a.col_stride % 32 == problem.a.col_stride % 32
    assert small.a.col_stride < 120
    assert small.b.row_stride % 32 == problem.b.row_stride % 32
    assert small.d.row_stride >= 17


def test_rows_that_are_short_already_stay():
    problem = gemm_problem(3000, 3, 20, "float32", "float32", "nn")
    assert resized(problem, (40, 3, 20)).b.row_stride == 3


def test_work_of_the_busiest_multiprocessor():
    assert busiest_share(132, 132) == 1 / 132
    assert busiest_share(133, 132) == 2 / 133
    assert busiest_share(1, 132) == 1


def test_waiting_that_others_hide():
    """Four warps share a scheduler: 100 instructions of each are 400 cycles, and 600 are assumed."""
    h100 = chip_named("h100")
    found = waiting([(1, [100] * 10)], h100, 264, 2, 8)
    assert (found.rounds, found.distance, found.hidden_cycles) == (10, 100, 400)
    assert found.exposed_seconds == pytest.approx(10 * 200 / 1.98e9)
    assert waiting([(1, [150] * 10)], h100, 264, 2, 8).exposed_seconds == 0
    # Two turns of the multiprocessors; and of two samples the difference.
    assert waiting([(1, [100])], h100, 265, 2, 8).exposed_seconds == pytest.approx(2 * 200 / 1.98e9)
    assert waiting([(-2, [100] * 3), (3, [100] * 5)], h100, 264, 2, 8).rounds == 9
    assert waiting([(1, [])], h100, 264, 2, 8) is None


def test_the_architecture_of_old_and_new_chips():
    assert arch_for(chip_named("h100")) == (Arch(9, 0, True), "")
    assert arch_for(chip_named("rtx 4090"))[0] == Arch(8, 9)
    arch, note = arch_for(chip_named("v100"))
    assert arch == Arch(8, 0)
    assert "compute capability 7.0, and kernels are compiled for sm_80 and newer" in note


def test_explanations_beside_counters():
    """One row a kernel; the ratio is explained over measured."""
    record = {"record": "counts", "kernel": "g04_register_tile", "config": {"tile_k": 8}, "dtype": "float32",
              "shape": [64, 64, 64]}  # fmt: skip
    records = [
        {"record": "experiment"},
        record | {"counter": "dram__bytes_read.sum", "hardware": 400.0, "virtual": 100.0},
        record | {"counter": "lts__t_sectors_op_read.sum", "hardware": 10.0, "virtual": 20.0},
        record | {"counter": "sm__maximum_warps_per_active_cycle_pct", "hardware": 25.0, "virtual": 25.0},
        record | {"counter": "sm__warps_active.avg.pct_of_peak_sustained_active", "hardware": 20.0},
        record | {"counter": "smsp__sass_thread_inst_executed_op_dfma_pred_on.sum", "hardware": 0.0, "virtual": 0},
        record | {"counter": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "hardware": 0.0, "virtual": 7},
    ]
    first, second, third, between = measured_block(records).split("\n\n")
    assert first.splitlines()[-1] == "| g04_register_tile |  |  | none |  | 25.0 % / 20.0 % = 1.25 |"
    assert second.splitlines()[-1] == "| g04_register_tile |  |  |  | 7 / 0 |"
    assert third.splitlines()[-1] == "| g04_register_tile | 640 / 320 = 2.00 |  |  |"
    assert between.splitlines()[-1] == "| g04_register_tile | 100 | 400 |  |  |"


def run(*arguments):
    return CliRunner().invoke(gemmule, ["explain", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["g04", "--shape", "1,1,1"], "kernel 'g04' is not known; did you mean g04_register_tile"),
        (["g04_register_tile[7]", "--shape", "1,1,1"], "g04_register_tile has no config [7]; give 0 (it has one)"),
        (["g05_conflict_free", "--config", "tile_k=3", "--shape", "1,1,1"],
         "g05_conflict_free has no config [tile_k=3]; tile_k is one of 8, 16; `gemmule info"),
        (["g05_conflict_free[*]", "--shape", "1,1,1"],
         "names 2 configs; give one by its number, e.g. [0], [1]; `gemmule info"),
        (["g04_register_tile", "--shape", "64,64"], "--shape '64,64' is not M,N,K in whole numbers from 1"),
        (["g04_register_tile", "--shape", "64,0,64"], "--shape '64,0,64' is not M,N,K"),
        (["transpose_reference", "--shape", "8,8,8,8"], "is not [BATCH,]M,N in whole numbers from 1; transpose_refe"),
        (["transpose_in_place", "--shape", "8,8,8"], "is not M,N in whole numbers from 1; transpose_in_place takes one"
         " such as 4096,4096"),
        (["transpose_reference", "--shape", "8,8", "--layout", "nt"], "--layout and --precision are for products"),
        (["transpose_reference", "--shape", "8,8", "--dtype", "float12"], "got 'float12'"),
        (["g04_register_tile", "--shape", "64,64,64", "--chip", "h1000"], "chip 'h1000' is not in the table; did you"),
        (["g04_register_tile", "--shape", "64,64,64", "--chip", "b300"], "did you mean B200? Else choose one of B200,"),
        (["g04_register_tile", "--shape", "64,64,64", "--dtype", "float16"], "cannot take this problem: A is float16"),
        (["g04_register_tile", "--shape", "64,64,64", "--layout", "tn"], "cannot take this problem: A has strides"),
        (["g04_register_tile", "--shape", "64,64,64", "--layout", "tt"], "or explain simt_gemm, which calls take"),
        (["mma_sync_gemm[0]", "--shape", "777,1001,333"], "explain 'mma_sync_gemm[4]', which takes it (tile_m=128"),
        (["hopper_gemm", "--shape", "4095,4095,4095"], "or explain hopper_gemm_repacked, which calls take for it"),
        (["hopper_gemm_small_repacked", "--shape", "5480,56,4288"], "take this problem: B has lines 56 elements"),
        (["mma_sync_gemm", "--dtype", "float64", "--shape", "4096,4096,4096"], "or explain float64_gemm,"),
        (["h03_stages", "--shape", "64,64,64", "--chip", "a100"], "give a --chip of sm_90a (this one is sm_80)"),
        (["hopper_gemm", "--shape", "64,64,64", "--chip", "a100"], "an instruction of sm_90a, which sm_80 lacks"),
        (["float64_gemm[0]", "--shape", "64,64,64", "--chip", "v100"], "sm_80 has float64 products of 8 x 8 x 4 only"),
        (["simt_grouped", "--shape", "64,64,64"], "depends on the groups' ends, which are data; explain simt_gemm"),
        (["transpose_blocks", "--shape", "4,5,6,7"], "three axes or more, for which gm.transpose.plan predicts a time"),
        (["hopper_grouped[0]", "--shape", "64,64,64"], "hopper_grouped cannot be explained: what kernels of grouped"),
        (["h03_stages[stages=2]", "--config", "stages=3", "--shape", "64,64,64"], "both name a config; give one"),
        (["g04_register_tile", "--shape", "64,64,64", "--dtype", "float"], "dtype 'float' is not known; did you mean"),
        (["g04_register_tile", "--shape", "64,64,64", "--precision", "half"], "half is not known; choose one of"),
    ],
)  # fmt: skip
def test_refusals_are_one_line(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize("value", ["0", "-3", "nan", "inf"])
def test_a_bandwidth_is_positive(value):
    result = run("g04_register_tile", "--shape", "64,64,64", "--bandwidth", value)
    assert result.exit_code == 2
    assert "is not a bandwidth in GB/s; give a number above 0" in " ".join(result.stderr.split())


def test_the_reason_is_that_of_the_type_that_a_kernel_takes():
    """float16 with rows that begin anywhere, not float32, which it never takes."""
    choice = choice_named("mma_sync_gemm")
    assert problem_of(choice, Arch(9, 0, True), "389,387,487", None, None, None, None).a.dtype.name == "float16"


@pytest.mark.parametrize(
    ("name", "shape", "dtype"), [("hopper_gemm", "256,4096,4096", "bfloat16"), ("simt_gemm", "777,100,5000", "float32")]
)
def test_the_config_is_that_of_a_call(name, shape, dtype):
    choice, arch, chip = choice_named(name), Arch(9, 0, True), chip_named("h100")
    problem = problem_of(choice, arch, shape, dtype, None, "nn", None)
    found = as_called(choice, problem, arch, chip)
    plan = choose(problem, arch, multiprocessors=132, chip=chip.driver_name)
    assert (found.spec.name, found.config) == (plan.spec.name, plan.config) != (name, choice.config)
    rung = choice_named("g05_conflict_free")
    assert as_called(rung, problem_of(rung, arch, shape, "float32", None, "nn", None), arch, chip) is rung
    other = choice_named("complex64_gemm")
    assert as_called(other, problem, arch, chip) is other


def test_configs_whose_ctas_share_tiles_have_the_next_best_one_explained():
    choice, arch, chip = choice_named("float64_gemm"), Arch(9, 0, True), chip_named("h100")
    problem = problem_of(choice, arch, "96,96,4096", None, None, "nn", None)
    called = choose(problem, arch, multiprocessors=132, chip=chip.driver_name).config
    found = as_called(choice, problem, arch, chip)
    assert called.stream_k == 1
    assert found.config.stream_k == 0
    assert found.source == f"a call takes {called}"


def test_help_has_an_example():
    result = run("--help")
    assert "gemmule explain g04_register_tile --shape 4096,4096,4096 --chip h100" in result.stdout
    assert result.exit_code == 0


def test_the_first_type_and_layout_that_a_kernel_takes():
    def taken(name, *rest):
        choice = choice_named(name)
        problem = problem_of(choice, Arch(9, 0, True), "64,64,64", *(rest or (None,) * 4))
        return problem.a.dtype.name, problem.d.dtype.name, problem.layout

    assert taken("g04_register_tile") == ("float32", "float32", "nn")
    assert taken("d01_shared_ab") == ("float64", "float64", "nn")
    assert taken("gemm_reference", "int8", None, "tn", None) == ("int8", "int32", "tn")
    with pytest.raises(ArgumentError, match="dtype 'int4' is not known"):
        taken("gemm_reference", "int4", None, None, None)


def test_tensor_cores_and_other_units_work_at_the_same_time():
    problem, chip = gemm_problem(512, 512, 512, "bfloat16", "bfloat16", "nn"), chip_named("H200")

    def seconds(**operations):
        kinds = {"matrix": MATRIX, "fma": "fma f32", "add": "add f32"}
        totals = SimpleNamespace(operations_by_class={kinds[name]: flop for name, flop in operations.items()})
        return _arithmetic(problem, totals, chip, 1.0).seconds

    matrix, fma = seconds(matrix=10**12), seconds(fma=10**12)
    assert matrix < fma
    assert seconds(matrix=10**12, fma=10**9) == matrix
    assert seconds(matrix=10**12, fma=10**12) == fma
    # Additions take places of multiply-adds in the same units.
    assert seconds(fma=10**12, add=10**12) == pytest.approx(3 * fma)
