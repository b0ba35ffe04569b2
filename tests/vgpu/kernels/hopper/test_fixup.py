"""The fix-up of split-K on the virtual GPU, all checks on: order of the sums, types, and the flags."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import BFLOAT16, Precision, dtype_named
from gemmule.core.spec import Choice
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.kernels.parts.schedulers.stream_k_workspaces import READY
from gemmule.vgpu import CheckError, Options, launch
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.execute import run_kernel
from gemmule.vgpu.ptx.parser import parse
from gemmule.vgpu.workers import can_be_spread
from support.epilogue_cases import CASES
from support.oracle import assert_product, poisoned, random_matrix
from support.ptx.hopper import SCHEDULES
from support.vgpu.epilogues import finish
from support.vgpu.kernel_products import multiply, problem_of
from support.vgpu.kernels_left import leave_kernels

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Two warpgroups of a tile, and one.
COOPERATIVE = HopperGemmConfig(tile_m=128, tile_n=32, stages=4, cluster_m=1, ctas=12, split_k=1)
PINGPONG = dataclasses.replace(COOPERATIVE, tile_m=64, pingpong=1)
CONFIGS = {"cooperative": COOPERATIVE, "ping-pong": PINGPONG}
SLOW = [pytest.mark.slow]

#: CTAs together and, as on a GPU with space for one at a time, one after another.
RUNS = [{"schedule": schedule} for schedule in SCHEDULES] + [{"batch_lanes": 1}]
FEW_RUNS = [RUNS[0], RUNS[3]]


@pytest.mark.parametrize(
    ("config", "runs"),
    [
        pytest.param(PINGPONG, FEW_RUNS, id="ping-pong"),
        *(pytest.param(one, RUNS, id=f"{name}, all schedules", marks=SLOW) for name, one in CONFIGS.items()),
    ],
)
def test_the_same_bits_whoever_is_first(config, runs, rng):
    m, n, k = 136, 72, 520
    a, b = random_matrix(rng, BFLOAT16, (m, k)), random_matrix(rng, BFLOAT16, (k, n))
    seed = int(rng.integers(2**31))
    found = [multiply(SPEC, a, b, poisoned(BFLOAT16, (m, n)), config=config, seed=seed, **run) for run in runs]
    assert_product(found[0], a, b)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


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
    assert SPEC.why_not(problem, virtual_arch(), COOPERATIVE) is None
    assert SPEC.launch(problem, COOPERATIVE).grid[1] > 1
    run_kernel(problem, Choice(SPEC, COOPERATIVE), {"a": a, "b": b, "d": d}, Options(checks=True))
    assert_product(d, a, b)


@pytest.mark.parametrize(
    "config", [pytest.param(one, id=name, marks=[] if name == "cooperative" else SLOW) for name, one in CONFIGS.items()]
)
def test_an_epilogue(config, monkeypatch, rng):
    leave_kernels(monkeypatch, (dataclasses.replace(SPEC, configs=(config,)),))
    case = next(case for case in CASES.values() if "c" in case.arrays and "bias" in case.arrays)
    finish(case, rng, shape=(136, 72, 520))


class Subject:
    """A product of which several CTAs have a part of each tile."""

    def __init__(self, config, rng):
        # K of one or two tiles is divided among four CTAs or more.
        m, n, k = 64, 40, 1032
        self.a, self.b = random_matrix(rng, BFLOAT16, (m, k)), random_matrix(rng, BFLOAT16, (k, n))
        self.empty = poisoned(BFLOAT16, (m, n))
        problem = problem_of(self.a, self.b, self.empty)
        self.recipe = SPEC.launch(problem, config)
        self.ptx = artifact_for(SPEC, config, SPEC.signature(problem, config), virtual_arch()).ptx

    def run(self, ptx, **workspaces):
        arrays = {"a": self.a, "b": self.b, "d": self.empty.copy(), **workspaces}
        launch(ptx, self.recipe, arrays, options=Options(checks=True))
        return arrays["d"]


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS)
def subject(request, rng):
    return Subject(request.param, rng)


def without_barrier(ptx, mark, step):
    """Remove the barrier of a warpgroup that is nearest to an instruction, before it (-1) or after it (1)."""
    lines = ptx.split("\n")
    place = next(number for number, line in enumerate(lines) if mark in line)
    while "bar.sync" not in lines[place]:
        place += step
    lines[place] = ""
    return "\n".join(lines)


@pytest.mark.parametrize(
    "change",
    [
        lambda ptx: ptx.replace("st.release.gpu", "st.relaxed.gpu"),
        lambda ptx: ptx.replace("ld.acquire.gpu", "ld.relaxed.gpu"),
        lambda ptx: without_barrier(ptx, "st.release.gpu", -1),
        lambda ptx: without_barrier(ptx, "ld.acquire.gpu", 1),
    ],
    ids=["no release", "no acquire", "no barrier before the flag", "no barrier after the flag"],
)
def test_what_orders_the_sums_is_missed(change, subject):
    assert_product(subject.run(subject.ptx), subject.a, subject.b)
    assert change(subject.ptx) != subject.ptx
    with pytest.raises(CheckError) as found:
        subject.run(change(subject.ptx))
    assert "race" in {finding.kind for finding in found.value.findings}


def test_launches_find_the_memory_of_those_before_them(subject, rng):
    """Nothing is cleared between them; each flag is reset by the thread that waited for it."""
    held = {
        one.name: rng.integers(0, 2**63, one.nbytes // 8, np.uint64).view(kind)
        for one, kind in zip(subject.recipe.workspaces, (np.float32, np.uint64), strict=True)
    }
    first, *others = (subject.run(subject.ptx, **held) for _ in range(3))
    assert_product(first, subject.a, subject.b)
    for other in others:
        np.testing.assert_array_equal(other.view(np.uint16), first.view(np.uint16))
    assert not (held["flags"] == READY).any()


def test_flags_that_were_set(subject):
    """Partial sums are read before they are written: a launch waits for no flag that another left set."""
    flags = subject.recipe.workspaces[1].nbytes // 8
    with pytest.raises(CheckError, match="race"):
        subject.run(subject.ptx, flags=np.full(flags, READY, np.uint64))


def test_ctas_stay_in_one_process(subject):
    assert not can_be_spread(parse(subject.ptx))
