"""float32 operands that are transposed or repacked first, on the virtual GPU: extents that no copy divides."""

from __future__ import annotations

import pytest

from gemmule.core.dtype import FLOAT32
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.vgpu import Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.execute import run_kernel
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, problem_of

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SPECS = {spec.name: spec for spec in REGISTRY}


@pytest.mark.parametrize(
    ("name", "layout", "launches"),
    [
        ("simt_gemm_mn_major", ("row", "col"), 3),
        ("simt_gemm_mn_major", ("row", "row"), 3),
        pytest.param("simt_gemm_mn_major", ("col", "col"), 3, marks=pytest.mark.slow),
        ("hopper_gemm_repacked", ("col", "row"), 2),
    ],
)
def test_prepared_operands_are_copied_by_16_bytes(name, layout, launches, rng):
    """Padded lines are: columns beyond an edge are read, and written nowhere."""
    a, b, c = (random_matrix(rng, FLOAT32, shape) for shape in ((35, 21), (21, 37), (35, 37)))
    moved = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
    d = poisoned(FLOAT32, (35, 37))
    problem = problem_of(*moved, d, c, 2.0, -1.0)
    choice = Choice(SPECS[name], SPECS[name].default)
    assert SPECS[name].why_not(problem, virtual_arch(), choice.config) is None
    chain, _ = choice.launches(problem)
    assert len(chain) == launches
    last = chain[-1]
    types = dict(last.spec.signature(last.problem, last.config))
    assert last.spec.name == "simt_gemm"
    assert [types[key] for key in ("a_major", "a_copies", "b_major", "b_copies")] == ["m", "16", "n", "16"]
    run_kernel(problem, choice, {"a": moved[0], "b": moved[1], "c": c, "d": d}, Options(checks=True))
    assert_product(d, a, b, c, 2.0, -1.0)
