"""Stream-K on the virtual GPU, all checks on: tiles of which two, three and more CTAs have parts, and the flags."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gemmule as gm
from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import BFLOAT16, FLOAT16, Precision, dtype_named
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

SHARED = HopperGemmConfig(tile_m=128, tile_n=32, stages=4, cluster_m=1, ctas=5, stream_k=1)
TURNS = dataclasses.replace(SHARED, tile_m=64, pingpong=1)
SLOW = [pytest.mark.slow]
#: What the five CTAs have to do, for tiles of 128 x 32 and of 64 x 32: tiles of which two have parts, with whole waves
#: of tiles before or without; two tiles of 17 slices, so that each has parts of three or four; nothing to share.
SHAPES = [
    (136, 104, 328),
    *(pytest.param(shape, marks=SLOW) for shape in ((200, 200, 136), (64, 40, 1032), (136, 160, 72))),
]


def product(config, shape, rng, dtype=BFLOAT16, out=BFLOAT16, batch=(), adds=False, **options):
    m, n, k = shape
    a, b = random_matrix(rng, dtype, (*batch, m, k)), random_matrix(rng, dtype, (*batch, k, n))
    c = random_matrix(rng, out, (*batch, m, n)) if adds else None
    factors = (0.75, -1.5) if adds else (1, 0)
    d = multiply(SPEC, a, b, poisoned(out, (*batch, m, n)), c, *factors, config=config, **options)
    assert_product(d, a, b, *((c, *factors) if adds else ()))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("config", [SHARED, TURNS], ids=["shared", "in turns"])
def test_ragged_shapes(config, shape, rng):
    product(config, shape, rng)


#: CTAs together and, as on a GPU that has room for one at a time, one after another.
RUNS = [{"schedule": schedule} for schedule in SCHEDULES] + [{"batch_lanes": 1}]


@pytest.mark.parametrize(
    ("config", "runs"),
    [(SHARED, [RUNS[0], RUNS[3]]), *(pytest.param(one, RUNS, marks=SLOW) for one in (SHARED, TURNS))],
    ids=["shared", "shared, all schedules", "in turns, all schedules"],
)
def test_the_same_bits_whoever_is_first(config, runs, rng):
    m, n, k = 136, 72, 520
    a, b = random_matrix(rng, BFLOAT16, (m, k)), random_matrix(rng, BFLOAT16, (k, n))
    seed = int(rng.integers(2**31))
    found = [multiply(SPEC, a, b, poisoned(BFLOAT16, (m, n)), config=config, seed=seed, **run) for run in runs]
    assert_product(found[0], a, b)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_batch_with_c(schedule, rng):
    product(SHARED, (136, 40, 136), rng, FLOAT16, FLOAT16, batch=(3,), adds=True, schedule=schedule)


def test_launches_one_after_another(rng):
    """Two launches, since no one batch describes that B: the second finds no flags of the first."""
    m, n, k = 64, 8, 1032
    a = random_matrix(rng, BFLOAT16, (2, 2, m, k))
    b = np.broadcast_to(random_matrix(rng, BFLOAT16, (2, 1, k, n)), (2, 2, k, n))
    assert_product(multiply(SPEC, a, b, poisoned(BFLOAT16, (2, 2, m, n)), config=SHARED), a, b)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "fields",
    [
        {"cluster_m": 2, "ctas": 6},
        {"cluster_n": 2, "ctas": 6},
        {"swap_ab": 1},
        {"tile_m": 64, "pingpong": 1, "swap_ab": 1, "cluster_m": 2, "ctas": 6},
        {"tile_m": 256, "tile_n": 80},
        {"ctas": 17},
    ],
    ids=str,
)
def test_other_configs(fields, schedule, rng):
    config = dataclasses.replace(SHARED, **fields)
    for shape in ((264, 72, 520), (264, 200, 200), (64, 40, 1032)):
        product(config, shape, rng, schedule=schedule, adds=True)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "out"), [("int8", "int32"), ("float32", "float32")])
def test_other_types(dtype, out, rng):
    kind = dtype_named(dtype)
    a, b = random_matrix(rng, kind, (136, 528)), random_matrix(rng, kind, (72, 528)).T
    if dtype == "float32":
        # What TF32 holds exactly.
        a, b = ((x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, np.ascontiguousarray(b.T)))
        b = b.T
    d = poisoned(dtype_named(out), (136, 72))
    problem = dataclasses.replace(problem_of(a, b, d), precision=Precision.TF32)
    assert SPEC.why_not(problem, virtual_arch(), SHARED) is None
    run_kernel(problem, Choice(SPEC, SHARED), {"a": a, "b": b, "d": d}, Options(checks=True))
    assert_product(d, a, b)


def only(monkeypatch, config):
    leave_kernels(monkeypatch, (dataclasses.replace(SPEC, configs=(config,)),))


@pytest.mark.slow
@pytest.mark.parametrize("config", [SHARED, TURNS], ids=["shared", "in turns"])
def test_an_epilogue(config, monkeypatch, rng):
    only(monkeypatch, config)
    case = next(case for case in CASES.values() if "c" in case.arrays and "bias" in case.arrays)
    finish(case, rng, shape=(136, 72, 520))


def test_an_epilogue_and_the_absolute_maximum(monkeypatch, rng):
    """Of five CTAs with parts of two tiles, those that have none to finish add nothing to the maximum."""
    only(monkeypatch, SHARED)
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")
    a, b = random_matrix(rng, BFLOAT16, (64, 1032)), random_matrix(rng, BFLOAT16, (1032, 40))
    d, largest = poisoned(dtype_named("float32"), (64, 40)), np.full(1, 1e30, np.float32)
    gm.gemm(a, b, epilogue=lambda acc: acc - 100, out=d, absmax=largest, executor="vgpu")
    assert_product(d + 100, a, b)
    assert largest[0] == np.abs(d).max()


class Subject:
    """A product of two tiles of which each of five CTAs has a part."""

    def __init__(self, rng):
        m, n, k = 64, 40, 1032
        self.a, self.b = random_matrix(rng, BFLOAT16, (m, k)), random_matrix(rng, BFLOAT16, (k, n))
        self.empty = poisoned(BFLOAT16, (m, n))
        problem = problem_of(self.a, self.b, self.empty)
        self.recipe = SPEC.launch(problem, SHARED)
        self.ptx = artifact_for(SPEC, SHARED, SPEC.signature(problem, SHARED), virtual_arch()).ptx

    def run(self, ptx, **workspaces):
        arrays = {"a": self.a, "b": self.b, "d": self.empty.copy(), **workspaces}
        launch(ptx, self.recipe, arrays, options=Options(checks=True))
        return arrays["d"]


def without_barrier(ptx, mark, step):
    """Take away the barrier of a warpgroup that is nearest to an instruction, before it or behind."""
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
    ids=["no release", "no acquire", "no barrier before the flag", "no barrier behind the flag"],
)
def test_what_orders_the_sums_is_missed(change, rng):
    subject = Subject(rng)
    assert_product(subject.run(subject.ptx), subject.a, subject.b)
    assert change(subject.ptx) != subject.ptx
    with pytest.raises(CheckError) as found:
        subject.run(change(subject.ptx))
    assert "race" in {finding.kind for finding in found.value.findings}


def test_launches_find_the_memory_of_those_before_them(rng):
    """Nothing is cleared between them; each flag is reset by whoever waited for it."""
    subject = Subject(rng)
    held = {
        one.name: rng.integers(0, 2**63, one.nbytes // 8, np.uint64).view(kind)
        for one, kind in zip(subject.recipe.workspaces, (np.float32, np.uint64), strict=True)
    }
    first, *others = (subject.run(subject.ptx, **held) for _ in range(3))
    assert_product(first, subject.a, subject.b)
    for other in others:
        np.testing.assert_array_equal(other.view(np.uint16), first.view(np.uint16))
    assert not (held["flags"] == READY).any()


def test_flags_that_were_set(rng):
    """Sums are read before they are there: what a launch leaves set, the next one believes."""
    subject = Subject(rng)
    flags = subject.recipe.workspaces[1].nbytes // 8
    with pytest.raises(CheckError, match="race"):
        subject.run(subject.ptx, flags=np.full(flags, READY, np.uint64))


def test_ctas_stay_in_one_process(rng):
    assert not can_be_spread(parse(Subject(rng).ptx))
