"""simt_gemm on the virtual GPU: K-major operands in slots or registers, others stored transposed by matrices."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import FLOAT32
from gemmule.kernels.simt.config import MOST_COPIES, VECTOR, SimtConfig
from gemmule.kernels.simt.gemm.spec import SPEC
from gemmule.vgpu import Counter, Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.launcher import launch
from support.oracle import poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, problem_of
from support.vgpu.simt_products import in_groups, in_order, multiply

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: One group of warps: threads copy all rows of a panel at once.
FLAT = SimtConfig(tile_m=64, tile_n=64, tile_k=16, warps_m=2, stages=3)
BROAD = SimtConfig(tile_m=64, tile_n=128, tile_k=16, warps_m=2, stages=3)
#: Two groups of warps.
SMALL = SimtConfig(tile_m=64, tile_n=64, tile_k=32, warps_m=2, warps_n=1, stages=3, warps_k=2)
#: K-major operands pass through registers.
EARLY = SimtConfig(tile_m=32, tile_n=32, tile_k=32, warps_m=1, warps_n=1, stages=3, warps_k=4, wide_copies=1)
#: Four groups, which copy a half of them at once.
TALL = SimtConfig(tile_m=64, tile_n=32, tile_k=32, warps_m=1, warps_n=1, stages=3, warps_k=4)
#: The same of 64 k, whose copies into slots are issued in parts.
LONG = SimtConfig(tile_m=64, tile_n=32, tile_k=64, warps_m=1, warps_n=1, warps_k=4)
#: Two groups in the largest tiles, three stages.
WIDE = SimtConfig(tile_m=64, tile_n=128, tile_k=32, warps_m=2, warps_n=2, stages=3, warps_k=2)
HIGH = SimtConfig(tile_m=128, tile_n=64, tile_k=32, warps_m=4, warps_n=1, stages=3, warps_k=2)
#: Three panels and six warps, two of each panel, in two groups.
PANELS = SimtConfig(tile_m=96, tile_n=96, tile_k=32, warps_m=3, warps_n=1, stages=3, warps_k=2)
LAYOUTS = list(itertools.product(("row", "col"), repeat=2))
#: Extents that end within a panel and within a k-tile, and fewer k than a stage or than are in flight.
ENDS = [(68, 36, 52), *(pytest.param(one, marks=pytest.mark.slow) for one in ((36, 132, 4), (100, 68, 100)))]


def test_vectors_along_k_wait_in_slots_of_a_part_of_k_in_a_cluster(rng):
    config = SimtConfig(tile_m=64, tile_k=16, warps_m=2, cluster_k=2)
    assert config.by_slots((True, True)) == (True, True)
    a, b = random_matrix(rng, FLOAT32, (70, 120)), random_matrix(rng, FLOAT32, (120, 36))
    d = multiply(a, laid_out(b, "col"), poisoned(FLOAT32, (70, 36)), config=config)
    np.testing.assert_array_equal(d, in_order(a[:, :64], b[:64]) + in_order(a[:, 64:], b[64:]))


@pytest.mark.parametrize(
    "config", [PANELS, pytest.param(SimtConfig(96, 192, 32, 3, 2, 4, warps_k=2), marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize(
    "layout",
    [pytest.param(one, marks=[] if one[0] != one[1] else [pytest.mark.slow]) for one in LAYOUTS],
    ids="-".join,
)
def test_lines_of_all_panels_are_copied_at_once(layout, config, rng):
    # Aligned, in whole rows of the last tile but one panel; and by element, which both K-major operands are alike.
    for m, n, k in ((config.tile_m + 68, 36, 164), (99, config.tile_n + 7, 35))[: 1 if layout == ("col", "row") else 2]:
        a, b = random_matrix(rng, FLOAT32, (m, k)), random_matrix(rng, FLOAT32, (k, n))
        moved = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
        d = multiply(*moved, poisoned(FLOAT32, (m, n)), config=config)
        np.testing.assert_array_equal(d, in_groups(a, b, config))


def test_a_narrow_k_major_operand_alone_passes_through_slots(rng):
    a, b = random_matrix(rng, FLOAT32, (132, 100)), random_matrix(rng, FLOAT32, (100, 132))
    for config, narrow in ((WIDE, (True, False)), (HIGH, (False, True))):
        assert config.by_slots(narrow) == narrow
        assert config.by_slots((True, True)) == config.by_slots(narrow[::-1]) == (False, False)
        moved = a if narrow[0] else laid_out(a, "col"), laid_out(b, "col") if narrow[1] else b
        d = multiply(*moved, poisoned(FLOAT32, (132, 132)), config=config)
        np.testing.assert_array_equal(d, in_groups(a, b, config))


@pytest.mark.parametrize("shape", ENDS, ids=str)
@pytest.mark.parametrize(
    ("config", "k_major"),
    [
        (FLAT, (True, True)), (BROAD, (True, False)), (BROAD, (False, True)), (TALL, (True, True)),
        (LONG, (True, True)),
    ],
    ids=str,
)  # fmt: skip
def test_slots_end_where_the_matrices_do_and_meet_no_bank_twice(config, k_major, shape, rng):
    assert config.by_slots(k_major) == k_major
    m, n, k = shape
    a, b = random_matrix(rng, FLOAT32, (m, k)), random_matrix(rng, FLOAT32, (k, n))
    moved = a if k_major[0] else laid_out(a, "col"), laid_out(b, "col") if k_major[1] else b
    d, counter = poisoned(FLOAT32, (m, n)), Counter()
    problem = problem_of(*moved, d)
    artifact = artifact_for(SPEC, config, SPEC.signature(problem, config), virtual_arch())
    arrays = {"a": moved[0], "b": moved[1], "d": d}
    launch(artifact, SPEC.launch(problem, config), arrays, options=Options(checks=True), observers=(counter,))
    np.testing.assert_array_equal(d, in_groups(a, b, config))
    assert [row for row in counter.counts.instructions if "ldmatrix" in row.text and row.requests]
    assert counter.counts.bank_conflicts == 0


@pytest.mark.parametrize("shape", [(105, 35, 133), (64, 32, 128), (5, 3, 0)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_a_thread_copies_as_many_elements_as_a_mask_has_bits(layout, shape, rng):
    m, n, k = shape
    assert LONG.tile_m * LONG.tile_k // LONG.threads == MOST_COPIES
    a, b = random_matrix(rng, FLOAT32, (m, k)), random_matrix(rng, FLOAT32, (k, n))
    moved = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
    d = multiply(*moved, poisoned(FLOAT32, (m, n)), config=LONG)
    np.testing.assert_array_equal(d, in_groups(a, b, LONG))


@pytest.mark.parametrize("shape", [(128, 256, 64), (132, 20, 36)], ids=str)
@pytest.mark.parametrize("tile", [(128, 256, 2, 4), (256, 128, 4, 2)], ids=str)
def test_both_operands_of_the_largest_tiles_pass_through_registers_in_steps_of_their_own(tile, shape, rng):
    rows, columns, *warps = tile
    config = SimtConfig(rows, columns, 16, *warps, 3)
    m, n, k = shape if rows < columns else (shape[1], shape[0], shape[2])
    counts = [extent * config.tile_k // (VECTOR * config.threads) for extent in (rows, columns)]
    for second, count in enumerate(counts):
        alone, both = (config.vector_steps(count, bool(second), one) for one in (False, True))
        assert alone != both
        assert all(stored <= loaded < config.tile_k - 1 for stored, loaded in both)
    a, b = random_matrix(rng, FLOAT32, (m, k)), random_matrix(rng, FLOAT32, (k, n))
    d = multiply(a, laid_out(b, "col"), poisoned(FLOAT32, (m, n)), config=config)
    np.testing.assert_array_equal(d, in_order(a, b))


@pytest.mark.parametrize("tile", [(128, 256, 2, 4), (256, 128, 4, 2)], ids=str)
def test_one_operand_of_whole_largest_tiles_passes_through_registers_and_is_stored_as_matrices(tile, rng):
    rows, columns, *warps = tile
    config = SimtConfig(rows, columns, 16, *warps, 3)
    a, b = random_matrix(rng, FLOAT32, (rows, 64)), random_matrix(rng, FLOAT32, (64, columns))
    moved = (a, b) if rows < columns else (laid_out(a, "col"), laid_out(b, "col"))
    d, counter = poisoned(FLOAT32, (rows, columns)), Counter()
    problem = problem_of(*moved, d)
    artifact = artifact_for(SPEC, config, SPEC.signature(problem, config), virtual_arch())
    arrays = {"a": moved[0], "b": moved[1], "d": d}
    launch(artifact, SPEC.launch(problem, config), arrays, options=Options(checks=True), observers=(counter,))
    np.testing.assert_array_equal(d, in_order(a, b))
    assert [row for row in counter.counts.instructions if "stmatrix" in row.text and row.requests]
    assert counter.counts.bank_conflicts == 0


@pytest.mark.parametrize("tile", [(32, 64), (64, 32)], ids=str)
def test_mn_major_operands_of_small_tiles_share_a_mask(tile, rng):
    config = SimtConfig(*tile, 32, 1, 1, warps_k=4)
    assert config.shares_mask(False)
    assert not config.shares_mask(True)
    a, b = random_matrix(rng, FLOAT32, (68, 36)), random_matrix(rng, FLOAT32, (36, 68))
    d = multiply(laid_out(a, "col"), b, poisoned(FLOAT32, (68, 68)), config=config)
    np.testing.assert_array_equal(d, in_groups(a, b, config))


def test_two_stages_have_no_slots():
    for config in (FLAT, BROAD, SMALL):
        assert dataclasses.replace(config, stages=2).by_slots((True, True)) == (False, False)


@pytest.mark.parametrize(
    ("config", "layout"),
    [(EARLY, ("row", "row")), pytest.param(SMALL, ("row", "row"), marks=pytest.mark.slow),
     pytest.param(WIDE, ("row", "col"), marks=pytest.mark.slow)],
    ids=str,
)  # fmt: skip
def test_registers_that_no_load_writes_are_zeros(config, layout, rng):
    """Whole tiles pass through registers, and no k-tile follows, or none is there: what is stored was written."""
    shape = config.tile_m, config.tile_n
    for k, alpha in ((3 * config.tile_k, 0.0), (config.tile_k, 1.0)):
        a, b = (random_matrix(rng, FLOAT32, one) for one in ((shape[0], k), (k, shape[1])))
        moved = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
        d = multiply(*moved, poisoned(FLOAT32, shape), alpha=alpha, config=config)
        np.testing.assert_array_equal(d, in_groups(a, b, config) if alpha else 0)
