"""simt_grouped on the virtual GPU, all checks on: groups along M, N and K, random ends, every layout, epilogues."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import BFLOAT16, FLOAT32
from gemmule.core.grouped_problem import GroupedProblem
from gemmule.core.spec import Choice
from gemmule.kernels.parts.grouped_tiles import MAX_GROUPS
from gemmule.kernels.simt.grouped.spec import SPEC
from gemmule.vgpu import Options
from gemmule.vgpu.execute import run_kernel
from support.oracle import assert_product, poisoned
from support.stray_writes import nothing_strays
from support.vgpu import grouped_products as products
from support.vgpu.grouped_products import ENDS, EXTENT, operand, shapes_of
from support.vgpu.kernel_products import matrix

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SMALL = min((x for x in SPEC.configs if x.warps_k == 1), key=lambda config: config.tile_elements)
LAYOUTS = list(itertools.product(("row", "col"), repeat=2))


def multiply(rng, axis, ends, config=SMALL, **changes):
    products.multiply(rng, axis, ends, Choice(SPEC, config), dtype=FLOAT32, **changes)


# The walk over the groups is that of hopper_grouped, whose tests have each of both.
@pytest.mark.combinations(1)
@pytest.mark.parametrize("axis", "mnk")
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_groups(axis, ends, rng):
    multiply(rng, axis, ends)


@pytest.mark.parametrize("axis", "mnk")
def test_random_ends(axis, rng):
    for groups in (2, 40):
        multiply(rng, axis, tuple(np.sort(rng.integers(0, EXTENT + 1, groups)).tolist()), sizes=(24, 40))


@pytest.mark.combinations(1)
@pytest.mark.parametrize("axis", "mnk")
@pytest.mark.parametrize("kinds", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("sizes", [pytest.param((24, 40), id="aligned", marks=pytest.mark.slow), (23, 37)], ids=str)
def test_every_layout(axis, kinds, sizes, rng):
    """Groups begin anywhere, within what is contiguous too, whatever the rows' alignment is."""
    extent = EXTENT if sizes[1] % 4 == 0 else EXTENT - 1
    multiply(rng, axis, (5, 5, 6, 70, 139), kinds=kinds, sizes=sizes, extent=extent)


@pytest.mark.parametrize("axis", "mk")
def test_sums_of_random_data(axis, rng):
    ends = np.array((0, 31, 90, 90, EXTENT), np.int32)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in shapes_of(axis, len(ends), (45, 35), EXTENT)[:2])
    got = gm.grouped_gemm(a, b, ends, executor="vgpu")
    for group, (start, end) in enumerate(itertools.pairwise((0, *ends.tolist()))):
        part = slice(start, end)
        if axis == "m":
            assert_product(got[part], a[part], b[group])
        else:
            assert_product(got[group], a[:, part], b[part])


def test_results_of_16_bits(rng):
    multiply(rng, "m", (3, 3, 70, 140), out=BFLOAT16, sizes=(24, 40))


def test_as_many_groups_as_there_is_room_for(rng):
    multiply(rng, "m", (*[3] * (MAX_GROUPS - 2), 70, 140), sizes=(24, 40))


@pytest.mark.parametrize(
    ("a_shape", "b_shape", "ends", "biased"),
    [
        ((9, 0), (3, 0, 4), (2, 2, 7), True),
        ((9, 0), (3, 0, 4), (2, 2, 7), False),
        ((4, 0), (0, 5), (0, 0), False),
        ((1, 1), (2, 1, 1), (0, 1), False),
        ((2, 1, 5), (5, 1), (0, 1), False),
        ((1, 7), (7, 1), (3, 7), False),
    ],
)
def test_products_of_nothing_and_of_single_rows_and_columns(a_shape, b_shape, ends, biased, rng):
    a, b = operand(rng, FLOAT32, a_shape, "row"), operand(rng, FLOAT32, b_shape, "row")
    bias = operand(rng, FLOAT32, (b_shape[0], b_shape[2]), "row") if biased else None
    host, virtual = (
        gm.grouped_gemm(a, b, np.array(ends, np.int32), bias=bias, executor=executor) for executor in ("cpu", "vgpu")
    )
    np.testing.assert_array_equal(host, virtual)


@pytest.mark.parametrize(
    ("bias", "epilogue", "columns", "step"),
    [
        (True, "relu", 40, 1),
        pytest.param(True, None, 37, 1, marks=pytest.mark.slow),
        (True, None, 37, -2),
        (False, "gelu", 40, 1),
    ],
)
def test_a_bias_and_an_epilogue(bias, epilogue, columns, step, rng):
    """What is beyond the last end is zero even so, and so is that of a bias that is no number."""
    ends = np.array((0, 3, 3, 70, 140), np.int32)
    a, b = operand(rng, FLOAT32, (EXTENT, 24), "row"), operand(rng, FLOAT32, (5, 24, columns), "col")
    added = rng.standard_normal((5, abs(step) * columns)).astype(np.float32)[:, ::step] if bias else None
    if bias:
        added[[0, 2]] = np.nan
        if columns % 2:
            added[4] = np.inf
    d = poisoned(FLOAT32, (EXTENT, columns))
    plan = gm.grouped_gemm.plan(a, b, ends, bias=added, epilogue=epilogue, out=d, executor="vgpu")
    arrays = {"a": a, "b": b, "offsets": ends, "d": d} | ({"e0": added} if bias else {})
    with nothing_strays(d):
        run_kernel(plan.problem, Choice(SPEC, SMALL), arrays, Options(checks=True))
    exact = gm.grouped_gemm(a.astype(np.float64), b.astype(np.float64), ends, epilogue=epilogue,
                            bias=None if added is None else added.astype(np.float64))  # fmt: skip
    np.testing.assert_allclose(d, exact, rtol=1e-5, atol=1e-4)
    assert (d[140:] == 0).all()


@pytest.mark.parametrize("axis", "mnk")
def test_ends_past_the_extent_touch_nothing_beyond(axis, rng):
    """Nobody sees offsets on a GPU before the kernel does: they are cut off."""
    a_shape, b_shape, d_shape = shapes_of(axis, 5, (24, 40), EXTENT)
    a, b = operand(rng, FLOAT32, a_shape, "row"), operand(rng, FLOAT32, b_shape, "col")
    found = []
    for ends in ((3, 70, 1000, 999_999, 2**31 - 1), (3, 70, EXTENT, EXTENT, EXTENT)):
        d = poisoned(FLOAT32, d_shape)
        problem = GroupedProblem(axis, a.shape[-2], b.shape[-1], a.shape[-1], 5, matrix(a), matrix(b), matrix(d))
        arrays = {"a": a, "b": b, "offsets": np.array(ends, np.int32), "d": d}
        with nothing_strays(d):
            run_kernel(problem, Choice(SPEC, SMALL), arrays, Options(checks=True))
        found.append(d)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("axis", "mnk")
def test_ends_that_decrease_stray_nowhere(axis, rng):
    """Groups overlap then, and the result is undefined."""
    ends = np.array((90, 70, -5, 160, 20), np.int32)
    a_shape, b_shape, d_shape = shapes_of(axis, 5, (24, 40), EXTENT)
    a, b, d = operand(rng, FLOAT32, a_shape, "row"), operand(rng, FLOAT32, b_shape, "col"), poisoned(FLOAT32, d_shape)
    problem = GroupedProblem(axis, a.shape[-2], b.shape[-1], a.shape[-1], 5, matrix(a), matrix(b), matrix(d))
    with nothing_strays(d):
        run_kernel(problem, Choice(SPEC, SMALL), {"a": a, "b": b, "offsets": ends, "d": d}, Options())


@pytest.mark.combinations(1)
@pytest.mark.parametrize("axis", "mk")
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(x, id=str(x).replace(" ", ","), marks=[] if x.warps_k == 4 == x.stages else [pytest.mark.slow])
        for x in SPEC.configs
    ],
)
def test_every_config(axis, config, rng):
    multiply(rng, axis, (5, 5, 280, 281, 400), config, sizes=(136, 264), extent=408)
