"""The upcast of hopper_gemm_upcast on the virtual GPU, all checks on: values, row strides, mixed types, batches."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import gemmule as gm
from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16
from gemmule.kernels.hopper.gemm_upcast.spec import SPEC
from gemmule.vgpu import Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.launcher import launch
from support.oracle import random_matrix
from support.vgpu.kernel_products import laid_out, problem_of, seen

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")


def widen(a, b, d):
    """Widen what must be widened; return what is multiplied then, by operand."""
    problem = problem_of(a, b, d)
    assert SPEC.why_not(problem, virtual_arch(), SPEC.default) is None
    recipe, then = SPEC.launch(problem, SPEC.default), SPEC.next_kernel(problem, SPEC.default)
    artifact = artifact_for(SPEC, SPEC.default, SPEC.signature(problem, SPEC.default), virtual_arch())
    artifact.check_launch(recipe)
    wide = then.problem.a.dtype.numpy()
    spaces = {name: np.full(size // 2, 77, wide) for name, size in then.workspaces.items()}
    launch(artifact, recipe, {"a": a, "b": b, **spaces}, options=Options(checks=True))
    operands = then.problem.operands()
    return {name.split()[1]: seen(operands[name.split()[1]], space, problem.batch) for name, space in spaces.items()}


@pytest.mark.parametrize("out", [FLOAT16, pytest.param(BFLOAT16, marks=pytest.mark.slow)], ids=str)
def test_every_value(out):
    """Subnormals, infinities, NaN and both zeros too."""
    every = np.arange(256, dtype=np.uint8)
    a = every.reshape(2, 128).view(FLOAT8_E4M3.numpy())
    b = every.reshape(128, 2).view(FLOAT8_E5M2.numpy())
    found = widen(a, b, np.zeros((2, 2), out.numpy()))
    for name, narrow in (("a", a), ("b", b)):
        wide, expected = found[name], narrow.astype(np.float32)
        assert wide.dtype == out.numpy()
        np.testing.assert_array_equal(wide.astype(np.float32), expected)
        np.testing.assert_array_equal(np.signbit(wide[expected == 0]), np.signbit(expected[expected == 0]))
        assert np.isnan(expected).any()
        assert ml_dtypes.finfo(narrow.dtype).smallest_subnormal in wide.astype(np.float32)


@pytest.mark.parametrize("offset", [0, 7])
@pytest.mark.parametrize("kinds", list(itertools.product(("row", "col"), repeat=2)), ids="-".join)
@pytest.mark.parametrize("shape", [(1, 1, 1), (33, 31, 65), (64, 48, 80)], ids=str)
def test_every_element_is_where_the_product_looks_for_it(shape, kinds, offset, rng):
    m, n, k = shape
    a, b = random_matrix(rng, FLOAT8_E4M3, (m, k)), random_matrix(rng, FLOAT8_E5M2, (k, n))
    moved = [laid_out(x, kind, offset) for x, kind in zip((a, b), kinds, strict=True)]
    found = widen(*moved, np.zeros((m, n), np.float16))
    for name, x in (("a", a), ("b", b)):
        np.testing.assert_array_equal(found[name], x.astype(np.float16))


@pytest.mark.parametrize("step", [2, -3])
@pytest.mark.parametrize("other", [FLOAT8_E5M2, FLOAT16], ids=str)
def test_operands_without_contiguous_lines(other, step, rng):
    m, n, k = 33, 31, 65
    a = random_matrix(rng, FLOAT8_E4M3, (3 * m, 3 * k))[::step, ::step][:m, :k]
    b = random_matrix(rng, other, (k, n))
    found = widen(a, b, np.zeros((m, n), np.float16))
    for name, x in (("a", a), ("b", b)):
        np.testing.assert_array_equal(found.get(name, x), x.astype(np.float16))
    plan = gm.matmul.plan(a, b, out_dtype="float16", executor="vgpu")
    assert plan.kernel == "hopper_gemm_upcast"
    wide = a.astype(np.float64), b.astype(np.float64)
    bound = 2**-10 * (np.abs(wide[0]) @ np.abs(wide[1]))
    assert (np.abs(plan.execute().astype(np.float64) - wide[0] @ wide[1]) <= bound).all()


@pytest.mark.slow
def test_one_of_two(rng):
    a, b = random_matrix(rng, BFLOAT16, (24, 64)), random_matrix(rng, FLOAT8_E4M3, (64, 40))
    found = widen(laid_out(a, "row"), b, np.zeros((24, 40), BFLOAT16.numpy()))
    assert list(found) == ["b"]
    np.testing.assert_array_equal(found["b"].astype(np.float32), b.astype(np.float32))


def test_batches(rng):
    a, b = random_matrix(rng, FLOAT8_E4M3, (3, 7, 19)), random_matrix(rng, FLOAT8_E5M2, (3, 19, 11))
    found = widen(a, b, np.zeros((3, 7, 11), np.float16))
    for name, x in (("a", a), ("b", b)):
        np.testing.assert_array_equal(found[name].view(np.uint16), x.astype(np.float16).view(np.uint16))
