"""Epilogue tiles of C that are loaded ahead, on the virtual GPU, all checks on."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT16, FLOAT32, INT8, INT32
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.vgpu import Options, VirtualGpuError, launch
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.ptx.parser import parse
from support.epilogue_cases import CASES
from support.oracle import assert_product, poisoned, random_matrix
from support.ptx.hopper import SCHEDULES
from support.vgpu.epilogues import finish
from support.vgpu.hopper_products import check_product
from support.vgpu.kernel_products import laid_out, problem_of
from support.vgpu.kernels_left import leave_kernels
from support.vgpu.mutations import first_finding_is_enough, synchronisation

__all__ = ["first_finding_is_enough"]

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SLOW = [pytest.mark.slow]
#: All of C in shared memory, in one batch; several work tiles a CTA.
WHOLE = HopperGemmConfig(tile_m=64, tile_n=88, stages=4, pingpong=1, cluster_m=1, swap_ab=1, ctas=1)
#: Results of 32 bits: 9 epilogue tiles in 5 stages.
AGAIN = HopperGemmConfig(tile_m=64, tile_n=72, stages=12, pingpong=1, cluster_m=1, ctas=1)
#: All of C in shared memory, in four batches, of which each has a named barrier.
HELD = HopperGemmConfig(tile_m=128, tile_n=128, stages=5, pingpong=1, cluster_m=1, cluster_n=2, ctas=2)
#: 10 epilogue tiles in 5 stages, and 29 of 8 columns in 23, in three batches: some stages are filled once more.
WIDE = HopperGemmConfig(tile_m=128, tile_n=160, stages=5, pingpong=1, cluster_m=1, ctas=1)
NARROW = HopperGemmConfig(tile_m=128, tile_n=232, stages=4, cluster_m=1, ctas=1)
#: Columns of D, and a part of them in each CTA of a cluster, or what is added to parts of K.
COLUMNS = HopperGemmConfig(tile_m=128, tile_n=168, stages=5, pingpong=1, cluster_m=1, cluster_n=2, swap_ab=1, ctas=2)
TALL = HopperGemmConfig(tile_m=256, tile_n=112, stages=4, cluster_m=2, swap_ab=1, ctas=2)
SHARED_K = HopperGemmConfig(tile_m=128, tile_n=96, stages=4, pingpong=1, cluster_m=1, cluster_k=2, ctas=2)
SPLIT_K = HopperGemmConfig(tile_m=128, tile_n=104, stages=4, cluster_m=1, split_k=1, ctas=4)
#: An epilogue tile of 56 columns, without a swizzle.
ODD = HopperGemmConfig(tile_m=128, tile_n=168, stages=5, pingpong=1, cluster_m=2, ctas=2)
#: Loaded during the mainloop, if K is long enough: 8 epilogue tiles of 32 bits in 4 stages.
DURING = HopperGemmConfig(tile_m=128, tile_n=128, stages=5, pingpong=1, cluster_m=1, ctas=1)
CONFIGS = [
    WHOLE,
    HELD,
    ODD,
    NARROW,
    COLUMNS,
    *(pytest.param(one, marks=SLOW) for one in (WIDE, TALL, SHARED_K, SPLIT_K)),
]


def stages_and_tiles(config, itemsize):
    stages, _ = config.epi_batches(itemsize, reads_c=True)
    return stages, config.mma_tiles_m * config.mma_n // (config.cluster_k * config.epi_tile_n(itemsize))


def test_the_configs_fill_stages_as_they_say():
    assert stages_and_tiles(WHOLE, 2) == (11, 11)
    assert WHOLE.epi_batches(2, reads_c=True)[1] == 1
    assert (*stages_and_tiles(HELD, 2), HELD.epi_batches(2, reads_c=True)[1]) == (4, 4, 4)
    assert stages_and_tiles(WIDE, 2) == (5, 10)
    assert stages_and_tiles(NARROW, 2) == (23, 29)
    assert stages_and_tiles(AGAIN, 4) == (5, 9)
    assert NARROW.epi_batches(2, reads_c=True)[1] == 3


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("out", [BFLOAT16, pytest.param(FLOAT32, marks=SLOW)], ids=str)
def test_results(config, out, rng):
    # Of eight k-tiles C is loaded at once, of more behind the first.
    for k in (200, 584) if config == WHOLE else (200,):
        check_product(config, (136, 264, k), rng, BFLOAT16, out, adds=True)


def test_the_last_of_several_parts_of_k_adds_c(rng):
    check_product(SPLIT_K, (72, 88, 520), rng, adds=True)


@pytest.mark.parametrize(
    ("config", "k"),
    [
        (ODD, 1000),
        *(pytest.param(one, 840, marks=SLOW) for one in (WIDE, NARROW, COLUMNS)),
    ],
    ids=str,
)
def test_c_is_loaded_during_the_mainloop(config, k, rng):
    check_product(config, (136, config.tile_n + 16, k), rng, adds=True)


@pytest.mark.parametrize("out", [BFLOAT16, FLOAT8_E4M3], ids=str)
def test_rows_of_16_bytes_are_no_epilogue_tiles(out, rng):
    config = ODD if out == BFLOAT16 else dataclasses.replace(ODD, tile_n=144, stages=6)
    assert config.epi_tile_n(out.itemsize) == (56 if out == BFLOAT16 else 48)
    check_product(config, (136, 352, 200), rng, BFLOAT16, out)


def test_a_batch(rng):
    check_product(WHOLE, (72, 88, 72), rng, FLOAT16, FLOAT16, batch=(3,), adds=True)


def test_integers_are_exact(rng):
    a, b = random_matrix(rng, INT8, (72, 144)), laid_out(random_matrix(rng, INT8, (144, 72)), "col")
    c, out = random_matrix(rng, INT32, (72, 72)), poisoned(INT32, (72, 72))
    problem = problem_of(a, b, out, c, 3, -2)
    arrays = {"a": a, "b": b, "c": c, "d": out}
    config = dataclasses.replace(WHOLE, tile_n=48)
    artifact = artifact_for(SPEC, config, SPEC.signature(problem, config), virtual_arch())
    launch(artifact.ptx, SPEC.launch(problem, config), arrays, options=Options(checks=True))
    assert_product(out, a, b, c, 3, -2)


@pytest.mark.parametrize(
    "config", [NARROW, pytest.param(COLUMNS, marks=SLOW), pytest.param(SPLIT_K, marks=SLOW)], ids=str
)
@pytest.mark.parametrize("name", ["named_c", *(pytest.param(x, marks=SLOW) for x in ("two_matrices", "row_bias_silu"))])
def test_an_epilogue(config, name, monkeypatch, rng):
    leave_kernels(monkeypatch, (dataclasses.replace(SPEC, configs=(config,)),))
    finish(CASES[name], rng, shape=(136, 264, 136))


@pytest.mark.parametrize(
    ("config", "out", "shapes"),
    [
        # A stage is filled again two batches later, or one.
        (AGAIN, FLOAT32, [(64, 152, 64)]),
        pytest.param(NARROW, BFLOAT16, [(72, 304, 136), (136, 304, 1000)], marks=SLOW),
        pytest.param(HELD, BFLOAT16, [(264, 392, 136)], marks=SLOW),
        pytest.param(DURING, FLOAT32, [(72, 304, 136), (136, 200, 792)], marks=SLOW),
    ],
    ids=str,
)
def test_every_wait_for_c_is_missed(config, out, shapes, rng):
    """A load of C without its wait for stores, an epilogue tile without its wait for C."""
    # Before the mainloop, and during it.
    found = set.intersection(*(_unseen(config, out, shape, rng) for shape in shapes))
    assert not found, "\n".join(found)


def _unseen(config, out, shape, rng):
    """Return the waits and arrivals that no schedule finds to be missed."""
    a, c = random_matrix(rng, BFLOAT16, shape[::2]), random_matrix(rng, out, shape[:2])
    b = laid_out(random_matrix(rng, BFLOAT16, (shape[2], shape[1])), "col")
    problem = problem_of(a, b, poisoned(out, shape[:2]), c, 0.75, -1.5)
    ptx = artifact_for(SPEC, config, SPEC.signature(problem, config), virtual_arch()).ptx
    recipe, lines = SPEC.launch(problem, config), ptx.split("\n")

    def is_found(instruction, schedule):
        text = list(lines)
        if instruction is not None:
            waits = "try_wait" in instruction.modifiers
            target = str(instruction.operands[0]).split("#")[0] if waits else ""
            text[instruction.line - 1] = f"setp.eq.u32 {target}, 0, 0;" if waits else "membar.cta;"
        d = poisoned(out, shape[:2])
        try:
            launch(
                "\n".join(text), recipe, {"a": a, "b": b, "c": c, "d": d},
                options=Options(checks=True, schedule=schedule),
            )  # fmt: skip
        except VirtualGpuError:
            return True
        assert_product(d, a, b, c, 0.75, -1.5)
        return False

    assert not any(is_found(None, schedule) for schedule in SCHEDULES)
    modules = "c_tiles", "epi_tile_layout"
    own = [one for one in synchronisation(parse(ptx)) if any(name in str(one.source) for name in modules)]
    assert own
    return {str(one) for one in own if not any(is_found(one, schedule) for schedule in SCHEDULES)}


def test_most_mbarriers_that_a_cta_has(rng):
    config = HopperGemmConfig(tile_m=192, tile_n=104, stages=3, pingpong=1, cluster_m=1, ctas=1)
    check_product(config, (248, 48, 200), rng, BFLOAT16, FLOAT32, adds=True)
