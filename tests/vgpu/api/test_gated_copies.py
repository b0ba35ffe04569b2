"""Gated epilogues of operands that are copied first, by the public functions on the virtual GPU, checks on."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import dtype_named
from support.kernel_kinds import laid_out
from support.oracle import poisoned, random_matrix

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

UPCAST, REPACKED, K_MAJOR = "hopper_gemm_upcast", "hopper_gemm_repacked", "hopper_gemm_k_major"
#: Types of A, B and the result, the kernel that copies, and the options of the call.
CASES = {
    "bfloat16": ("bfloat16", "bfloat16", "bfloat16", REPACKED, {}),
    "int8-float16": ("int8", "float16", "float16", UPCAST, {}),
    "float16-int8": ("float16", "int8", "float32", UPCAST, {}),
    "bfloat16-float16": ("bfloat16", "float16", "float32", UPCAST, {}),
    "float32-bfloat16": ("float32", "bfloat16", "float32", UPCAST, {}),
    "float32": ("float32", "float32", "float32", UPCAST, {}),
    "float64": ("float64", "float64", "float64", UPCAST, {}),
    "tf32": ("float32", "float32", "float32", UPCAST, {"precision": "tf32"}),
    "tf32-k-major": ("float32", "float32", "float32", K_MAJOR, {"precision": "tf32"}),
    "float8": ("float8_e4m3fn", "float8_e4m3fn", "bfloat16", K_MAJOR, {"precision": "float8"}),
    "float8-repacked": ("float8_e4m3fn", "float8_e4m3fn", "bfloat16", REPACKED, {"precision": "float8"}),
}


@pytest.fixture(autouse=True)
def _checked(monkeypatch):
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")


def matrix(rng, name, shape, way, unit=1):
    values = random_matrix(rng, dtype_named(name), shape)
    if name == "float32":
        # Values that TF32 holds.
        values = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    return laid_out(rng, values, way, unit)


def silu(x):
    return x / (1 + np.exp(-x))


def hold(rng, case, shape, ways, storage, batch=((), ()), *, named=True):
    """Run a gated form with C and a bias in the kernel that copies; hold the result against a wider product."""
    first, second, out, name, options = CASES[case]
    (m, n, k), unit = shape, 16 if name == K_MAJOR else 1
    a = matrix(rng, first, (*batch[0], m, k), ways[0], unit)
    if storage in ("halves", "pairs"):
        b, gated = matrix(rng, second, (*batch[1], k, 2 * n), ways[1], unit), storage
        gate, up = (b[..., :n], b[..., n:]) if storage == "halves" else (b[..., ::2], b[..., 1::2])
    else:
        gate, up = (matrix(rng, second, (*batch[1], k, n), way, unit) for way in (ways[1], ways[-1]))
        b, gated = gate, up
    result = (*(batch[0] or batch[1]), m, n)
    c, bias = matrix(rng, out, result, "r"), matrix(rng, "float32", (2 * n,), "r")
    found, largest = poisoned(dtype_named(out), result), np.full(1, np.nan, np.float32)
    absmax = {} if out == "float64" else {"absmax": largest}
    plan = gm.gemm.plan(
        a, b, c, bias=bias, gated=gated, alpha=2.0**-8, out=found, executor="vgpu", chip="h200",
        epilogue=lambda gate, up, c: gm.epilogue.silu(gate) * up + c, **absmax, **options,
        **({"kernel": name} if named else {}),
    )  # fmt: skip
    assert plan.kernel == name or not named
    plan.execute()
    wide = [x.astype(np.longdouble) for x in (a, gate, up, bias, c)]
    parts = (wide[3][::2], wide[3][1::2]) if storage == "pairs" else (wide[3][:n], wide[3][n:])
    sums = [2.0**-8 * (wide[0] @ factor) + part for factor, part in zip(wide[1:3], parts, strict=True)]
    sizes = [2.0**-8 * np.abs(wide[0]) @ np.abs(factor) + 3 for factor in wide[1:3]]
    exact = silu(sums[0]) * sums[1] + wide[4]
    unit = 2.0**-53 if out == "float64" else 2.0**-13 if options.get("precision") == "float8" else 2.0**-24
    bound = 8 * (k + 6) * unit * (sizes[0] * sizes[1] + np.abs(exact) + np.abs(wide[4])) + 2.0**-17 * np.abs(
        exact * (out != "float64")
    )
    assert np.isfinite(found.astype("f8")).all()
    assert (np.abs(found - exact) <= bound + 1.01 * dtype_named(out).unit_roundoff * np.abs(exact)).all()
    if absmax:
        assert abs(largest[0] - np.abs(exact).max()) <= bound.max()


#: Mixed types that other tests here copy, or that are converted as others are.
OTHER_MIXED = ("float16-int8", "bfloat16-float16", "float32-bfloat16")


@pytest.mark.combinations(1)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(one, marks=[pytest.mark.slow] if one in OTHER_MIXED else [])
        for one in CASES
        if one not in ("tf32-k-major", "float8", "float8-repacked")
    ],
)
@pytest.mark.parametrize(("ways", "storage"), [("sr", "halves"), ("cr", "pairs"), ("rsr", "array")])
def test_copied_operands(case, ways, storage, rng):
    hold(rng, case, (70, 41, 40), ways, storage)


@pytest.mark.parametrize(
    ("case", "ways", "storage"),
    [
        ("tf32-k-major", "rr", "halves"),
        pytest.param("tf32-k-major", "cr", "array", marks=pytest.mark.slow),
        ("float8", "rr", "halves"),
        pytest.param("float8", "cr", "array", marks=pytest.mark.slow),
        pytest.param("float8-repacked", "rr", "pairs", marks=pytest.mark.slow),
        ("float8-repacked", "sc", "halves"),
        ("bfloat16", "rcr", "array"),
    ],
    ids=str,
)
def test_copies_that_change_the_major(case, ways, storage, rng):
    hold(rng, case, (70, 48, 64), ways, storage)


@pytest.mark.combinations(1)
@pytest.mark.parametrize("case", ["bfloat16", "int8-float16", "float32-bfloat16"])
@pytest.mark.parametrize("batch", [((3,), (3,)), ((2,), ()), ((), (2,)), ((2, 3), (2, 3))], ids=str)
def test_batches(case, batch, rng):
    hold(rng, case, (33, 24, 17), "rs", "halves", batch)


#: Of each kernel that copies, and of mixed types, one; of others K = 0 changes what is copied as it does here.
OF_NOTHING = ("bfloat16", "int8-float16", "float64", "float8")


@pytest.mark.parametrize(
    "case", [pytest.param(one, marks=[] if one in OF_NOTHING else [pytest.mark.slow]) for one in CASES]
)
def test_products_of_nothing(case, rng):
    hold(rng, case, (33, 24, 0), "sr" if CASES[case][3] != K_MAJOR else "rr", "pairs", named=False)
