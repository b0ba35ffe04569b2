"""Hopper's kernels on the virtual GPU, all checks on: shapes that their copy engine takes, and that divide no tile."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.core.dtype import dtype_named
from gemmule.core.errors import ArgumentError
from gemmule.dispatch.registry import LADDER
from gemmule.vgpu import Options, launch
from gemmule.vgpu.arch import virtual_arch
from support.oracle import assert_product, poisoned, random_matrix
from support.ptx.hopper import SCHEDULES
from support.vgpu.kernel_products import HOPPER, case_id, in_cluster, laid_out, multiply, problem_of, smallest, types_of

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Extents of whole 16 bytes; one of them in every direction less than a tile, or a little more.
SHAPES = [(1, 8, 8), (65, 72, 40), (72, 200, 200)]
CASES = [(spec, *types_of(spec)[0]) for spec in (HOPPER[0], HOPPER[-1])]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("spec", "dtype", "out"), CASES, ids=case_id)
def test_ragged_tiles(spec, dtype, out, shape, rng):
    m, n, k = shape
    a, b, c = random_matrix(rng, dtype, (m, k)), random_matrix(rng, dtype, (k, n)), random_matrix(rng, out, (m, n))
    assert_product(multiply(spec, a, b, poisoned(out, (m, n))), a, b)
    assert_product(multiply(spec, a, b, poisoned(out, (m, n)), c, 0.75, -1.5), a, b, c, 0.75, -1.5)


#: Steps of the ladder, which no call takes: in a quick run the first and the last have a layout and a batch each.
STEPS = LADDER[:-1]


def few(spec):
    return spec.name in ("h02_wgmma_tma", "h08_pingpong")


LAYOUTS = [
    pytest.param(
        spec, layout, id=f"{case_id(spec)}-{'-'.join(layout)}",
        marks=[pytest.mark.slow] if spec.name in STEPS and not (few(spec) and layout == ("col", "col")) else [],
    )
    for spec in HOPPER
    for layout in (("row", "col"), ("col", "row"), ("col", "col"))
]  # fmt: skip


@pytest.mark.parametrize(("spec", "layout"), LAYOUTS)
def test_layouts(spec, layout, rng):
    dtype, out = types_of(spec)[0]
    a, b = random_matrix(rng, dtype, (72, 136)), random_matrix(rng, dtype, (136, 80))
    moved = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
    assert_product(multiply(spec, *moved, poisoned(out, (72, 80))), a, b)


@pytest.mark.parametrize(
    "spec",
    [pytest.param(spec, marks=[pytest.mark.slow] if spec.name in STEPS and not few(spec) else []) for spec in HOPPER],
    ids=case_id,
)
def test_batches(spec, rng):
    dtype, out = types_of(spec)[0]
    a, b = random_matrix(rng, dtype, (2, 2, 72, 24)), random_matrix(rng, dtype, (2, 2, 24, 40))
    assert_product(multiply(spec, a, b, poisoned(out, (2, 2, 72, 40))), a, b)


@pytest.mark.parametrize("spec", HOPPER, ids=case_id)
def test_a_cta_takes_tile_after_tile(spec, rng):
    """One cluster for all tiles: stages and phases go round, and warpgroups take turns."""
    dtype, out = types_of(spec)[0]
    a, b, d = random_matrix(rng, dtype, (136, 392)), random_matrix(rng, dtype, (392, 72)), poisoned(out, (136, 72))
    if not hasattr(spec.default, "ctas"):
        pytest.skip("the kernel's CTAs compute one tile each")
    problem = problem_of(a, b, d)
    config = smallest(spec, problem, lambda config: not in_cluster(config)) or smallest(spec, problem)
    few = type(config)(**(config.as_dict() | {"ctas": config.cluster_size}))
    # The number of CTAs is no part of the code, which other tests have compiled.
    looping = dataclasses.replace(spec, launch=lambda problem, config: spec.launch(problem, few))
    assert_product(multiply(looping, a, b, d, config=config), a, b)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("spec", HOPPER, ids=case_id)
def test_clusters_and_schedules(spec, schedule, rng):
    dtype, out = types_of(spec)[0]
    a, b, d = random_matrix(rng, dtype, (136, 264)), random_matrix(rng, dtype, (264, 72)), poisoned(out, (136, 72))
    config = smallest(spec, problem_of(a, b, d), in_cluster)
    if config is None:
        pytest.skip("the kernel has no clusters")
    assert_product(multiply(spec, a, b, d, config=config, schedule=schedule, seed=int(rng.integers(2**31))), a, b)


CONFIGS = [pytest.param(spec, config, id=f"{spec.name}-{number}", marks=pytest.mark.slow)
           for spec in HOPPER for number, config in enumerate(spec.configs)]  # fmt: skip


@pytest.mark.parametrize(("spec", "config"), CONFIGS)
def test_every_config(spec, config, rng):
    dtype, out = types_of(spec)[0]
    a, b = random_matrix(rng, dtype, (264, 136)), random_matrix(rng, dtype, (136, 272))
    assert_product(multiply(spec, a, b, poisoned(out, (264, 272)), config=config), a, b)


@pytest.mark.parametrize("spec", HOPPER[:1], ids=case_id)
def test_a_part_of_the_grid_is_whole_clusters(spec, rng):
    from gemmule.compiler.cache import artifact_for

    dtype, out = types_of(spec)[0]
    a, b, d = random_matrix(rng, dtype, (136, 264)), random_matrix(rng, dtype, (264, 72)), poisoned(out, (136, 72))
    problem = problem_of(a, b, d)
    config = smallest(spec, problem, in_cluster)
    artifact = artifact_for(spec, config, spec.signature(problem, config), virtual_arch())
    with pytest.raises(ArgumentError, match="are not whole clusters"):
        launch(artifact, spec.launch(problem, config), {"a": a, "b": b, "d": d}, options=Options(), ctas=range(1))
    assert np.isnan(d.astype(dtype_named("float32").numpy())).all()
