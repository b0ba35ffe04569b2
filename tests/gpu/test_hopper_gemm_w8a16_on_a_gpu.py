"""Few rows by 8-bit weights, on the hardware: every value, every config, ragged extents, C, batches, the same bits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, FLOAT32
from gemmule.dispatch.registry import REGISTRY
from gemmule.runtime.device import get_device
from support.gpu.kernel_products import multiply
from support.oracle import assert_product, poisoned, random_matrix

SPEC = next(spec for spec in REGISTRY if spec.name == "hopper_gemm_w8a16")
NARROW, RESULTS = (FLOAT8_E4M3, FLOAT8_E5M2), (FLOAT32, BFLOAT16, FLOAT16)
#: Pitches of A, and of B as lines along K, that may be longer than K.
KINDS = ("row", "col", "row")


@pytest.fixture(autouse=True)
def _hopper():
    if get_device().capability != (9, 0):
        pytest.skip("needs compute capability 9.0")


@pytest.mark.parametrize("config", SPEC.configs, ids=lambda config: str(config).replace(" ", ","))
def test_configs(config, rng):
    for m, n, k in ((1, 200, 1040), (7, 129, 1152), (70, 333, 2064), (130, 128, 2048)):
        a, b = random_matrix(rng, FLOAT8_E4M3, (m, k)), random_matrix(rng, FLOAT8_E4M3, (k, n))
        got = multiply(SPEC, a, b, poisoned(BFLOAT16, (m, n)), kinds=KINDS, config=config)
        assert_product(got, a, b)


@pytest.mark.parametrize("types", list(zip(itertools.product(NARROW, repeat=2), RESULTS * 2, strict=False)), ids=str)
def test_types_and_c(types, rng):
    (m, n, k), (kinds, out) = (19, 267, 1168), types
    a, b, c = (random_matrix(rng, x, s) for x, s in zip((*kinds, out), ((m, k), (k, n), (m, n)), strict=True))
    got = multiply(SPEC, a, b, poisoned(out, (m, n)), kinds=(*KINDS[:2], "padded"), c=c, alpha=0.25, beta=-0.5)
    assert_product(got, a, b, c, 0.25, -0.5)


@pytest.mark.parametrize("shape", [(9, 137, 1001), (64, 520, 4096), (130, 300, 1160)], ids=str)
@pytest.mark.parametrize("rows", [BFLOAT16, FLOAT16], ids=str)
def test_rows_of_16_bits(rows, shape, rng):
    m, n, k = shape
    a, b = random_matrix(rng, rows, (m, -(-k // 16) * 16))[:, :k], random_matrix(rng, FLOAT8_E5M2, (k, n))
    a, b = (np.pad(x, sides) for x, sides in ((a, ((0, 0), (0, -k % 16))), (b, ((0, -k % 16), (0, 0)))))
    got = multiply(SPEC, a, b, poisoned(rows, (m, n)), kinds=KINDS)
    assert_product(got, a, b)


@pytest.mark.parametrize("config", [one for one in SPEC.configs if one.stages == one.slots and one.residents == 1],
                         ids=lambda config: str(config).replace(" ", ","))  # fmt: skip
def test_configs_for_rows_of_16_bits(config, rng):
    for m, n, k in ((7, 129, 1152), (131, 333, 2064)):
        a, b = random_matrix(rng, BFLOAT16, (m, k)), random_matrix(rng, FLOAT8_E4M3, (k, n))
        got = multiply(SPEC, a, b, poisoned(BFLOAT16, (m, n)), kinds=KINDS, config=config)
        assert_product(got, a, b)


def every_value(kind):
    return np.arange(256, dtype=np.uint8).view(kind.numpy())


@pytest.mark.parametrize("kind", NARROW, ids=str)
@pytest.mark.parametrize("weights", [True, False], ids=["weights", "rows"])
def test_every_value(weights, kind, rng):
    """Each value at a place of its own, times one, among zeros; and what is no number where there is one."""
    k = 256
    values = every_value(kind).astype(np.float32)
    place = rng.permutation(k)
    many = np.zeros((256, k), kind.numpy())
    many[np.arange(256), place] = every_value(kind)
    few = np.ones((8, k), kind.numpy())
    a, b = (few, many.T) if weights else (many[:128], few.T)
    got = multiply(SPEC, a, b, poisoned(FLOAT32, (len(a), b.shape[1])), kinds=KINDS)
    expected = np.tile(values, (8, 1)) if weights else np.tile(values[:128, None], (1, 8))
    np.testing.assert_array_equal(got, expected)
    if not weights:
        got = multiply(SPEC, many[128:], b, poisoned(FLOAT32, (128, 8)), kinds=KINDS)
        np.testing.assert_array_equal(got, np.tile(values[128:, None], (1, 8)))


def test_every_place_of_k(rng):
    """One element of a line at a time: each meets the one of the other operand at the same place."""
    k = 272
    a = np.eye(128, k, 3, np.float32).astype(FLOAT8_E4M3.numpy())
    b = random_matrix(rng, FLOAT8_E5M2, (k, 136))
    got = multiply(SPEC, a, b, poisoned(FLOAT32, (128, 136)), kinds=KINDS)
    np.testing.assert_array_equal(got, b[3:131].astype(np.float32))


def test_batches():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    a = torch.randn(3, 5, 400, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(3, 136, 400, device="cuda").to(torch.float8_e5m2)
    assert SPEC.name in str(gm.gemm.plan(a, b.mT, out_dtype=torch.float16))
    got = gm.gemm(a, b.mT, out_dtype=torch.float16)
    exact = a.double() @ b.double().mT
    assert ((got.double() - exact).abs() <= exact.abs() * 2**-10 + 1e-4).all()


@pytest.mark.parametrize("cluster_k", [1, 3, 8])
def test_the_same_bits_every_time(cluster_k, rng):
    config = next(one for one in SPEC.configs if one.cluster_k == cluster_k)
    a, b = random_matrix(rng, FLOAT8_E4M3, (16, 4096)), random_matrix(rng, FLOAT8_E4M3, (4096, 2048))
    first, *others = (multiply(SPEC, a, b, poisoned(FLOAT32, (16, 2048)), kinds=KINDS, config=config) for _ in range(4))
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize("shape", [(1, 4096, 4096), (4, 28672, 8192), (64, 4096, 14336), (200, 14336, 4096)], ids=str)
def test_the_same_bits_in_many_launches(shape):
    """Weights of a model's size, as chosen, at once and one by one: every element of every launch is right."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    m, n, k = shape
    a, b = (torch.randn(x, k, device="cuda").to(torch.float8_e4m3fn) for x in (m, n))
    assert SPEC.name in str(gm.gemm.plan(a, b.T, out_dtype=torch.float32))
    exact, size = a.double() @ b.double().T, a.double().abs() @ b.double().abs().T
    results = [torch.full((m, n), float("nan"), device="cuda") for _ in range(4)]
    wrong = torch.zeros((), device="cuda", dtype=torch.int64)
    for turn in range(100):
        for result in results:
            gm.gemm(a, b.T, out=result)
            if turn % 2:
                torch.cuda.synchronize()
        for result in results:
            wrong += ((result.double() - exact).abs() <= 1e-5 * size).logical_not().sum()
            result.fill_(float("nan"))
    assert wrong.item() == 0
