"""Split-K on the virtual GPU, all checks on: parts of K through a workspace, and in clusters that share loads too."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import BFLOAT16, FLOAT16, Precision, dtype_named
from gemmule.core.spec import Choice
from gemmule.kernels.hopper.gemm.config import FOR_LONG_K, HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.vgpu import CheckError, Options, launch
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.execute import run_kernel
from support.epilogue_cases import CASES
from support.oracle import assert_product, poisoned, random_matrix
from support.ptx.hopper import SCHEDULES
from support.vgpu.epilogues import finish
from support.vgpu.kernel_products import multiply, problem_of
from support.vgpu.kernels_left import leave_kernels

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Two warpgroups of a tile, and one; clusters that share loads; each with as many CTAs as parts of K need.
TOGETHER = HopperGemmConfig(tile_m=128, tile_n=32, stages=4, cluster_m=1, ctas=12, split_k=1)
IN_TURNS = dataclasses.replace(TOGETHER, tile_m=64, pingpong=1)
MULTICAST = dataclasses.replace(IN_TURNS, tile_n=64, cluster_m=2, cluster_n=2, ctas=12)
SWAPPED = dataclasses.replace(IN_TURNS, tile_n=104, cluster_n=2, swap_ab=1, ctas=24)
CONFIGS = {"cooperative": TOGETHER, "ping-pong": IN_TURNS, "multicast": MULTICAST, "swap_ab": SWAPPED}
#: A cluster's K split by CTAs that share loads with others.
CLUSTERS = {
    "2x1x2": HopperGemmConfig(tile_m=64, tile_n=64, stages=6, pingpong=1, cluster_m=2, cluster_k=2),
    "1x2x3, swap_ab": HopperGemmConfig(64, 48, 6, 1, 1, 2, 3, swap_ab=1),
    "2x2x2, cooperative": HopperGemmConfig(tile_m=128, tile_n=32, stages=4, cluster_m=2, cluster_n=2, cluster_k=2),
}
#: One tile of 17 k-tiles; some tiles, whose K is divided by two and three; more tiles than clusters, so that none is.
SHAPES = [(48, 24, 1032), (104, 72, 520), (264, 200, 200)]
SLOW = [pytest.mark.slow]


def product(config, shape, rng, dtype=BFLOAT16, out=BFLOAT16, batch=(), adds=False, **options):
    m, n, k = shape
    a, b = random_matrix(rng, dtype, (*batch, m, k)), random_matrix(rng, dtype, (*batch, k, n))
    c = random_matrix(rng, out, (*batch, m, n)) if adds else None
    factors = (0.75, -1.5) if adds else (1, 0)
    d = multiply(SPEC, a, b, poisoned(out, (*batch, m, n)), c, *factors, config=config, **options)
    assert_product(d, a, b, *((c, *factors) if adds else ()))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("config", [*CONFIGS.values(), *CLUSTERS.values()], ids=[*CONFIGS, *CLUSTERS])
def test_ragged_shapes(config, shape, rng):
    product(config, shape, rng)


@pytest.mark.slow
@pytest.mark.parametrize("config", FOR_LONG_K, ids=str)
def test_registered_configs(config, rng):
    product(config, (200, 136, 1224), rng)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("config", [MULTICAST, CLUSTERS["1x2x3, swap_ab"]], ids=["split_k", "cluster_k"])
def test_every_layout(config, layout, rng):
    m, n, k = 104, 72, 520
    a, b = random_matrix(rng, BFLOAT16, (m, k)), random_matrix(rng, BFLOAT16, (k, n))
    a, b = (np.ascontiguousarray(x.T).T if lies == "t" else x for x, lies in zip((a, b), layout, strict=True))
    assert_product(multiply(SPEC, a, b, poisoned(BFLOAT16, (m, n)), config=config), a, b)


#: CTAs together and, as on a GPU that has room for one at a time, one after another.
RUNS = [{"schedule": schedule} for schedule in SCHEDULES] + [{"batch_lanes": 1}]


@pytest.mark.parametrize(
    ("config", "runs"),
    [(IN_TURNS, [RUNS[0], RUNS[3]]), *(pytest.param(one, RUNS, marks=SLOW) for one in CONFIGS.values())],
)
def test_the_same_bits_whoever_is_first(config, runs, rng):
    m, n, k = 104, 72, 520
    a, b = random_matrix(rng, BFLOAT16, (m, k)), random_matrix(rng, BFLOAT16, (k, n))
    seed = int(rng.integers(2**31))
    found = [multiply(SPEC, a, b, poisoned(BFLOAT16, (m, n)), config=config, seed=seed, **run) for run in runs]
    assert_product(found[0], a, b)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("config", [IN_TURNS, CLUSTERS["2x1x2"]], ids=["split_k", "cluster_k"])
def test_a_batch_with_c(config, rng):
    product(config, (72, 40, 264), rng, FLOAT16, FLOAT16, batch=(3,), adds=True)


@pytest.mark.parametrize(("dtype", "out"), [("int8", "int32"), ("float32", "float32")])
def test_other_types(dtype, out, rng):
    kind = dtype_named(dtype)
    a, b = random_matrix(rng, kind, (136, 1056)), random_matrix(rng, kind, (72, 1056)).T
    if dtype == "float32":
        # What TF32 holds exactly.
        a, b = ((x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, np.ascontiguousarray(b.T)))
        b = b.T
    d = poisoned(dtype_named(out), (136, 72))
    problem = dataclasses.replace(problem_of(a, b, d), precision=Precision.TF32)
    assert SPEC.launch(problem, TOGETHER).grid[1] > 1
    run_kernel(problem, Choice(SPEC, TOGETHER), {"a": a, "b": b, "d": d}, Options(checks=True))
    assert_product(d, a, b)


@pytest.mark.parametrize("config", [TOGETHER, CLUSTERS["2x1x2"]], ids=["split_k", "cluster_k"])
def test_an_epilogue(config, monkeypatch, rng):
    leave_kernels(monkeypatch, (dataclasses.replace(SPEC, configs=(config,)),))
    case = next(case for case in CASES.values() if "c" in case.arrays and "bias" in case.arrays)
    finish(case, rng, shape=(72, 24, 520))


class Subject:
    """A product of a tile, whose K is divided among four CTAs."""

    def __init__(self, rng):
        m, n, k = 64, 32, 1032
        self.a, self.b = random_matrix(rng, BFLOAT16, (m, k)), random_matrix(rng, BFLOAT16, (k, n))
        self.empty = poisoned(BFLOAT16, (m, n))
        problem = problem_of(self.a, self.b, self.empty)
        self.recipe = SPEC.launch(problem, IN_TURNS)
        self.ptx = artifact_for(SPEC, IN_TURNS, SPEC.signature(problem, IN_TURNS), virtual_arch()).ptx

    def run(self, ptx, **workspaces):
        arrays = {"a": self.a, "b": self.b, "d": self.empty.copy(), **workspaces}
        launch(ptx, self.recipe, arrays, options=Options(checks=True))
        return arrays["d"]


@pytest.mark.parametrize(
    "change",
    [
        lambda ptx: ptx.replace("st.release.gpu", "st.relaxed.gpu"),
        lambda ptx: ptx.replace("ld.acquire.gpu", "ld.relaxed.gpu"),
    ],
    ids=["no release", "no acquire"],
)
def test_what_orders_the_sums_is_missed(change, rng):
    subject = Subject(rng)
    assert_product(subject.run(subject.ptx), subject.a, subject.b)
    assert change(subject.ptx) != subject.ptx
    with pytest.raises(CheckError) as found:
        subject.run(change(subject.ptx))
    assert "race" in {finding.kind for finding in found.value.findings}


def test_launches_find_the_memory_of_those_before_them(rng):
    """Nothing is cleared between them; each flag is reset by the thread that waited for it."""
    subject = Subject(rng)
    held = {
        one.name: rng.integers(0, 2**63, one.nbytes // 8, np.uint64).view(kind)
        for one, kind in zip(subject.recipe.workspaces, (np.float32, np.uint64), strict=True)
    }
    first, *others = (subject.run(subject.ptx, **held) for _ in range(3))
    assert_product(first, subject.a, subject.b)
    for other in others:
        np.testing.assert_array_equal(other, first)
