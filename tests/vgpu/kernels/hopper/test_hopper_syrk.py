"""hopper_syrk on the virtual GPU, all checks on: A times its own transpose, layouts, predicated tiles, batches."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, Precision
from gemmule.core.problem import mark_own_transpose
from gemmule.core.spec import Choice
from gemmule.kernels.hopper.syrk.spec import SPEC
from gemmule.vgpu import Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.execute import run_kernel
from support.oracle import assert_product, poisoned, random_matrix
from support.stray_writes import nothing_strays
from support.vgpu.kernel_products import laid_out, problem_of

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SMALL = next(config for config in SPEC.configs if config.tile_elements == 64 * 64 and config.cluster_size == 1)
#: With room for lines that threads write.
LINES = next(
    config
    for config in SPEC.configs
    if config.tile_elements == 64 * 64 and config.cluster_size == 1 and config.holds_rows
)
#: Wider than high, that one in two parts of K, and those that warpgroups and clusters share.
WIDE = next(config for config in SPEC.configs if (config.tile_m, config.tile_n) == (64, 96))


def square(a, d, alpha=1, config=SMALL, precision=Precision.IEEE):
    """Compute D = alpha A @ A.T, and see that it is symmetric."""
    b = a.swapaxes(-1, -2)
    problem = mark_own_transpose(dataclasses.replace(problem_of(a, b, d, None, alpha), precision=precision), same=True)
    assert SPEC.why_not(problem, virtual_arch(), config) is None
    with nothing_strays(d):
        run_kernel(problem, Choice(SPEC, config), {"a": a, "b": b, "d": d}, Options(checks=True))
    assert_product(d, a, b, alpha=alpha)
    np.testing.assert_array_equal(d, d.swapaxes(-1, -2))
    return d


def longer_rows(rng, shape):
    """Rows that begin at multiples of 16 bytes."""
    a = np.zeros((shape[0], -(-shape[1] // 8) * 8), BFLOAT16.numpy())[:, : shape[1]]
    a[...] = random_matrix(rng, BFLOAT16, shape)
    return a


@pytest.mark.parametrize("shape", [(8, 1), (56, 64), (64, 72), (72, 200), (200, 72)], ids=str)
def test_ragged_tiles(shape, rng):
    square(longer_rows(rng, shape), poisoned(BFLOAT16, (shape[0], shape[0])), 0.75)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("shape", [(1, 8), (71, 40), (201, 72)], ids=str)
def test_results_whose_lines_begin_anywhere(shape, offset, rng):
    for kind in ("row", "col"):
        d = laid_out(poisoned(BFLOAT16, (shape[0], shape[0])), kind, offset)
        square(longer_rows(rng, shape), d, -0.5, LINES)


@pytest.mark.parametrize(
    ("dtype", "out", "kind"),
    [
        (BFLOAT16, BFLOAT16, "col"),
        (FLOAT16, FLOAT32, "row"),
        pytest.param(FLOAT16, FLOAT32, "col", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_tiles_that_are_wider_than_high(dtype, out, kind, rng):
    a = laid_out(random_matrix(rng, dtype, (208, 136)), kind)
    square(a, laid_out(poisoned(out, (208, 208)), kind), config=WIDE)


def test_tf32(rng):
    # Values that TF32 holds.
    a = random_matrix(rng, BFLOAT16, (136, 72)).astype(np.float32)
    square(a, poisoned(FLOAT32, (136, 136)), 0.5, precision=Precision.TF32)


def test_a_batch(rng):
    a = random_matrix(rng, BFLOAT16, (3, 72, 64))
    square(a, poisoned(BFLOAT16, (3, 72, 72)))


@pytest.mark.slow
@pytest.mark.parametrize("config", SPEC.configs, ids=lambda config: str(config).replace(" ", ","))
def test_every_config(config, rng):
    n, k = 2 * config.tile_n + 8, 64 * config.cluster_k + 72
    square(random_matrix(rng, BFLOAT16, (n, k)), poisoned(BFLOAT16, (n, n)), config=config)


@pytest.mark.parametrize("rows", [5, pytest.param(18, marks=pytest.mark.slow)])
def test_few_ctas_go_over_many_tiles(rows, rng):
    """More rows of tiles than a group has, and groups that are passed at once."""
    config, n = dataclasses.replace(SMALL, ctas=2, group=1), 64 * rows - 24
    square(random_matrix(rng, BFLOAT16, (n, 8)), poisoned(BFLOAT16, (n, n)), config=config)
