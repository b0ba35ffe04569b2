"""A CuTe kernel that is not of the registry: compiled, launched with a recipe, checked and counted."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gemmule.core.launch import Launch, TensorParam
from gemmule.core.spec import Buildable
from gemmule.vgpu import CheckError, Counter, Options, launch
from gemmule.vgpu.arch import virtual_arch

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")


def buildable(element):
    import cutlass
    from cutlass import cute

    from support.vgpu.tensor_core_kernel import TensorCoreProduct

    kind = {"float16": cutlass.Float16, "bfloat16": cutlass.BFloat16}[element]

    def stand_in():
        extents = tuple(cute.sym_int(divisibility=8) for _ in range(2))
        return cute.runtime.make_fake_compact_tensor(kind, extents, stride_order=(1, 0), assumed_align=16)

    return Buildable(TensorCoreProduct(kind), (stand_in(), stand_in(), stand_in()))


def recipe(m, n, k):
    from support.vgpu.tensor_core_kernel import THREADS, TILE_M, TILE_N

    def param(name, rows, cols):
        return TensorParam(name, (rows, cols), (cols,))

    params = (param("a", m, k), param("b", n, k), param("c", m, n))
    return Launch((m // TILE_M, n // TILE_N, 1), (THREADS, 1, 1), params, shared_bytes=64 * 40 * 2 * 2 + 64 * 72 * 2)


def arrays(rng, m, n, k, dtype):
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (n, k)))
    return {"a": a, "b": b, "c": np.full((m, n), np.nan).astype(dtype)}


@pytest.fixture(scope="module")
def compiled():
    from gemmule.compiler.compile import compile_ptx

    return compile_ptx(buildable("float16"), virtual_arch())


@pytest.mark.parametrize("schedule", ["late", "eager", "random"])
@pytest.mark.parametrize("mma", ["exact", "hopper"])
def test_a_product_on_tensor_cores(rng, compiled, mma, schedule):
    for instruction in ("cp.async", "ldmatrix.sync", "mma.sync", "stmatrix.sync"):
        assert instruction in compiled
    given = arrays(rng, 128, 192, 96, np.float16)
    counter = Counter()
    launch(
        compiled,
        recipe(128, 192, 96),
        given,
        options=Options(mma=mma, schedule=schedule, checks=True),
        observers=(counter,),
    )
    expected = given["a"].astype(np.float64) @ given["b"].astype(np.float64).T
    np.testing.assert_allclose(given["c"].astype(np.float64), expected, rtol=2**-10, atol=2e-3)
    assert counter.counts.flop == 2 * 128 * 192 * 96
    loads = [row for row in counter.counts.instructions if row.text.startswith("ldmatrix")]
    assert loads
    assert all(row.wavefronts == row.ideal_wavefronts for row in loads)


def test_a_callable_is_compiled_when_it_is_launched(rng):
    given = arrays(rng, 64, 64, 64, ml_dtypes.bfloat16)
    launch(buildable("bfloat16"), recipe(64, 64, 64), given, options=Options(checks=True))
    expected = given["a"].astype(np.float64) @ given["b"].astype(np.float64).T
    np.testing.assert_allclose(given["c"].astype(np.float64), expected, rtol=2**-7, atol=1e-2)


def test_a_missing_barrier_in_it_is_found(rng, compiled):
    lines = compiled.split("\n")
    barriers = [number for number, line in enumerate(lines) if line.strip().startswith("bar.sync")]
    assert len(barriers) >= 3
    for number in barriers:
        without = [*lines[:number], "membar.cta;", *lines[number + 1 :]]
        with pytest.raises(CheckError, match="race"):
            launch(
                "\n".join(without),
                recipe(64, 64, 96),
                arrays(rng, 64, 64, 96, np.float16),
                options=Options(checks=True),
            )
