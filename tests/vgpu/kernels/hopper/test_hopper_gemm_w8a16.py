"""Few rows by 8-bit weights on the virtual GPU, all checks on: every value, every place of K, edges, shares of K."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, FLOAT32
from gemmule.core.spec import Choice
from gemmule.kernels.hopper.gemm_w8a16.config import W8A16Config
from gemmule.kernels.hopper.gemm_w8a16.spec import SPEC
from support.epilogue_cases import silu
from support.oracle import assert_product, poisoned, random_matrix
from support.ptx.hopper import SCHEDULES
from support.vgpu.kernel_products import laid_out, problem_of, run_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

NARROW, RESULTS = (FLOAT8_E4M3, FLOAT8_E5M2), (FLOAT32, BFLOAT16, FLOAT16)
#: Rings that go round, and two CTAs that share K.
SMALL = W8A16Config(tile_n=8, stages=4, slots=4, cluster_k=2)


def multiply(a, b, d, c=None, alpha=1, beta=0, config=SMALL, **options):
    """Multiply A in rows and B in columns, whose pitch is a multiple of 16 bytes that K need not fill."""
    k = a.shape[-1]
    a, b = (np.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, -k % 16),), constant_values=7)[..., :k] for x in
            (a, np.ascontiguousarray(np.swapaxes(b, -1, -2))))  # fmt: skip
    b = np.swapaxes(b, -1, -2)
    problem = problem_of(a, b, d, c, alpha, beta)
    return run_product(Choice(SPEC, config), problem, a, b, d, c, **options)


@pytest.mark.parametrize("shape", [(11, 131, 777), (1, 8, 256), (8, 128, 2192)], ids=str)
def test_ragged_tiles(shape, rng):
    m, n, k = shape
    a, b, c = random_matrix(rng, FLOAT8_E5M2, (m, k)), random_matrix(rng, FLOAT8_E4M3, (k, n)), None
    c = random_matrix(rng, FLOAT32, (m, n))
    got = multiply(a, b, poisoned(FLOAT32, (m, n)), c, 0.25, -0.5)
    assert_product(got, a, b, c, 0.25, -0.5)


@pytest.mark.parametrize("weights", [True, False], ids=["weights", "rows"])
def test_every_value_and_every_place_of_k(weights, rng):
    """Each value at a place of its own, times one, among zeros, NaN and infinity too."""
    kinds = (FLOAT8_E5M2.numpy(), FLOAT8_E4M3.numpy())
    k, kind = 256, kinds[1 if weights else 0]
    values = np.arange(256, dtype=np.uint8).view(kind)
    many, few = np.zeros((256, k), kind), np.ones((8, k), kinds[0 if weights else 1])
    many[np.arange(256), rng.permutation(k)] = values
    zeros = np.zeros((8, 256) if weights else (256, 8), np.float32)
    got = multiply(few, many.T, poisoned(FLOAT32, zeros.shape), zeros, 1, 0.5) if weights else multiply(
        many, few.T, poisoned(FLOAT32, zeros.shape), zeros, 1, 0.5
    )  # fmt: skip
    np.testing.assert_array_equal(got if weights else got.T, np.tile(values.astype(np.float32), (8, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("types", list(zip(itertools.product(NARROW, repeat=2), RESULTS * 2, strict=False)), ids=str)
def test_types(types, rng):
    (m, n, k), ((left, right), out) = (9, 137, 528), types
    a, b = random_matrix(rng, left, (m, k)), random_matrix(rng, right, (k, n))
    assert_product(multiply(a, b, poisoned(out, (m, n)), alpha=0.25), a, b, alpha=0.25)


@pytest.mark.parametrize("out", [BFLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize(("rows", "weights"), [(BFLOAT16, FLOAT8_E4M3), (FLOAT16, FLOAT8_E5M2)], ids=str)
@pytest.mark.slow
def test_rows_of_16_bits(rows, weights, out, rng):
    a, b = random_matrix(rng, rows, (11, 784)), random_matrix(rng, weights, (784, 131))
    assert_product(multiply(a, b, poisoned(out, (11, 131))), a, b)


CONFIGS = [one for one in SPEC.configs if one.cluster_k in (1, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config).replace(" ", ","))
def test_configs(config, rng):
    m, n, k = config.tile_n + 3, 200, 2192
    a, b = random_matrix(rng, FLOAT8_E4M3, (m, k)), random_matrix(rng, FLOAT8_E4M3, (k, n))
    assert_product(multiply(a, b, poisoned(BFLOAT16, (m, n)), config=config), a, b)


#: Tiles for which rows of 16 bits have few stages, in clusters whose sums come to where slices were.
FEW_STAGES = [one for one in SPEC.configs if one.stages == one.slots and one.residents == 1 and one.cluster_k in (1, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [BFLOAT16, FLOAT16], ids=str)
@pytest.mark.parametrize("config", FEW_STAGES, ids=lambda config: str(config).replace(" ", ","))
def test_configs_for_rows_of_16_bits(config, rows, rng):
    m, n, k = config.tile_n + 3, 300, 1000
    a, b = random_matrix(rng, rows, (m, k)), random_matrix(rng, FLOAT8_E4M3, (k, n))
    assert_product(multiply(a, b, poisoned(BFLOAT16, (m, n)), config=config), a, b)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_and_batches(schedule, rng):
    a, b = random_matrix(rng, FLOAT8_E5M2, (2, 9, 784)), random_matrix(rng, FLOAT8_E4M3, (2, 784, 136))
    d, c = poisoned(FLOAT32, (2, 9, 136)), random_matrix(rng, FLOAT32, (2, 9, 136))
    got = multiply(a, b, d, c, 1, 2, schedule=schedule, seed=int(rng.integers(2**31)))
    assert_product(got, a, b, c, 1, 2)


@pytest.mark.slow
def test_an_epilogue_and_the_maximum(rng):
    a, b = random_matrix(rng, FLOAT8_E4M3, (5, 528)), laid_out(random_matrix(rng, FLOAT8_E4M3, (528, 139)), "col")
    bias, largest = rng.standard_normal(139).astype(np.float32), np.zeros((), np.float32)
    options = {"bias": bias, "epilogue": "silu", "out_dtype": "float32"}
    chosen = gm.gemm.plan(a, b, executor="vgpu", **{key: options[key] for key in ("bias", "epilogue", "out_dtype")})
    assert SPEC.name in str(chosen)
    got = gm.gemm(a, b, executor="vgpu", absmax=largest, **options)
    wide = a.astype("f8"), b.astype("f8")
    bound = 1.2 * (528 + 32) * 2.0**-24 * (np.abs(wide[0]) @ np.abs(wide[1]) + np.abs(bias))
    assert (np.abs(got - silu(wide[0] @ wide[1] + bias)) <= bound).all()
    assert largest == np.abs(got).max()
