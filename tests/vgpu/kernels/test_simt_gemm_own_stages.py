"""simt_gemm on the virtual GPU: groups of one warp, each with stages of its own."""

from __future__ import annotations

import itertools

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import FLOAT32
from gemmule.kernels.simt.config import SimtConfig
from gemmule.kernels.simt.gemm.spec import SPEC
from gemmule.vgpu.arch import virtual_arch
from support.oracle import poisoned, random_matrix
from support.vgpu.kernel_products import problem_of
from support.vgpu.simt_products import counted_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SMALL = SimtConfig(tile_m=32, tile_n=32, tile_k=32, warps_m=1, warps_n=1, warps_k=4)
BROAD = SimtConfig(tile_m=32, tile_n=64, tile_k=32, warps_m=1, warps_n=1, warps_k=4)
TALL = SimtConfig(tile_m=64, tile_n=32, tile_k=32, warps_m=1, warps_n=1, warps_k=4)


@pytest.mark.parametrize("config", [SMALL, pytest.param(BROAD, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("kinds", list(itertools.product(("row", "col"), repeat=2)), ids="-".join)
def test_rows_that_begin_anywhere_are_multiplied_in_groups(config, kinds, rng):
    # Within a panel, a k-tile and the part of a group; fewer k than groups take; and none.
    for shape in ((37, 71, 45), (33, 5, 131), (35, 33, 7), (5, 3, 0)):
        counted_product(config, shape, kinds, rng)


@pytest.mark.parametrize(
    ("config", "kinds", "own"),
    [
        (SMALL, ("row", "row"), True), (SMALL, ("row", "col"), False), (TALL, ("col", "row"), True),
        (TALL, ("row", "row"), False),
    ],
    ids=str,
)  # fmt: skip
def test_groups_with_stages_of_their_own_have_no_barrier_in_the_loop(config, kinds, own, rng):
    assert config.own_stages((kinds[0] == "row", kinds[1] == "col"), unaligned=False) == own
    few, many = (counted_product(config, (config.tile_m, config.tile_n, k), kinds, rng) for k in (128, 256))
    assert (few.barriers == many.barriers) == own
    assert many.bank_conflicts == 0


def test_stages_of_groups_are_for_one_warp_and_a_sector_of_k():
    neither = False, False
    assert BROAD.own_stages(neither, unaligned=True)
    assert not BROAD.own_stages(neither, unaligned=False)
    for other in (
        SimtConfig(tile_m=32, tile_n=32, tile_k=64, warps_m=1, warps_n=1, stages=3, warps_k=4),
        SimtConfig(tile_m=64, tile_n=32, tile_k=32, warps_m=2, warps_n=1, warps_k=2),
        SimtConfig(tile_m=32, tile_n=32, tile_k=16, warps_m=2, warps_n=1),
    ):
        assert not other.own_stages(neither, unaligned=True)


@pytest.mark.parametrize(("config", "triggers"), [(SMALL, True), (BROAD, False)], ids=("small", "broad"))
def test_the_dependent_grid_launches_before_tiles_of_small_products_are_written(config, triggers, rng):
    a, b, d = random_matrix(rng, FLOAT32, (36, 52)), random_matrix(rng, FLOAT32, (52, 68)), poisoned(FLOAT32, (36, 68))
    problem = problem_of(a, b, d)
    artifact = artifact_for(SPEC, config, SPEC.signature(problem, config), virtual_arch(), with_ptx=True)
    _, trigger, writes = artifact.ptx.partition("griddepcontrol.launch_dependents")
    assert bool(trigger) == triggers
    assert not triggers or ("st.global" in writes and "cp.async" not in writes)
