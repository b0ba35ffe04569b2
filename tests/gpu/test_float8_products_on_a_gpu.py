"""Products of 8-bit floats on the hardware: widened and exact, or with sums of 13 bits; every type of result."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, FLOAT32, Precision
from gemmule.dispatch.registry import REGISTRY
from gemmule.runtime.device import get_device
from support.float8_bounds import SEEN, assert_promoted
from support.gpu.kernel_products import multiply
from support.oracle import assert_product, poisoned, random_matrix

WIDENED = next(spec for spec in REGISTRY if spec.name == "hopper_gemm_upcast")
NATIVE = next(spec for spec in REGISTRY if spec.name == "hopper_gemm")
PACKED = next(spec for spec in REGISTRY if spec.name == "hopper_gemm_repacked")
NARROW = (FLOAT8_E4M3, FLOAT8_E5M2)
RESULTS = (FLOAT32, BFLOAT16, FLOAT16, *NARROW)
LAYOUTS = list(itertools.product(("row", "col"), repeat=2))
#: Those that take 8-bit floats.
CONFIGS = [config for config in NATIVE.configs if config.mma_tiles_m == 1 and config.tile_n <= 192]


@pytest.fixture(autouse=True)
def _hopper():
    if get_device().capability != (9, 0):
        pytest.skip("needs compute capability 9.0")


@pytest.mark.parametrize("out", RESULTS, ids=str)
@pytest.mark.parametrize("types", list(itertools.product(NARROW, repeat=2)), ids=str)
@pytest.mark.parametrize("shape", [(256, 192, 512), (131, 272, 1001), (1, 16, 4096)], ids=str)
def test_widened_results(shape, types, out, rng):
    m, n, k = shape
    a, b, c = (
        random_matrix(rng, kind, sides) for kind, sides in zip((*types, out), ((m, k), (k, n), (m, n)), strict=True)
    )
    assert_product(multiply(WIDENED, a, b, poisoned(out, (m, n)), alpha=0.25), a, b, alpha=0.25)
    got = multiply(WIDENED, a, b, poisoned(out, (m, n)), c=c, alpha=0.25, beta=-0.5)
    assert_product(got, a, b, c, 0.25, -0.5)


@pytest.mark.parametrize("out", [FLOAT32, *NARROW], ids=str)
def test_widened_results_of_any_pitch(out, rng):
    m, n, k = 131, 265, 1001
    a, b = random_matrix(rng, FLOAT8_E4M3, (m, k)), random_matrix(rng, FLOAT8_E4M3, (k, n))
    c = random_matrix(rng, out, (m, n))
    got = multiply(WIDENED, a, b, poisoned(out, (m, n)), c=c, alpha=0.25, beta=0.5, offset=1)
    assert_product(got, a, b, c, 0.25, 0.5)


@pytest.mark.parametrize("offset", [0, 1, 7])
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("shape", [(9, 13, 1), (127, 265, 1001), (1001, 1303, 711)], ids=str)
def test_widened_odd_extents_and_offsets(shape, layout, offset, rng):
    m, n, k = shape
    a, b = random_matrix(rng, FLOAT8_E4M3, (m, k)), random_matrix(rng, FLOAT8_E5M2, (k, n))
    got = multiply(WIDENED, a, b, poisoned(BFLOAT16, (m, n)), kinds=(*layout, "row"), offset=offset)
    assert_product(got, a, b)


@pytest.mark.parametrize("batch", [(3,), (2, 4)], ids=str)
def test_widened_batches(batch, rng):
    m, n, k = 71, 136, 101
    a, b = random_matrix(rng, FLOAT8_E4M3, (*batch, m, k)), random_matrix(rng, FLOAT8_E4M3, (*batch, k, n))
    got = multiply(WIDENED, a, b, poisoned(FLOAT16, (*batch, m, n)), kinds=("row", "apart", "row"), batch=batch)
    assert_product(got, a, b)


def test_one_of_two_is_widened(rng):
    a, b = random_matrix(rng, BFLOAT16, (264, 512)), random_matrix(rng, FLOAT8_E4M3, (512, 136))
    assert_product(multiply(WIDENED, a, b, poisoned(BFLOAT16, (264, 136))), a, b)


@pytest.mark.parametrize("out", RESULTS, ids=str)
@pytest.mark.parametrize("types", list(itertools.product(NARROW, repeat=2)), ids=str)
def test_promoted_results(types, out, rng):
    m, n, k = 390, 272, 1168
    a, b, c = (
        random_matrix(rng, kind, sides) for kind, sides in zip((*types, out), ((m, k), (k, n), (m, n)), strict=True)
    )
    options = {"kinds": ("row", "col", "row"), "alpha": 0.125, "precision": Precision.FLOAT8}
    assert_promoted(multiply(NATIVE, a, b, poisoned(out, (m, n)), **options), a, b, alpha=0.125)
    got = multiply(NATIVE, a, b, poisoned(out, (m, n)), c=c, beta=0.5, **options)
    assert_promoted(got, a, b, c, 0.125, 0.5)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config).replace(" ", ","))
def test_promoted_configs(config, rng):
    m, n, k = 520, 400, 2064
    a, b = random_matrix(rng, FLOAT8_E4M3, (m, k)), random_matrix(rng, FLOAT8_E4M3, (k, n))
    for _ in range(3):
        got = multiply(NATIVE, a, b, poisoned(BFLOAT16, (m, n)), kinds=("row", "col", "row"), config=config,
                       precision=Precision.FLOAT8)  # fmt: skip
        assert_promoted(got, a, b)


def test_sums_of_positive_numbers_are_promoted(rng):
    """What is cut adds up: sums of all of K would be far beyond what is allowed."""
    a, b = (rng.random(sides).astype(FLOAT8_E4M3.numpy()) for sides in ((256, 8192), (8192, 192)))
    got = multiply(NATIVE, a, b, poisoned(FLOAT32, (256, 192)), kinds=("row", "col", "row"), precision=Precision.FLOAT8)
    assert assert_promoted(got, a, b) > SEEN / 16


@pytest.mark.parametrize("kinds", [("row", "col", "col"), ("whole", "col", "apart")], ids="-".join)
def test_promoted_layouts(kinds, rng):
    m, n, k = 272, 144, 528
    a, b = random_matrix(rng, FLOAT8_E5M2, (m, k)), random_matrix(rng, FLOAT8_E4M3, (k, n))
    got = multiply(NATIVE, a, b, poisoned(BFLOAT16, (m, n)), kinds=kinds, precision=Precision.FLOAT8)
    assert_promoted(got, a, b)


@pytest.mark.parametrize("k", [1001, 4095])
def test_odd_lines_are_packed_first(k, rng):
    a, b = random_matrix(rng, FLOAT8_E4M3, (260, k)), random_matrix(rng, FLOAT8_E5M2, (k, 136))
    got = multiply(
        PACKED, a, b, poisoned(BFLOAT16, (260, 136)), kinds=("row", "col", "row"), precision=Precision.FLOAT8
    )
    assert_promoted(got, a, b)


@pytest.mark.parametrize(("kind", "out"), [(FLOAT16, FLOAT8_E4M3), (BFLOAT16, FLOAT8_E5M2)], ids=str)
@pytest.mark.parametrize(
    "config",
    [config for config in NATIVE.configs if not config.swap_ab],
    ids=lambda config: str(config).replace(" ", ","),
)
def test_8_bit_results_of_16_bit_products(config, kind, out, rng):
    a, b, c = (random_matrix(rng, x, sides) for x, sides in ((kind, (390, 520)), (kind, (520, 272)), (out, (390, 272))))
    got = multiply(NATIVE, a, b, poisoned(out, (390, 272)), c=c, alpha=0.25, beta=0.5, config=config)
    assert_product(got, a, b, c, 0.25, 0.5)


def test_small_integers_are_exact(rng):
    a, b = (rng.integers(-3, 4, sides).astype(FLOAT8_E4M3.numpy()) for sides in ((261, 1040), (1040, 144)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    kinds = ("row", "col", "row")
    for spec, precision in ((WIDENED, Precision.IEEE), (NATIVE, Precision.FLOAT8)):
        got = multiply(spec, a, b, poisoned(FLOAT32, (261, 144)), kinds=kinds, precision=precision)
        np.testing.assert_array_equal(got, exact)


def test_the_same_bits_every_time(rng):
    a, b = random_matrix(rng, FLOAT8_E4M3, (1030, 2048)), random_matrix(rng, FLOAT8_E4M3, (2048, 776))
    options = {"kinds": ("row", "col", "row"), "precision": Precision.FLOAT8}
    first, *others = (multiply(NATIVE, a, b, poisoned(FLOAT32, (1030, 776)), **options) for _ in range(4))
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint32), other.view(np.uint32))


def test_sums_are_those_of_the_model(rng):
    """The virtual GPU's model of sums of 13 bits gives the hardware's bits."""
    from gemmule.vgpu.mma.warpgroup import multiply as model

    a, b = random_matrix(rng, FLOAT8_E4M3, (64, 512)), random_matrix(rng, FLOAT8_E5M2, (512, 64))
    got = multiply(NATIVE, a, b, poisoned(FLOAT32, (64, 64)), kinds=("row", "col", "row"), precision=Precision.FLOAT8)
    total = np.zeros((1, 64, 64), np.float32)
    wide = [np.ascontiguousarray(x.astype(np.float64)[None]) for x in (a, b)]
    for slice_k in range(0, 512, 128):
        part = np.zeros_like(total)
        for k in range(slice_k, slice_k + 128, 32):
            part = model(
                wide[0][:, :, k : k + 32].copy(), wide[1][:, k : k + 32].copy(), part, "e4m3", "e5m2", "f32", "hopper"
            )
        total += part
    np.testing.assert_array_equal(got, total[0])
