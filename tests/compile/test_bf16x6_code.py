"""The code of the six products: compiled without a GPU, no spills though sums are held twice, no early use of them."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.arch import Arch
from gemmule.core.dtype import Precision
from gemmule.kernels.emulation.bf16x6_gemm.spec import SPEC
from gemmule.kernels.emulation.bf16x6_products.spec import SPEC as PRODUCTS
from gemmule.lab.products import gemm_problem
from support.code.launch_order import assert_waits_first
from support.code.wgmma_waits import early

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

ARCH = Arch.parse("sm_90a")
CASES = [
    pytest.param(
        config, layout, beta, id=f"{config.tile_n}-{layout}-{'added' if beta else 'plain'}",
        marks=[] if (config, layout, beta) == (PRODUCTS.default, "nn", 1) else [pytest.mark.slow],
    )
    for config, layout, beta in itertools.product(PRODUCTS.configs, ("nn", "nt", "tn", "tt"), (0, 1))
]  # fmt: skip


@pytest.mark.parametrize(("config", "layout", "beta"), CASES)
def test_code(config, layout, beta):
    plain = gemm_problem(300, 200, 100, "float32", "float32", layout)
    c = plain.d if beta else None
    problem = dataclasses.replace(plain, c=c, beta=beta, precision=Precision.BF16X6)
    then = SPEC.next_kernel(problem, SPEC.default)
    artifact = artifact_for(PRODUCTS, config, PRODUCTS.signature(then.problem, config), ARCH)
    launch = PRODUCTS.launch(then.problem, config)
    artifact.check_launch(launch)
    assert (artifact.resources.spill_bytes, artifact.resources.stack_bytes) == (0, 0)
    # Six products of a slice of 64, 16 at a time.
    assert artifact.ptx.count("wgmma.mma_async") == 6 * 4
    assert early(artifact.ptx) == []
    # They read what the launch in front wrote.
    assert launch.overlaps
    assert_waits_first(artifact.ptx)
    # What the two warpgroups take is what the third gives.
    assert launch.threads * artifact.resources.registers >= 128 * (24 + 2 * 240)
