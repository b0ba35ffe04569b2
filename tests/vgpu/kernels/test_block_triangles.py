"""SYRK kernels on the virtual GPU: the block lower triangle is right, tiles above it are not computed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.core.block_triangle import STEP, BlockTriangle
from gemmule.core.dtype import FLOAT32, FLOAT64
from gemmule.core.spec import Choice
from gemmule.kernels.float64.syrk import SPEC as DOUBLE
from gemmule.kernels.simt.syrk import SPEC as SINGLE
from gemmule.vgpu import Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.execute import run_kernel
from support.oracle import assert_product, poisoned, random_matrix
from support.stray_writes import nothing_strays
from support.vgpu.kernel_products import laid_out, problem_of

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

DTYPES = {SINGLE: FLOAT32, DOUBLE: FLOAT64}
SPECS = pytest.mark.parametrize("spec", DTYPES, ids=lambda spec: spec.name)


def smallest(spec):
    return min(spec.configs, key=lambda config: config.tile_elements)


def problem_below(a, b, d, first=0, c=None, beta=0, step=STEP):
    return dataclasses.replace(problem_of(a, b, d, c, 1, beta), needed=BlockTriangle(first, step))


def tiles_of(problem, config):
    """The tiles of the block lower triangle."""
    m, n = problem.d.rows, problem.d.cols
    tops = range(0, m, config.tile_m)
    last = [min(top + config.tile_m, m) - 1 for top in tops]
    return {
        (row, left)
        for row, bottom in zip(tops, last, strict=True)
        for left in range(0, min(problem.needed.columns(bottom), n), config.tile_n)
    }


def run(spec, problem, arrays):
    assert spec.why_not(problem, virtual_arch(), smallest(spec)) is None
    with nothing_strays(arrays["d"]):
        run_kernel(problem, Choice(spec, smallest(spec)), arrays, Options(checks=True))


# One tile, a part of a step, two groups of rows, columns before the first step, and some behind the last one.
PARTS = [
    (1, 0, 0, "col row"), (131, 0, 40, "row col"), (258, 256, 0, "col row"), (1090, 0, 0, "col row"),
    (570, 512, 300, "row col"),
]  # fmt: skip
#: The triangle is one for both: of float64 the last, of several groups of rows, columns before them and behind.
CASES = [
    pytest.param(spec, *part, marks=[pytest.mark.slow] if dtype == FLOAT64 and part != PARTS[-1] else [])
    for spec, dtype in DTYPES.items()
    for part in PARTS
]


@pytest.mark.parametrize(("spec", "m", "first", "behind", "layout"), CASES)
def test_what_is_needed_is_right_and_nothing_else_is_computed(spec, m, first, behind, layout, rng):
    n, k, dtype, config = first + m + behind, 5, DTYPES[spec], smallest(spec)
    kinds = layout.split()
    a, b = (random_matrix(rng, dtype, shape) for shape in ((m, k), (k, n)))
    d = poisoned(dtype, (m, n))
    moved = [laid_out(x, kind, 1) for x, kind in zip((a, b), kinds, strict=True)]
    problem = problem_below(*moved, d, first)
    run(spec, problem, {"a": moved[0], "b": moved[1], "d": d})
    computed = np.zeros((m, n), bool)
    for top, left in tiles_of(problem, config):
        computed[top : top + config.tile_m, left : left + config.tile_n] = True
    assert np.isnan(d[~computed]).all()
    needed = np.arange(n) < np.array([problem.needed.columns(row) for row in range(m)])[:, None]
    assert computed[needed].all()
    for row in range(0, m, STEP):
        part, cols = slice(row, row + STEP), problem.needed.columns(row)
        assert_product(d[part, :cols], a[part], b[:, :cols])


@SPECS
def test_it_is_added_to_what_is_there(spec, rng):
    m, first, k = 300, 256, 9
    a, b, c = (random_matrix(rng, DTYPES[spec], shape) for shape in ((m, k), (k, first + m), (m, first + m)))
    d = c.copy()
    left, right = laid_out(a, "col", 1), laid_out(b, "row", 1)
    run(spec, problem_below(left, right, d, first, d, 1), {"a": left, "b": right, "c": d, "d": d})
    assert_product(d[:STEP, :512], a[:STEP], b[:, :512], c[:STEP, :512], 1, 1)
    assert_product(d[STEP:], a[STEP:], b, c[STEP:], 1, 1)
    np.testing.assert_array_equal(d[:STEP, 512:], c[:STEP, 512:])


@pytest.mark.parametrize(
    ("spec", "config"),
    [(spec, config) for spec in DTYPES for config in spec.configs],
    ids=lambda one: getattr(one, "name", str(one)),
)
def test_there_is_a_cta_for_each_tile_that_is_needed(spec, config):
    dtype = DTYPES[spec].numpy()
    for m in (1, 64, 129, 256, 257, 1000, 1024, 1025, 5000):
        for first in (0, STEP, 5 * STEP):
            # Where the result ends within a step, narrow tiles of that step may lie beyond it.
            n = first + -(-m // STEP) * STEP
            a, b, d = (np.zeros(shape, dtype) for shape in ((m, 1), (1, n), (m, n)))
            problem = problem_below(a, b, d, first)
            assert spec.launch(problem, config).grid == (len(tiles_of(problem, config)), 1, 1), (m, first)


@SPECS
def test_what_it_does_not_take_is_refused(spec):
    dtype = DTYPES[spec].numpy()
    a, b, d = (np.zeros(shape, dtype) for shape in ((300, 8), (8, 300), (300, 300)))
    for problem, reason in (
        (problem_of(a, b, d), "all of the result is needed"),
        (problem_below(a, b, d, step=128), "steps of 128"),
        (problem_below(a, b, d, first=128), "after 128 columns"),
        (problem_below(a, b, d, first=256), "ends at column 556, beyond the 300"),
        (problem_below(a, b, d.T), "the result is column-major"),
        (problem_below(a[:0], b, d[:0]), "no rows"),
        (problem_below(*(np.zeros((2, *x.shape), dtype) for x in (a, b, d))), "the batch is"),
    ):
        assert reason in spec.why_not(problem, virtual_arch(), spec.default)
    assert spec.why_not(problem_below(a, b, d), virtual_arch(), spec.default) is None


@pytest.mark.parametrize(("m", "first"), [(384, 0), (384, 256), (64, 0)])
@SPECS
def test_tiles_divide_a_result_that_ends_within_a_step(spec, m, first, rng):
    """The last tiles of the last step lie beyond the result, whose extents tiles divide: nothing is written."""
    n, dtype, config = first + m, DTYPES[spec], smallest(spec)
    k = 2 * config.tile_k
    assert m % config.tile_m == n % config.tile_n == 0
    a, b = (random_matrix(rng, dtype, shape) for shape in ((m, k), (k, n)))
    moved = [laid_out(x, kind, 0) for x, kind in zip((a, b), ("col", "row"), strict=True)]
    d = poisoned(dtype, (m, n))
    problem = problem_below(*moved, d, first)
    run(spec, problem, {"a": moved[0], "b": moved[1], "d": d})
    needed = np.arange(n) < np.array([problem.needed.columns(row) for row in range(m)])[:, None]
    wide = [x.astype(np.longdouble) for x in (a, b)]
    bound = (k + 3) * dtype.unit_roundoff * (np.abs(wide[0]) @ np.abs(wide[1]))
    assert (np.abs(d - wide[0] @ wide[1]) <= bound)[needed].all()
