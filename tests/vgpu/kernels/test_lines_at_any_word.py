"""Lines of 32-bit elements that begin at any word, in the kernels of mma.sync on the virtual GPU."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from gemmule.core.dtype import FLOAT32, Precision
from gemmule.core.spec import Choice
from gemmule.kernels.mma_sync.config import MmaSyncConfig
from gemmule.kernels.mma_sync.small.config import SmallMmaConfig
from gemmule.kernels.mma_sync.small.spec import SPEC as SMALL
from gemmule.kernels.mma_sync.spec import SPEC as MMA_SYNC
from gemmule.vgpu.arch import virtual_arch
from support.oracle import poisoned
from support.vgpu.kernel_products import laid_out, problem_of, run_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

LAYOUTS = list(itertools.product(("row", "col"), repeat=2))
TILE = MmaSyncConfig(tile_m=64, tile_n=64, stages=4)
#: Rows of a tile that are no power of two of vectors, and a share of each of two CTAs.
OF_96_COLUMNS = MmaSyncConfig(tile_n=96, warps_m=4, warps_n=1, stages=4, cluster_k=2)
CHOICES = [Choice(MMA_SYNC, TILE), Choice(MMA_SYNC, OF_96_COLUMNS), Choice(SMALL, SmallMmaConfig())]


def integers(rng, shape):
    """Return values of which every product is exact."""
    return rng.integers(-4, 5, shape).astype(np.float32)


def tf32(a, b, d):
    return dataclasses.replace(problem_of(a, b, d), precision=Precision.TF32)


def assert_exact(choice, a, b, d, copies=None):
    problem = tf32(a, b, d)
    if copies is not None:
        types = dict(choice.spec.signature(problem, choice.config))
        assert (types["a_copies"], types["b_copies"]) == copies
    found = run_product(choice, problem, a, b, d, None)
    np.testing.assert_array_equal(found, np.asarray(a, np.float64) @ np.asarray(b, np.float64))


def names(value):
    return f"{value.spec.name}-{value.config}" if isinstance(value, Choice) else "-".join(value)


#: Each is compiled anew: the kernel that is compiled fastest in every layout, the others in one or two.
KERNELS = [
    pytest.param(choice, layout, marks=[] if choice is CHOICES[2] or layout in often else [pytest.mark.slow])
    for choice, often in zip(CHOICES, ((LAYOUTS[1], LAYOUTS[2]), (LAYOUTS[2],), LAYOUTS), strict=True)
    for layout in LAYOUTS
]


@pytest.mark.parametrize(("choice", "layout"), KERNELS, ids=names)
def test_lines_begin_at_any_word(choice, layout, rng):
    # One k-tile and a word, several, and none; the first word is 0 to 3 words after a vector. Without K, and with one,
    # operands are K-major.
    shapes = [(67, 69, 33), (61, 67, 135), (65, 3, 1), (70, 71, 0)][: None if layout == ("row", "col") else 2]
    for offset, shape in enumerate(shapes):
        m, n, k = shape
        a, b = integers(rng, (m, k)), integers(rng, (k, n))
        moved = [laid_out(x, kind, offset) for x, kind in zip((a, b), layout, strict=True)]
        assert_exact(choice, *moved, poisoned(FLOAT32, (m, n)))


# Of the second, which is compiled longest, the others' mainloop has these copies too.
@pytest.mark.combinations(1)
@pytest.mark.parametrize(
    "choice", [pytest.param(one, marks=[pytest.mark.slow] if one is CHOICES[1] else []) for one in CHOICES], ids=names
)
@pytest.mark.parametrize(
    ("shape", "copies"), [((66, 67, 70), ("8", "4")), ((66, 70, 72), ("16", "8")), ((65, 67, 72), ("16", "4"))], ids=str
)
def test_lines_begin_at_pairs_of_words_or_at_vectors_of_one_operand(choice, shape, copies, rng):
    m, n, k = shape
    a, b = integers(rng, (m, k)), integers(rng, (k, n))
    assert_exact(choice, a, b, poisoned(FLOAT32, (m, n)), copies)


@pytest.mark.parametrize(("choice", "layout"), KERNELS, ids=names)
def test_nan_between_lines_is_not_multiplied(choice, layout, rng):
    def inside(values):
        room = poisoned(FLOAT32, (values.shape[0] + 3, values.shape[1] + 8))[2:-1, 5:-3]
        room[...] = values
        return room

    def moved(values, kind):
        return inside(values) if kind == "row" else inside(values.T).T

    a, b = integers(rng, (65, 39)), integers(rng, (39, 67))
    assert_exact(choice, *map(moved, (a, b), layout), poisoned(FLOAT32, (65, 67)))


@pytest.mark.parametrize("choice", CHOICES, ids=names)
def test_matrices_of_a_batch_begin_at_any_word(choice, rng):
    a, b = integers(rng, (3, 33, 35)), integers(rng, (3, 35, 37))
    layout = ("col", "row") if choice.config == OF_96_COLUMNS else ("row", "col")
    moved = [laid_out(x, kind, offset) for x, kind, offset in zip((a, b), layout, (1, 2), strict=True)]
    assert_exact(choice, *moved, laid_out(poisoned(FLOAT32, (3, 33, 37)), "row"))


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=names)
@pytest.mark.parametrize(
    "choice", [Choice(spec, one) for spec in (MMA_SYNC, SMALL) for one in spec.configs if one.sum_bits == 32], ids=names
)
def test_every_config(choice, layout, rng):
    m, n, k = 133, 201, 32 * 2 * choice.config.cluster_k + 3
    a, b = integers(rng, (m, k)), integers(rng, (k, n))
    moved = [laid_out(x, kind, 1) for x, kind in zip((a, b), layout, strict=True)]
    d = poisoned(FLOAT32, (m, n))
    assert choice.spec.why_not(tf32(*moved, d), virtual_arch(), choice.config) is None
    assert_exact(choice, *moved, d)
