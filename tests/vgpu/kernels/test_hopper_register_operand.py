"""TF32 products by wgmma with an MN-major A in registers, on the virtual GPU with all checks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.core.dtype import FLOAT32, Precision
from gemmule.core.spec import Choice
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.vgpu import Options
from gemmule.vgpu.execute import run_kernel
from support.oracle import poisoned
from support.vgpu.kernel_products import laid_out, problem_of

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SMALL = HopperGemmConfig(tile_m=64, tile_n=64, stages=4, pingpong=1, cluster_m=1)
#: Two wgmma tiles a warpgroup and shared loads, cooperative, transposed, and split along K.
MORE = (
    (dataclasses.replace(SMALL, tile_m=128, cluster_n=2), ("col", "col")),
    (dataclasses.replace(SMALL, cluster_m=2, cluster_n=2), ("col", "col")),
    (dataclasses.replace(SMALL, tile_m=128, pingpong=0), ("col", "col")),
    (dataclasses.replace(SMALL, tile_m=128, pingpong=0, swap_ab=1), ("row", "row")),
    (dataclasses.replace(SMALL, cluster_k=2), ("col", "col")),
)


@pytest.mark.parametrize(
    ("config", "layout"),
    [(SMALL, ("col", "col")), *(pytest.param(*one, marks=pytest.mark.slow) for one in MORE)],
    ids=str,
)
def test_exact_integers(config, layout, rng):
    m, n, k = 132, 140, 300
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    d = laid_out(poisoned(FLOAT32, (m, n)), "row")
    moved = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
    problem = dataclasses.replace(problem_of(*moved, d, None, 1, 0), precision=Precision.TF32)
    assert {"a_major": "m", "b_major": "k"}.items() <= dict(SPEC.signature(problem, config)).items()
    run_kernel(problem, Choice(SPEC, config), {"a": moved[0], "b": moved[1], "d": d}, Options(checks=True))
    np.testing.assert_array_equal(d, a @ b)
