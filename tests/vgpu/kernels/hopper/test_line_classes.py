"""hopper_gemm_line_classes on the virtual GPU, all checks on, alone and behind the copy of the small operand."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.core.dtype import BFLOAT16, FLOAT16
from gemmule.core.errors import ArgumentError
from gemmule.core.spec import Choice
from gemmule.kernels.hopper.gemm_line_classes.config import LineClassConfig
from gemmule.kernels.hopper.gemm_line_classes.spec import SPEC
from gemmule.kernels.hopper.gemm_small_repacked.spec import SPEC as SMALL_REPACKED
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, problem_of, run_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

ALONE = LineClassConfig(tile_m=64, tile_n=64, stages=6)
WIDE = LineClassConfig(tile_m=128, tile_n=128, stages=2)
SPLIT = LineClassConfig(tile_m=64, tile_n=64, stages=6, cluster_k=4)


def aligned(values):
    """The same values in rows at multiples of 16 bytes, with NaN between them."""
    rows, cols = values.shape
    storage = np.full((rows, -(-cols // 8) * 8), np.nan, values.dtype)
    storage[:, :cols] = values
    return storage[:, :cols]


def factors(rng, shape, large, lines, dtype=BFLOAT16):
    """A and B: the large one with lines of K, or lines along K, and the other one aligned with lines of M or N."""
    m, n, k = shape
    a, b = random_matrix(rng, dtype, (m, k)), random_matrix(rng, dtype, (k, n))
    if large == "b":
        return aligned(np.ascontiguousarray(a.T)).T, laid_out(b, "col" if lines == "along k" else "row")
    return laid_out(a, "row" if lines == "along k" else "col"), aligned(b)


def multiply(spec, config, a, b, d, c=None, alpha=1, beta=0):
    return run_product(Choice(spec, config), problem_of(a, b, d, c, alpha, beta), a, b, d, c)


@pytest.mark.parametrize("config", [ALONE, SPLIT], ids=["alone", "cluster"])
@pytest.mark.parametrize("lines", ["of k", "along k"])
@pytest.mark.parametrize("large", "ab")
def test_an_operand_of_odd_lines(large, lines, config, rng):
    # Odd lines, and multiples of 4 and 2 elements.
    for shape in ((33, 129, 131), (70, 604, 77), (70, 66, 78), (17, 61, 1042)):
        m, n, k = shape if large == "b" else (shape[1], shape[0], shape[2])
        a, b = factors(rng, (m, n, k), large, lines)
        c = random_matrix(rng, BFLOAT16, (m, n))
        assert_product(multiply(SPEC, config, a, b, poisoned(BFLOAT16, (m, n))), a, b)
        d = laid_out(poisoned(BFLOAT16, (m, n)), "col", 3)
        assert_product(multiply(SPEC, config, a, b, d, c, 0.75, -1.5), a, b, c, 0.75, -1.5)


def test_infinities_stay_in_their_lines(rng):
    """The elements before a line are those of another one; the first chunk of 16 bytes has both."""
    a, b = factors(rng, (17, 129, 75), "b", "along k")
    b[-8:, 40], b[3, 77] = np.inf, np.nan
    d = multiply(SPEC, ALONE, a, b, poisoned(BFLOAT16, (17, 129))).astype(np.float64)
    finite = np.isfinite(d)
    assert not finite[:, 40].any()
    assert not finite[:, 77].any()
    assert finite.sum() == 17 * 127


@pytest.mark.parametrize(("ld", "lines"), [(2, 11), (3, 3), (5, 8), (7, 33), (12, 2)])
def test_shortest_lines(ld, lines, rng):
    a, b = factors(rng, (9, lines, ld), "b", "along k", FLOAT16)
    assert_product(multiply(SPEC, ALONE, a, b, poisoned(FLOAT16, (9, lines))), a, b)
    a, b = factors(rng, (9, ld, lines), "b", "of k", FLOAT16)
    assert_product(multiply(SPEC, ALONE, a, b, poisoned(FLOAT16, (9, ld))), a, b)


@pytest.mark.parametrize("shape", [(1, 3, 5), (1, 1, 5), (3, 1, 9), (1, 9, 1), (1, 11, 14)], ids=str)
@pytest.mark.parametrize("lines", ["of k", "along k"])
def test_extents_of_one(lines, shape, rng):
    """Classes of a single element: which way they are contiguous, their strides do not tell."""
    m, n, k = shape
    a, b = aligned(random_matrix(rng, BFLOAT16, (k, m))).T, random_matrix(rng, BFLOAT16, (k, n))
    ld = 18 if lines == "of k" else 19
    storage = np.full((k, ld) if lines == "of k" else (n, ld), np.nan, BFLOAT16.numpy())
    given = storage[:, :n] if lines == "of k" else storage[:, :k].T
    given[...] = b
    assert_product(multiply(SPEC, WIDE, a, given, poisoned(BFLOAT16, (m, n))), a, b)


@pytest.mark.parametrize("layout", ["row-row", "row-col", "col-row", "col-col"])
def test_the_small_operand_is_repacked(layout, rng):
    for m, n, k in ((33, 129, 131), (131, 33, 77)):
        a, b = random_matrix(rng, FLOAT16, (m, k)), random_matrix(rng, FLOAT16, (k, n))
        moved = [laid_out(x, kind) for x, kind in zip((a, b), layout.split("-"), strict=True)]
        d = multiply(SMALL_REPACKED, SMALL_REPACKED.default, *moved, poisoned(FLOAT16, (m, n)))
        assert_product(d, a, b)


@pytest.mark.slow
@pytest.mark.parametrize("lines", ["of k", "along k"])
@pytest.mark.parametrize("config", SPEC.configs, ids=str)
def test_every_config(config, lines, rng):
    m, n, k = config.tile_m + 3, 2 * config.tile_n + 5, 1111
    a, b = factors(rng, (m, n, k), "b", lines)
    assert_product(multiply(SPEC, config, a, b, poisoned(BFLOAT16, (m, n))), a, b)


def test_what_it_refuses():
    """Aligned lines, two K-major operands, and configs without room for partial sums."""

    def reason(m, n, k, a_kind="col", b_kind="row"):
        a, b, d = (np.zeros(sides, BFLOAT16.numpy()) for sides in ((m, k), (k, n), (m, n)))
        a, b = laid_out(a, a_kind), laid_out(b, b_kind)
        return SPEC.why_not(problem_of(a, b, d), SPEC.archs[0], SPEC.default)

    assert reason(64, 129, 64) is None
    assert reason(64, 130, 3) is None
    assert "elements apart" in reason(64, 136, 64)
    assert "one element" in reason(64, 1, 1)
    assert "K-major" in reason(64, 129, 65, a_kind="row", b_kind="col")
    with pytest.raises(ArgumentError, match="room for the partial sums"):
        LineClassConfig(tile_m=128, tile_n=256, stages=2, cluster_k=2)
