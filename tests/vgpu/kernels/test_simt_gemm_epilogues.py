"""Epilogues of simt_gemm on the virtual GPU: of every kind, of clusters, of nothing, and absolute maxima."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import FLOAT32
from gemmule.kernels.simt.config import SimtConfig
from gemmule.kernels.simt.gemm.spec import SPEC
from support.epilogue_cases import CASES
from support.oracle import poisoned
from support.vgpu.epilogues import finish
from support.vgpu.kernels_left import leave_kernels

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SMALL = SimtConfig(tile_m=32, tile_n=32, warps_m=2, warps_n=1)
#: Four groups of warps share a tile along K.
GROUPS = SimtConfig(tile_m=32, tile_n=32, tile_k=32, warps_m=1, warps_n=1, stages=2, warps_k=4)


@pytest.fixture
def only(monkeypatch):
    """Leave this kernel in one config to the virtual GPU, with all checks."""
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")

    def leave(config=SMALL):
        spec = dataclasses.replace(SPEC, configs=(config,))
        leave_kernels(monkeypatch, (spec,))

    return leave


#: Cases of epilogues, extents, the order of D, the types of operands and D.
EPILOGUES = [
    ("named_c", (37, 45, 20), "C", "float32"),
    ("row_bias_silu", (36, 44, 20), "F", "float32"),
    pytest.param("bias_gelu", (64, 64, 16), "C", "float32", marks=pytest.mark.slow),
    pytest.param("two_matrices", (33, 36, 9), "C", "float32", marks=pytest.mark.slow),
    ("beta_c_gelu_tanh", (37, 44, 20), "C", "bfloat16"),
    ("relu", (37, 45, 20), "C", "float8_e4m3fn"),
    pytest.param("bias_gelu", (37, 45, 20), "F", "float16", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "shape", "order", "out"), EPILOGUES)
def test_epilogues(name, shape, order, out, only, rng):
    only()
    finish(CASES[name], rng, shape=shape, dtype="float32", out=out, order=order)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES))
def test_epilogues_of_every_kind(name, only, rng):
    only()
    finish(CASES[name], rng, shape=(37, 45, 20), dtype="float32", out="float32")


@pytest.mark.parametrize(
    ("tile", "ctas"),
    [(SMALL, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((SMALL, 4), (SMALL, 16), (GROUPS, 3)))],
)
def test_epilogues_of_clusters_in_a_batch(tile, ctas, only, rng):
    only(dataclasses.replace(tile, cluster_k=ctas))
    finish(CASES["named_c"], rng, shape=(37, 44, 70), dtype="float32", out="float32", batch=(3,))


@pytest.mark.parametrize(
    ("ctas", "k", "alpha"),
    [(1, 0, 1.0), (2, 20, 0.0)] + [pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 20, 0.0), (2, 0, 1.0))],
)
def test_an_epilogue_of_nothing_and_its_absolute_maximum(ctas, k, alpha, only, rng):
    only(dataclasses.replace(SMALL, cluster_k=ctas))
    a, b = np.full((33, k), np.nan, np.float32), np.full((k, 37), np.nan, np.float32)
    bias = rng.standard_normal(37).astype(np.float32)
    bias[36], largest = -9.0, np.full(1, np.nan, np.float32)
    got = gm.gemm(
        a, b, alpha=alpha, bias=bias, epilogue=lambda acc: -acc, executor="vgpu", out=poisoned(FLOAT32, (33, 37)),
        absmax=largest,
    )  # fmt: skip
    np.testing.assert_array_equal(got, np.broadcast_to(-bias, (33, 37)))
    assert largest[0] == 9


@pytest.mark.parametrize("ctas", [1, 2])
def test_the_absolute_maximum_and_nan(ctas, only, rng):
    only(dataclasses.replace(SMALL, cluster_k=ctas))
    # Beyond the edges the products are 0, and the function of them is largest.
    a, b = (rng.uniform(1, 2, extents).astype(np.float32) for extents in ((37, 20), (20, 45)))
    largest = np.zeros(1, np.float32)

    def inverse(acc):
        return 1 / (acc + 1)

    got = gm.gemm(a, b, epilogue=inverse, executor="vgpu", absmax=largest)
    np.testing.assert_allclose(got, 1 / (a.astype("f8") @ b + 1), rtol=1e-5)
    assert largest[0] == np.abs(got).max()
    a[3, 5] = np.nan
    got = gm.gemm(a, b, epilogue=inverse, executor="vgpu", absmax=largest)
    assert np.isnan(got[3]).all()
    assert not np.isnan(np.delete(got, 3, axis=0)).any()
    assert np.isnan(largest[0])
