"""float64_gemm with stream-K, of CTAs or clusters, on the virtual GPU, all checks on: parts, bits, batches, flags."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import FLOAT64
from gemmule.core.spec import Choice
from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.float64.gemm.spec import SPEC
from gemmule.kernels.parts.schedulers.stream_k_workspaces import READY
from gemmule.vgpu import CheckError, Options, launch
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.execute import run_kernel
from support.oracle import assert_product, poisoned, random_matrix
from support.ptx.hopper import SCHEDULES
from support.vgpu.kernel_products import laid_out, multiply, problem_of

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Five CTAs run at once on its SM.
SHARED = Float64Config(tile_n=32, stages=3, stream_k=1, ctas=1)
#: Two warpgroups a tile, and two CTAs an SM.
WIDE = Float64Config(tile_n=128, warps_n=4, mma_k=8, stream_k=1, ctas=2)
#: Clusters of two CTAs, each of which writes a half of the columns; three of them run at once.
PAIRS = Float64Config(tile_m=32, tile_n=32, tile_k=32, cluster_k=2, stream_k=1, ctas=2)
#: Clusters of six CTAs, of which four write columns; four clusters run at once.
SIX = Float64Config(mma_k=8, cluster_k=6, stream_k=1, ctas=10)
#: Five CTAs or three clusters for a tile of few rows and columns.
MANY = pytest.mark.parametrize("config", [SHARED, PAIRS], ids=["CTAs", "clusters"])
SLOW = [pytest.mark.slow]


def product(config, shape, rng, layout=("row", "row"), *, late=0, c=False, **options):
    m, n, k = shape
    a, b = random_matrix(rng, FLOAT64, (m, k)), random_matrix(rng, FLOAT64, (k, n))
    moved = [laid_out(x, kind, late) for x, kind in zip((a, b), layout, strict=True)]
    d = laid_out(poisoned(FLOAT64, (m, n)), "row", late)
    added = random_matrix(rng, FLOAT64, (m, n)) if c else None
    factors = (0.75, -1.5) if c else (1, 0)
    problem = problem_of(*moved, d, added, *factors)
    assert SPEC.why_not(problem, virtual_arch(), config) is None
    arrays = {"a": moved[0], "b": moved[1], "d": d} | ({"c": added} if c else {})
    run_kernel(problem, Choice(SPEC, config), arrays, Options(checks=True, **options))
    assert_product(d, a, b, *((added, *factors) if c else ()))
    return d


@pytest.mark.parametrize(
    ("config", "shape", "layout", "late"),
    [
        # Six tiles for five CTAs, so that all of them are shared.
        (SHARED, (130, 62, 84), ("row", "row"), 0),
        # A tile of which each CTA has a part, with copies of single elements.
        (SHARED, (61, 31, 165), ("col", "row"), 1),
        (WIDE, (130, 140, 100), ("row", "col"), 0),
        # Whole waves before the shared tiles, and tiles that divide the matrices.
        pytest.param(SHARED, (256, 96, 64), ("row", "row"), 0, marks=SLOW),
        pytest.param(SHARED, (256, 96, 64), ("col", "col"), 0, marks=SLOW),
        # Fewer k-tiles than CTAs.
        pytest.param(SHARED, (64, 32, 33), ("row", "col"), 0, marks=SLOW),
        # Three clusters a tile, and two.
        (PAIRS, (30, 28, 1510), ("row", "row"), 0),
        pytest.param(PAIRS, (29, 31, 1060), ("col", "row"), 1, marks=SLOW),
        (SIX, (66, 62, 1530), ("row", "col"), 0),
        pytest.param(SIX, (61, 59, 1601), ("col", "col"), 1, marks=SLOW),
        pytest.param(PAIRS, (32, 32, 1024), ("row", "row"), 0, marks=SLOW),
        # A cluster a tile.
        pytest.param(PAIRS, (100, 90, 96), ("row", "row"), 0, marks=SLOW),
    ],
    ids=str,
)
def test_parts_of_tiles(config, shape, layout, late, rng):
    product(config, shape, rng, layout, late=late)


@pytest.mark.parametrize("shape", [(70, 66, 0), (64, 64, 0)], ids=str)
@MANY
def test_of_no_k(config, shape, rng):
    product(config, shape, rng)


@MANY
def test_alpha_of_0_reads_nothing(config, rng):
    a, b, c = (random_matrix(rng, FLOAT64, shape) for shape in ((30, 1100), (1100, 34), (30, 34)))
    a[0, 0] = b[0, 0] = np.nan
    d = multiply(SPEC, a, b, poisoned(FLOAT64, (30, 34)), c, 0, 2.0, config=config)
    np.testing.assert_array_equal(d, 2 * c)


@pytest.mark.slow
@MANY
def test_a_batch_with_c(config, rng):
    wide = dataclasses.replace(config, ctas=4 * config.ctas)
    a, b, c = (random_matrix(rng, FLOAT64, shape) for shape in ((3, 30, 1100), (3, 1100, 30), (3, 30, 30)))
    assert SPEC.launch(problem_of(a, b, poisoned(FLOAT64, (3, 30, 30))), wide).grid == (
        (6, 2, 1) if config == PAIRS else (20, 1, 1)
    )
    d = multiply(SPEC, a, b, poisoned(FLOAT64, (3, 30, 30)), c, 0.75, -1.5, config=wide)
    assert_product(d, a, b, c, 0.75, -1.5)


@MANY
def test_launches_that_overlap(config, rng):
    """Two launches, since no one batch describes that B: the second waits for the first before it uses the memory."""
    a, b = random_matrix(rng, FLOAT64, (2, 2, 30, 1100)), random_matrix(rng, FLOAT64, (2, 1, 1100, 30))
    b = np.broadcast_to(b, (2, 2, 1100, 30))
    # As many CTAs for both matrices of a launch.
    wide = dataclasses.replace(config, ctas=2 * config.ctas)
    d = multiply(SPEC, a, b, poisoned(FLOAT64, (2, 2, 30, 30)), config=wide)
    assert_product(d, a, b)
    assert SPEC.launch(problem_of(a[0, 0], b[0, 0], d[0, 0]), config).overlaps


@pytest.mark.parametrize(
    "runs", [[{}, {"batch_lanes": 1}], pytest.param([{"schedule": one} for one in SCHEDULES], marks=SLOW)], ids=len
)
@pytest.mark.parametrize(
    ("config", "shape"), [(SHARED, (130, 62, 100)), (PAIRS, (30, 28, 1100))], ids=["CTAs", "clusters"]
)
def test_the_same_bits_whoever_is_first(config, shape, runs, rng):
    m, n, k = shape
    a, b = random_matrix(rng, FLOAT64, (m, k)), random_matrix(rng, FLOAT64, (k, n))
    seed = int(rng.integers(2**31))
    found = [multiply(SPEC, a, b, poisoned(FLOAT64, (m, n)), config=config, seed=seed, **run) for run in runs]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize(
    "change",
    [
        lambda ptx: ptx.replace("st.release.gpu", "st.relaxed.gpu"),
        lambda ptx: ptx.replace("ld.acquire.gpu", "ld.relaxed.gpu"),
    ],
    ids=["no release", "no acquire"],
)
@MANY
def test_what_orders_the_partials_is_missed(config, change, rng):
    a, b = random_matrix(rng, FLOAT64, (30, 1100)), random_matrix(rng, FLOAT64, (1100, 32))
    problem = problem_of(a, b, d := poisoned(FLOAT64, (30, 32)))
    ptx = artifact_for(SPEC, config, SPEC.signature(problem, config), virtual_arch()).ptx
    arrays, recipe = {"a": a, "b": b, "d": d}, SPEC.launch(problem, config)
    launch(ptx, recipe, arrays, options=Options(checks=True))
    assert_product(d, a, b)
    assert change(ptx) != ptx
    with pytest.raises(CheckError) as found:
        launch(change(ptx), recipe, arrays, options=Options(checks=True))
    assert "race" in {finding.kind for finding in found.value.findings}


class OneMemory:
    """Products one after another, their partials and flags where those of the one before were, and nothing cleared."""

    def __init__(self, rng, config):
        self.rng, self.config = rng, config
        # As large as any product needs it; what is there first is anything.
        self.workspaces = {
            one.name: rng.integers(0, 256, 2 * one.nbytes).astype(np.uint8).view(np.uint64)
            for one in SPEC.launch(self.problem((30, 30, 2000))[0], config).workspaces
        }

    def problem(self, shape):
        m, n, k = shape
        a, b = random_matrix(self.rng, FLOAT64, (m, k)), random_matrix(self.rng, FLOAT64, (k, n))
        d = poisoned(FLOAT64, (m, n))
        return problem_of(a, b, d), {"a": a, "b": b, "d": d}

    def multiply(self, shape, change=lambda ptx: ptx, **options):
        problem, arrays = self.problem(shape)
        ptx = artifact_for(SPEC, self.config, SPEC.signature(problem, self.config), virtual_arch()).ptx
        recipe = SPEC.launch(problem, self.config)
        launch(change(ptx), recipe, {**arrays, **self.workspaces}, options=Options(checks=True, **options))
        assert_product(arrays["d"], arrays["a"], arrays["b"])
        return arrays["d"]

    @property
    def flags_left(self):
        return int((self.workspaces["flags"] == READY).sum())


def without_reset(ptx):
    assert ptx.count("st.relaxed.gpu.global.b64") == 1
    return "\n".join(line for line in ptx.split("\n") if "st.relaxed.gpu.global.b64" not in line)


@pytest.mark.parametrize("count", [3, pytest.param(24, marks=SLOW)])
@MANY
def test_launches_find_the_memory_of_those_before_them(config, count, rng):
    memory = OneMemory(rng, config)
    least, most = ((1, 1, 32), (33, 33, 60)) if config == PAIRS else ((1, 1, 1), (200, 100, 7))
    for number in range(count):
        m, n, tiles = (int(x) for x in rng.integers(least, most))
        shape = m, n, config.tile_k * tiles + int(rng.integers(16))
        memory.multiply(shape, schedule=SCHEDULES[number % len(SCHEDULES)], seed=int(rng.integers(2**31)))
        assert memory.flags_left == 0
        if number % 3 == 2:
            # What other work leaves there.
            for words in memory.workspaces.values():
                words[...] = rng.integers(0, 2**63, words.shape, np.uint64)


def test_a_flag_that_nobody_resets_is_missed(rng):
    """The next launch in that memory reads partials that are not there yet."""
    memory = OneMemory(rng, SHARED)
    memory.multiply((30, 32, 165), without_reset)
    assert memory.flags_left == 4
    with pytest.raises(CheckError) as found:
        memory.multiply((30, 32, 165))
    assert "race" in {finding.kind for finding in found.value.findings}


def test_stages_are_not_overwritten_while_they_are_read(rng):
    """Without the barrier between two tiles, copies of the next may overtake a warp that still reads the last one's."""
    a, b = random_matrix(rng, FLOAT64, (130, 84)), random_matrix(rng, FLOAT64, (84, 62))
    problem = problem_of(a, b, d := poisoned(FLOAT64, (130, 62)))
    config = dataclasses.replace(SHARED, ctas=1)
    ptx = artifact_for(SPEC, config, SPEC.signature(problem, config), virtual_arch()).ptx
    lines = ptx.split("\n")
    place = next(number for number, line in enumerate(lines) if "bar.sync" in line or "barrier.sync" in line)
    lines[place] = ""
    with pytest.raises(CheckError):
        launch("\n".join(lines), SPEC.launch(problem, config), {"a": a, "b": b, "d": d}, options=Options(checks=True))
