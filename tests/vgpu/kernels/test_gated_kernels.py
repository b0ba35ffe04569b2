"""Gated activations and the absolute maximum, by every kernel that knows them, on the virtual GPU."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import dtype_named
from gemmule.dispatch.registry import REGISTRY
from gemmule.vgpu.launcher import SCHEDULES
from support.epilogue_cases import silu
from support.vgpu.kernels_left import leave_kernels

SPECS = {spec.name: spec for spec in REGISTRY if spec.gated and spec.next_kernel is None}
#: Small tiles of each kernel: other columns, or rows, are in further tiles.
SMALL = {
    "gemm_reference": {},
    "mma_sync_gemm": {"tile_m": 64, "tile_n": 128},
    "hopper_gemm": {"tile_m": 64, "tile_n": 128, "pingpong": 1, "cluster_m": 1, "stages": 6},
}


@pytest.fixture
def only(monkeypatch):
    """Leave one kernel in one config to the virtual GPU, with all checks."""
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")

    def leave(name, **fields):
        spec = SPECS[name]
        config = type(spec.default)(**spec.default.as_dict() | fields)
        leave_kernels(monkeypatch, (dataclasses.replace(spec, configs=(config,)),))

    return leave


def finish(rng, shape, storage, order="C", dtype="bfloat16", out="bfloat16", batch=(), absmax=True):
    """Compute a gated form with all that can go into one; hold result and maximum against float64."""
    m, n, k = shape
    kind, result = dtype_named(dtype).numpy(), dtype_named(out).numpy()
    # Values that TF32 holds.
    a, b = (
        rng.standard_normal(one).astype(dtype_named("bfloat16").numpy()).astype(kind)
        for one in ((*batch, m, k), (*batch, k, 2 * n))
    )
    b = np.swapaxes(np.swapaxes(b, -1, -2).copy(), -1, -2) if order == "F" else b
    factors = (b, storage)
    if storage == "apart":
        factors = (b[..., :n].copy(order="A"), b[..., n:].copy(order="A"))
    if storage == "apart, one turned":
        factors = (b[..., :n].copy(order="C"), b[..., n:].copy(order="F"))
    c = rng.standard_normal((*batch, m, n)).astype(result)
    bias, scale = rng.standard_normal(2 * n).astype(np.float32), rng.uniform(0.5, 2, (m, 1)).astype(np.float32)
    d, largest = np.full((*batch, m, n), np.nan).astype(result), np.full(1, 1e30, np.float32)
    got = gm.gemm(
        a, factors[0], c, bias=bias, gated=factors[1],
        epilogue=lambda gate, up, c, scale: scale * gm.epilogue.silu(gate) * up - c, epilogue_args={"scale": scale},
        executor="vgpu", out=d, absmax=largest if absmax else None, precision="tf32" if dtype == "float32" else None,
    )  # fmt: skip
    assert got is d
    wide, size = (f(a.astype("f8")) @ f(b.astype("f8")) + f(bias.astype("f8")) for f in (np.asarray, np.abs))
    gate, up = (wide[..., :n], wide[..., n:]) if storage != "pairs" else (wide[..., ::2], wide[..., 1::2])
    error = (k + 32) * 2.0**-24 * size.max() * 1.2
    exact = scale * silu(gate) * up - c.astype("f8")
    bound = scale * error * (np.abs(silu(gate)) + np.abs(up) + 1) + 2.0**-18 * (np.abs(exact) + np.abs(c.astype("f8")))
    rounded = dtype_named(out).unit_roundoff * np.abs(exact) * 1.01
    assert np.isfinite(d.astype("f8")).all()
    assert (np.abs(d.astype("f8") - exact) <= bound + rounded).all()
    if absmax:
        assert abs(float(largest[0]) - np.abs(exact).max()) <= bound.max()


@pytest.mark.parametrize("kernel", sorted(SMALL))
def test_ragged_forms(kernel, only, rng):
    only(kernel, **SMALL[kernel])
    # N is no multiple of a tile's columns, and that of B no multiple of two of them.
    shape = (67, 71, 39) if kernel == "gemm_reference" else (70, 72, 136)
    finish(rng, shape, "halves", order="F" if kernel == "mma_sync_gemm" else "C")


def test_ctas_of_a_cluster_share_a_form(only, rng):
    only("mma_sync_gemm", **SMALL["mma_sync_gemm"], cluster_k=3)
    finish(rng, (30, 72, 264), "halves", order="F")


@pytest.mark.parametrize(
    ("fields", "order"),
    [
        pytest.param({"tile_n": 64, "cluster_k": 2}, "F", marks=pytest.mark.slow),
        pytest.param({"tile_m": 128, "tile_n": 96, "cluster_k": 3, "stages": 3}, "F", marks=pytest.mark.slow),
        ({"tile_n": 128, "cluster_k": 4, "cluster_n": 2, "pingpong": 0, "tile_m": 128, "stages": 3}, "C"),
        ({"tile_n": 64, "split_k": 1, "cluster_n": 2, "ctas": 22}, "F"),
        pytest.param(
            {"tile_n": 128, "split_k": 1, "pingpong": 0, "tile_m": 128, "ctas": 11}, "C", marks=pytest.mark.slow
        ),
        ({"tile_m": 128, "tile_n": 48, "cluster_k": 2, "swap_ab": 1, "stages": 4}, "F"),
        (
            {
                "tile_m": 256,
                "tile_n": 40,
                "split_k": 1,
                "swap_ab": 1,
                "pingpong": 0,
                "cluster_n": 2,
                "stages": 4,
                "ctas": 22,
            },
            "C",
        ),
    ],
    ids=str,
)
def test_k_is_split(fields, order, only, rng):
    only("hopper_gemm", **SMALL["hopper_gemm"] | fields)
    finish(rng, (70, 72, 328), "halves", order=order)


@pytest.mark.parametrize(
    ("fields", "order"),
    [
        ({"tile_m": 128, "tile_n": 24, "cluster_m": 2}, "F"),
        ({"tile_m": 256, "tile_n": 56, "pingpong": 0, "stages": 4, "cluster_n": 2, "ctas": 4}, "C"),
        pytest.param({"tile_m": 128, "tile_n": 72, "ctas": 1}, "C", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_rows_are_columns(fields, order, only, rng):
    only("hopper_gemm", **SMALL["hopper_gemm"] | fields | {"swap_ab": 1})
    finish(rng, (70, 200, 136), "halves", order=order)
    # The kernel of other results is compiled anew: for one of the configs.
    pairs = order == "F"
    out = "float32" if pairs else "bfloat16"
    finish(rng, (30, 72, 72), "pairs" if pairs else "apart", order=order, out=out, batch=(2,))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", sorted(SMALL))
@pytest.mark.parametrize(("storage", "order"), [("halves", "C"), ("halves", "F"), ("pairs", "F"), ("apart", "C")])
def test_layouts(kernel, storage, order, only, rng):
    only(kernel, **SMALL[kernel])
    for dtype, out in (("bfloat16", "float32"), ("float16", "float16"), ("float32", "float32")):
        if dtype == "float32" and kernel == "hopper_gemm" and order == "C":
            continue
        finish(rng, (136, 72, 200), storage, order, dtype, out)
    finish(rng, (128, 64, 128), storage, order, batch=(3,))


def test_alternating_columns_in_rows(only, rng):
    # No copy takes every other element: the reference kernel does.
    only("gemm_reference")
    finish(rng, (20, 18, 9), "pairs", batch=(2,))
    only("mma_sync_gemm")
    with pytest.raises(gm.UnsupportedError, match=r"B has strides \(36, 2\)"):
        finish(rng, (20, 18, 9), "pairs")


def test_a_second_factor_that_lies_otherwise(only, rng):
    only("gemm_reference")
    finish(rng, (20, 18, 9), "apart, one turned")
    only("mma_sync_gemm")
    with pytest.raises(gm.UnsupportedError, match="the two B of the gated activation differ"):
        finish(rng, (20, 18, 9), "apart, one turned")


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "fields",
    [
        {"tile_n": 256, "cluster_m": 2, "pingpong": 0},
        {"tile_n": 256, "cluster_m": 1, "pingpong": 0},
        {"tile_n": 128, "cluster_n": 2, "cluster_m": 1, "pingpong": 1},
        {"tile_n": 192, "cluster_m": 1, "pingpong": 1},
        {"tile_m": 64, "tile_n": 256, "cluster_m": 1, "pingpong": 1},
        {"tile_m": 64, "tile_n": 32, "cluster_m": 1, "pingpong": 1},
    ],
    ids=str,
)
def test_h09_however_it_shares_the_work(fields, order, schedule, only, rng, monkeypatch):
    monkeypatch.setenv("GEMMULE_VGPU_SCHEDULE", schedule)
    only("hopper_gemm", **fields)
    if fields["tile_n"] // 2 % 64 and order == "C":
        with pytest.raises(gm.UnsupportedError, match="columns of each of two B must be a multiple of 64"):
            finish(rng, (150, 200, 264), "halves", order)
    else:
        finish(rng, (150, 200, 264), "halves", order)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields", [{}, {"tile_m": 256, "warps_m": 4}, {"tile_n": 256, "warps_n": 4, "stages": 4}], ids=str
)
def test_mma_sync_however_it_shares_the_work(fields, only, rng):
    only("mma_sync_gemm", **fields)
    finish(rng, (256, 128, 128), "halves")
    finish(rng, (130, 70, 72), "halves", "F", out="float32")


@pytest.mark.slow
@pytest.mark.parametrize("order", ["C", "F"])
def test_mma_sync_with_lines_that_begin_anywhere(order, only, rng):
    only("mma_sync_gemm", **SMALL["mma_sync_gemm"])
    finish(rng, (67, 71, 39), "halves", order, absmax=False)


KERNELS = [pytest.param(name, marks=() if name == "gemm_reference" else pytest.mark.slow) for name in sorted(SMALL)]


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_maximum_is_of_the_result_alone(kernel, only, rng):
    only(kernel, **SMALL[kernel])
    kind = dtype_named("bfloat16").numpy()
    a, b = (rng.uniform(1, 2, shape).astype(kind) for shape in ((70, 72), (72, 40)))
    largest = np.full((), math.nan, np.float32)

    def value(out_dtype):
        # What lies beyond the edges is 0, of which this makes the most.
        options = {"epilogue": lambda acc: -1000 / (acc * acc), "absmax": largest, "executor": "vgpu"}
        return gm.gemm(a, b, **options, out_dtype=out_dtype)

    got = value("float32")
    assert largest == np.abs(got).max()
    half = value("bfloat16")
    assert largest == np.abs(got).max()
    assert float(np.abs(half.astype("f8")).max()) != float(largest)
    a[3, 5] = math.inf
    b[5] = 0
    got = value("float32")
    assert np.isnan(got[3]).all()
    assert np.isnan(largest)


@pytest.mark.parametrize(
    "fields",
    [
        {"cluster_k": 2},
        pytest.param({"swap_ab": 1, "tile_n": 64}, marks=pytest.mark.slow),
        {"split_k": 1, "cluster_n": 2, "ctas": 24},
        pytest.param({"tile_m": 128, "pingpong": 0, "ctas": 1}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_h09_keeps_the_maximum_however_it_shares_the_work(fields, only, rng):
    only("hopper_gemm", **{"tile_m": 64, "tile_n": 64, "cluster_m": 1, "stages": 4, "pingpong": 1} | fields)
    kind = dtype_named("bfloat16").numpy()
    a, b = (rng.uniform(1, 2, shape).astype(kind) for shape in ((72, 200), (200, 88)))
    largest = np.zeros(1, np.float32)
    options = {"epilogue": lambda acc: 1000 / (acc * acc), "absmax": largest, "executor": "vgpu"}
    assert np.abs(gm.gemm(a, b, **options, out_dtype="float32")).max() == largest[0]


def test_the_maximum_of_several_launches(only, rng):
    only("hopper_gemm", **SMALL["hopper_gemm"])
    kind = dtype_named("bfloat16").numpy()
    # Neither dimension of the batch can be merged with the other.
    a = np.swapaxes(rng.uniform(1, 2, (3, 2, 72, 200)).astype(kind), 0, 1)
    # The first launch has the largest.
    a[0, 0] *= 4
    b = rng.uniform(1, 2, (2, 3, 200, 88)).astype(kind)
    largest = np.full(1, np.nan, np.float32)
    found = gm.gemm(a, b, epilogue="relu", absmax=largest, executor="vgpu", out_dtype="float32")
    assert np.abs(found).max() == largest[0]
