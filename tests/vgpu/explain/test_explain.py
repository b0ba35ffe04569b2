"""Kernels explained: the published analyses, the ladder, every kernel and every chip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gemmule.cli import gemmule
from gemmule.commands.explain import Rates
from gemmule.core.arch import Arch
from gemmule.core.chips import CHIPS, chip_named
from gemmule.lab.explain import page
from gemmule.lab.explain.named import EXPLAINED
from support.vgpu.explanations import explained

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

H100 = chip_named("h100")
SPECS = {spec.name: spec for spec in EXPLAINED}
HOPPER = Arch(9, 0, True)


def run(*arguments):
    return CliRunner().invoke(gemmule, ["explain", *arguments])


def test_the_published_analysis_of_the_naive_kernel():
    """M = N = K = 512 on a V100 whose memory was measured at 763 GB/s: 64 operations for 5 transactions."""
    result = run(
        "g02_naive_coalesced",
        "--shape",
        "512,512,512",
        "--chip",
        "Tesla V100-PCIE-32GB",
        "--bandwidth",
        "763",
        "--json",
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["sectors_per_warp_step"] == 5
    assert (found["transaction_bytes"], found["flop_per_byte"]) == (4, 3.2)
    assert found["bound_gflops"] == pytest.approx(2442, abs=1)
    # What the hardware moves: 32 bytes a transaction, most of them from L1.
    assert found["bytes_by_level"]["L1"]["flop_per_byte"] == pytest.approx(0.4, rel=0.01)
    assert found["bytes_by_level"]["L2"]["flop_per_byte"] == pytest.approx(8, rel=0.05)
    assert found["shared_memory_bytes"] == 0


@pytest.mark.parametrize(
    ("kernel", "shared"),
    [
        ("g04_register_tile", 8192),
        # Compiled for this chip too, to the same figures.
        pytest.param("g05_conflict_free", 8192, marks=pytest.mark.slow),
        ("g06_double_buffer", 16384),
    ],
)
def test_the_published_analysis_of_tiles(kernel, shared):
    found = explained(kernel, "512,512,512", "v100").as_json()
    assert found["shared_memory_bytes"] == shared
    assert found["flop_per_byte"] == 32
    # 15.7 TFLOP/s take 490 GB/s: memory no longer limits.
    assert found["bound_gflops"] == pytest.approx(15700)
    assert found["occupancy"] == 0.25


def test_conflicts_of_v1_are_gone_in_v2_and_its_store_has_its_own():
    def conflicts(kernel, kind):
        return sum(line.conflicts for line in explained(kernel).totals.by_line if line.kind == kind)

    v1, v2 = explained("g04_register_tile").as_json(), explained("g05_conflict_free").as_json()
    assert v1["load_bank_conflicts"] == conflicts("g04_register_tile", "load shared") > 0
    assert v1["store_bank_conflicts"] == 0
    assert v2["load_bank_conflicts"] == 0
    assert v2["store_bank_conflicts"] == conflicts("g05_conflict_free", "store shared") > 0
    # Half of the banks answer to a row of B; A is read without conflicts.
    inner = [line for line in explained("g04_register_tile").totals.by_line if line.conflicts]
    assert [(line.kind, line.code, line.wavefronts) for line in inner] == [
        ("load shared", "rB[j] = sB[k, self.col(j)]", 2 * inner[0].ideal_wavefronts)
    ]
    text = page(explained("g05_conflict_free"))
    assert f"0 wavefronts of loads, {v2['store_bank_conflicts']:,} of stores" in text


@pytest.mark.parametrize(
    ("kernel", "first", "unit"),
    [
        ("g01_naive_uncoalesced", "Coalesce", "L1 and shared memory"),
        ("g02_naive_coalesced", "Share what is loaded", "L1 and shared memory"),
        ("g03_shared_tile", "Keep more in registers", "L1 and shared memory"),
        ("g04_register_tile", "Remove the bank conflicts", "L1 and shared memory"),
        ("g05_conflict_free", "Hide the latency", "instruction issue"),
        ("g06_double_buffer", "Take the copies out of the instruction stream", "instruction issue"),
        ("g07_cp_async", "Little is left on these units", "instruction issue"),
    ],
)
def test_each_rung_is_told_of_the_next(kernel, first, unit):
    found = explained(kernel)
    assert found.next.startswith(first)
    assert found.limits[0].unit == unit


@pytest.mark.parametrize(
    ("kernel", "first"),
    [
        ("t02_copy_col", "Coalesce"),
        ("t03_naive_row", "Coalesce"),
        ("t09_shared_tile", "Remove the bank conflicts"),
        ("t10_padded", "Keep more loads in flight"),
        ("transpose_tiled", "Nothing in the kernel"),
    ],
)
def test_each_transpose_is_told_of_the_next(kernel, first):
    assert explained(kernel, "8192,8192").next.startswith(first)


def test_rungs_climb():
    rates = [explained(name).as_json()["latency"]["gflops_if_all_wait"] for name in (
        "g01_naive_uncoalesced", "g02_naive_coalesced", "g03_shared_tile", "g04_register_tile", "g05_conflict_free",
        "g06_double_buffer", "g07_cp_async",
    )]  # fmt: skip
    assert rates == sorted(rates)


def test_work_for_few_multiprocessors():
    assert explained("g04_register_tile", "512,512,512").next.startswith("Give every SM work: 16 CTAs")


COMPILED_LONGEST = (
    "mma_sync_gemm",
    "g05_conflict_free",
    "g06_double_buffer",
    "g07_cp_async",
    "d02_b_in_registers",
    "simt_gemm",
    "float64_gemm",
)


#: Steps between the first and last of Hopper's ladder take longest; d01 and complex128 show what d02 and complex64 do,
#: and samples of simt_batched are explained in another test.
LONG = (
    "d02_b_in_registers",
    "complex64_gemm",
    "simt_batched",
    "h03_stages",
    "h04_warp_specialised",
    "h05_persistent",
    "h06_cluster_multicast",
    "h07_tma_store",
)
#: Steps whose pages other tests read, of a large product.
TOLD = tuple(spec.name for spec in EXPLAINED if spec.name[0] == "g" and spec.name[1].isdigit())
EVERY = [
    pytest.param(spec, id=spec.name, marks=[pytest.mark.slow] if spec.name in (*LONG, *TOLD) else [])
    for spec in EXPLAINED
]


@pytest.mark.parametrize("spec", EVERY)
def test_every_kernel_is_explained(spec):
    # Unaligned rows, or short ones, for the kernels that take no others.
    shapes = dict.fromkeys(("transpose_whole_sectors", "transpose_whole_matrices"), "101,67") | {
        "transpose_skinny": "500,7"
    }
    transposed = "100,100" if spec.in_place else shapes.get(spec.name, "100,68")
    # Pitches of whole 16 bytes, or none of them for what packs operands first.
    product = "104,72,96" if all(arch.specific for arch in spec.archs) and spec.next_kernel is None else "100,70,90"
    # Compiled longest, and for whole tiles by other tests too; small ragged problems of g04 are counted as large ones.
    product = "128,256,128" if spec.name in COMPILED_LONGEST else product
    shape = product if spec.operation == "gemm" else transposed
    options = {"precision": "bf16x6"} if spec.name == "bf16x6_gemm" else {}
    # Hopper has a conversion kernel of its own.
    chip = "rtx-4090" if spec.name == "gemm_upcast" else "h100"
    found = explained(spec.name, shape, chip, **options)
    data = json.loads(json.dumps(found.as_json(), allow_nan=False))
    for key in (
        "kernel", "config", "shape", "dtype", "chip", "arch", "shared_memory_bytes", "registers", "occupancy",
        "occupancy_limit", "sectors_per_warp_step", "load_bank_conflicts", "store_bank_conflicts", "flop_per_byte",
        "bound_gflops", "bytes_by_level", "instruction_mix", "by_line", "next",
    ):  # fmt: skip
        assert key in data
    sides = [int(side) for side in shape.split(",")]
    # Six products of parts of float32 stand side by side along K.
    assert data["shape"][:2] == sides[:2] if options else data["shape"] == sides
    assert sum(kind["share"] for kind in data["instruction_mix"].values()) == pytest.approx(1)
    text = page(found)
    assert max(map(len, text.splitlines())) <= 100
    assert text.splitlines()[-1].endswith(".")
    assert all(line == line.rstrip() for line in text.splitlines())


@pytest.mark.combinations(1)
@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
@pytest.mark.parametrize("kernel", ["g03_shared_tile", "transpose_reference"])
def test_every_chip(kernel, chip):
    found = explained(kernel, "130,70,40" if kernel[0] == "g" else "130,70", chip.name)
    data = found.as_json()
    assert (data["arch_note"] is None) == (chip.capability >= (8, 0))
    if found.occupancy.reason is not None:
        assert chip.capability < (8, 0)
        assert data["limits"] == []
        assert data["why_not_launched"] in found.next
    else:
        assert data["limits"][0]["seconds"] == max(limit["seconds"] for limit in data["limits"])
        units = {limit["unit"] for limit in data["limits"]}
        assert ("instruction issue" in units) == (chip.boost_hz is not None)
        # Without the time of every unit, nobody knows which takes the longest.
        assert (data["missing"] == []) == (chip.boost_hz is not None)
        assert (data["next"] is None) == (data["limited_by"] is None) == (chip.boost_hz is None)
        rate = data["attainable_gflops" if kernel[0] == "g" else "attainable_gbps"]
        assert (rate is None) == (chip.boost_hz is None)
        assert ("At most" in page(found)) == ("of longest" in page(found)) == (chip.boost_hz is not None)
    assert max(map(len, page(found).splitlines())) <= 100


def test_the_page_in_the_documentation_is_this_one():
    text = (Path(__file__).parents[3] / "docs" / "explain.md").read_text()
    shown = text.split("```\n")[2].strip().split("\n\n")
    assert len(shown) == 6
    found = page(explained("g04_register_tile")).split("\n\n")
    assert [part for part in shown if part not in found] == []


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_verdict_comes_first_and_lines_fit(width):
    lines = page(explained("g04_register_tile"), width).splitlines()
    verdict = (
        "g04_register_tile, 4096 x 4096 x 4096, H100 SXM 80 GB: at most 44.12 TFLOP/s, 65.9% of the peak of the fp32"
    )
    assert " ".join(lines[:2]).startswith(verdict)
    assert max(map(len, lines)) <= width


def test_an_old_chip_says_so_and_counts_with_its_own_figures():
    old, new = explained("g04_register_tile", "512,512,512", "v100"), explained("g04_register_tile", "512,512,512")
    assert old.as_json()["arch"] == "sm_80"
    assert "compute capability 7.0, and kernels are compiled for sm_80" in " ".join(page(old).split())
    assert old.bandwidth == 900e9
    assert old.peak == 15.7e12
    assert "compute capability" not in page(new)


def test_a_chip_that_cannot_launch_it_has_no_bound():
    data = explained("g06_double_buffer", "512,512,512", "gtx 260").as_json()
    assert data["occupancy"] == 0
    assert data["bound_gflops"] is data["attainable_gflops"] is data["peak_gflops"] is data["latency"] is None
    assert data["next"].startswith("Make it fit")


def test_integers_are_multiplied_and_added():
    """2 M N K operations, and few for addresses; the peak is that of 32-bit integers, not of tensor cores."""
    found = explained("gemm_reference", "256,256,256", dtype="int8")
    data = found.as_json()
    assert data["operations"] <= data["operations_counted"] < 1.02 * data["operations"]
    assert data["instruction_mix"]["mad s32"]["threads"] == data["operations_counted"] / 2
    assert data["multiply_add_share"] == pytest.approx(data["instruction_mix"]["mad s32"]["share"])
    assert (data["peak_gflops"], data["peak_unit"]) == (33500.0, "int32 units")
    assert data["missing"] == []
    assert explained("gemm_reference", "256,256,256", "b200", dtype="int8").as_json()["missing"][-1] == (
        "the table has no peak of B200 for multiply-adds of 32-bit integers, so arithmetic is left out"
    )


def test_tensor_cores_of_another_type_are_no_substitute():
    without_clusters = (config for config in SPECS["mma_sync_gemm"].configs if config.cluster_k == 1)
    config = min(without_clusters, key=lambda config: config.tile_elements)
    kernel = f"mma_sync_gemm[{SPECS['mma_sync_gemm'].configs.index(config)}]"
    found = explained(kernel, "256,256,256", "v100", dtype="bfloat16").as_json()
    assert found["missing"] == ["V100 SXM2 32 GB has no tensor cores for bfloat16, so arithmetic is left out"]
    assert "arithmetic" not in {limit["unit"] for limit in found["limits"]}
    assert found["peak_gflops"] is found["next"] is None
    half = explained(kernel, "256,256,256", "v100", dtype="float16").as_json()
    assert (half["missing"], half["peak_unit"], half["peak_gflops"]) == ([], "fp16 tensor cores", 125000)


def test_the_busiest_multiprocessor_counts():
    """144 CTAs on 132 multiprocessors: 12 of them have two."""
    found = explained("g04_register_tile", "1536,1536,1536")
    factors = {limit["unit"]: limit["uneven"] for limit in found.as_json()["limits"]}
    assert factors.pop("device memory") == 1
    assert set(factors.values()) == {2 * 132 / 144}
    text = " ".join(page(found).split())
    assert "x 1.833: the busiest SM has 2 CTAs, of 1.091 on average" in text
    assert found.next.startswith("Remove the bank conflicts")
    # 132 CTAs: nothing to say.
    assert "busiest" not in page(explained("g04_register_tile", "1536,1408,32"))


def test_which_of_the_bounds_holds():
    text = " ".join(page(explained("g04_register_tile")).split())
    assert "This is no estimate." in text
    assert "for comparison, it is no bound of this kernel" in text
    assert "137.4 GFLOP by formula, 2 M N K; 137.5 GFLOP counted" in text


def test_small_rates_have_a_small_unit():
    text = page(explained("g04_register_tile", "1,1,1"))
    most, unit = text.split("At most ")[1].split()[:2]
    assert 1 <= float(most) < 1000
    assert unit.startswith("MFLOP/s")
    assert "1 CTA of 256 threads" in text
    assert "1 CTAs" not in text


@pytest.mark.parametrize(("kernel", "word"), [("transpose_tiled", "transposed"), ("t02_copy_col", "copied")])
@pytest.mark.parametrize("shape", ["1,1", "64,1", "64,128"])
def test_a_transpose_of_one_row_is_no_copy(kernel, word, shape):
    assert f"4 bytes an element, {word}, on" in page(explained(kernel, shape))


def test_loads_behind_the_loop_are_waited_for_too():
    """Loops of g01 take eight steps at a time, and the rest one by one."""
    rounds = [explained("g01_naive_uncoalesced", f"64,64,{k}").waiting.rounds for k in (9, 17, 33)]
    assert rounds == [2, 3, 5]


def test_a_transpose():
    found = explained("transpose_reference", "8192,8192")
    data = found.as_json()
    assert data["sectors_per_request"] == {"load": 4, "store": 4}
    assert data["bytes_by_level"]["device memory"]["bytes"] == 2 * 8192**2 * 4
    assert (data["operations"], data["flop_per_byte"], data["bound_gflops"], data["layout"]) == (0, None, None, None)
    assert data["attainable_gbps"] <= 3350
    assert data["load_bank_conflicts"] == data["store_bank_conflicts"] == 0


def test_the_l2_cache_limits_where_its_bandwidth_is_given():
    data = explained("g01_naive_uncoalesced", "512,512,512", rates=Rates(l2_bandwidth=1.0)).as_json()
    assert data["limited_by"] == "L2"
    assert "larger tiles of the result" in data["next"]
    without = explained("g01_naive_uncoalesced", "512,512,512").as_json()
    assert "L2" not in {limit["unit"] for limit in without["limits"]}
