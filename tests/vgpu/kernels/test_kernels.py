"""Every kernel of the registry on the virtual GPU, all checks on: ragged shapes, layouts, strides, poisoned outputs."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import Kind, dtype_named, opaque_dtype
from gemmule.core.permutation import transpose_problem
from gemmule.core.spec import Choice
from gemmule.vgpu import CheckError, Options, execute
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.execute import run_kernel
from support.oracle import assert_product, poisoned, random_matrix
from support.stray_writes import nothing_strays
from support.vgpu.kernel_products import GEMMS, TRANSPOSES, case_id, laid_out, multiply, types_of

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SHAPES = [(1, 1, 1), (1, 1, 77), (63, 65, 17), (65, 63, 16), (130, 129, 35)]
LAYOUTS = list(itertools.product(("row", "col"), repeat=2))


#: Kernels that are compiled anew for each layout and alignment of rows: little here, the rest in tests of their own.
OWN_TESTS = (
    *("mma_sync_gemm", "mma_sync_small", "simt_gemm", "simt_batched"),
    *("float64_gemm", "complex64_gemm", "complex128_gemm"),
)
CASES = [(spec, *types) for spec in GEMMS for types in types_of(spec)[: 1 if spec.name in OWN_TESTS else None]]
LAYOUT_CASES = [case for case in CASES if case[0].name not in OWN_TESTS]


#: The first types of each kernel: indices and edges of others are computed in the same way.
FIRST = {spec.name: types for spec, *types in reversed(CASES)}


def shapes_of(cases):
    """Every shape of the first types, one of the others; where each alignment of rows is compiled anew, the least and
    the one of most tiles.
    """
    for (spec, *types), shape in itertools.product(cases, SHAPES):
        few = (
            (SHAPES[0], SHAPES[-1]) if spec.name in OWN_TESTS else SHAPES if types == FIRST[spec.name] else SHAPES[2:3]
        )
        slow = shape not in few
        name = "-".join(map(case_id, (spec, *types, shape)))
        yield pytest.param(spec, *types, shape, marks=[pytest.mark.slow] if slow else [], id=name)


@pytest.mark.parametrize(("spec", "dtype", "out", "shape"), list(shapes_of(CASES)))
def test_ragged_shapes(spec, dtype, out, shape, rng):
    """With C, and of the first types without it, which is another kernel."""
    m, n, k = shape
    a, b, c = random_matrix(rng, dtype, (m, k)), random_matrix(rng, dtype, (k, n)), random_matrix(rng, out, (m, n))
    if [dtype, out] == FIRST[spec.name]:
        assert_product(multiply(spec, a, b, poisoned(out, (m, n))), a, b)
    alpha, beta = (3, -2) if out.kind is Kind.INTEGER else (0.75, -1.5)
    assert_product(multiply(spec, a, b, poisoned(out, (m, n)), c, alpha, beta), a, b, c, alpha, beta)


def layouts_of(cases):
    """Every layout, aligned and not; where each is compiled anew, both operands along a row or a column. Of types
    after the first two layouts.
    """
    for (spec, *types), layout, offset in itertools.product(cases, LAYOUTS, (0, 1)):
        slow = spec.name == "g07_cp_async" and layout[0] != layout[1]
        slow |= types != FIRST[spec.name] and (layout, offset) not in ((("row", "col"), 0), (("col", "row"), 1))
        marks = [pytest.mark.slow] if slow else []
        name = "-".join(map(case_id, (spec, *types, *layout, offset)))
        yield pytest.param(spec, *types, layout, offset, marks=marks, id=name)


@pytest.mark.parametrize(("spec", "dtype", "out", "layout", "offset"), list(layouts_of(LAYOUT_CASES)))
def test_layouts_and_misaligned_pointers(spec, dtype, out, layout, offset, rng):
    a, b = random_matrix(rng, dtype, (67, 36)), random_matrix(rng, dtype, (36, 44))
    moved = [laid_out(x, kind, offset) for x, kind in zip((a, b), layout, strict=True)]
    assert_product(multiply(spec, *moved, laid_out(poisoned(out, (67, 44)), "row", offset)), a, b)


#: Strides of every sign are among the layouts of its own tests, in a config that is compiled sooner.
STRIDES = [
    pytest.param(spec, kind, marks=[pytest.mark.slow] if (spec.name, kind) == ("simt_batched", "reversed") else [],
                 id=f"{case_id(spec)}-{kind}")
    for spec, kind in itertools.product(GEMMS, ("padded", "reversed"))
]  # fmt: skip


@pytest.mark.parametrize(("spec", "kind"), STRIDES)
def test_strides_and_batches(spec, kind, rng):
    dtype, out = types_of(spec)[0]
    a, b = random_matrix(rng, dtype, (2, 3, 37, 21)), random_matrix(rng, dtype, (2, 3, 21, 70))
    got = multiply(spec, *(laid_out(x, kind) for x in (a, b)), laid_out(poisoned(out, (2, 3, 37, 70)), kind))
    assert_product(got, a, b)


#: Defaults that are compiled longest: tests of its own run a smaller one of the first, ragged tiles the other's loop.
LONG = ("complex64_gemm", "d02_b_in_registers")
EVERY_CONFIG = [
    pytest.param(
        spec,
        config,
        id=f"{case_id(spec)}-{number}",
        marks=[pytest.mark.slow] if number or spec.name in LONG else [],
    )
    for spec in GEMMS
    for number, config in enumerate(spec.configs)
]


@pytest.mark.parametrize(("spec", "config"), EVERY_CONFIG)
def test_every_config_computes_whole_tiles(spec, config, rng):
    dtype, out = types_of(spec)[0]
    side = max(128, getattr(config, "tile_m", 256), getattr(config, "tile_n", 256))
    a, b = random_matrix(rng, dtype, (side, 64)), random_matrix(rng, dtype, (64, side))
    assert_product(multiply(spec, a, b, poisoned(out, (side, side)), config=config), a, b)


#: Kernels that synchronise as g04 and d01 do.
ALIKE = ("g05_conflict_free", "g06_double_buffer", "d02_b_in_registers")
SCHEDULED = [
    pytest.param(spec, id=case_id(spec), marks=[pytest.mark.slow] if spec.name in ALIKE else []) for spec in GEMMS
]


@pytest.mark.parametrize("spec", SCHEDULED)
def test_the_schedule_changes_no_bit(spec, rng):
    dtype, out = types_of(spec)[0]
    a, b = random_matrix(rng, dtype, (70, 41)), random_matrix(rng, dtype, (41, 67))
    late = multiply(spec, a, b, poisoned(out, (70, 67)))
    for schedule in ("eager", "random"):
        other = multiply(spec, a, b, poisoned(out, (70, 67)), schedule=schedule, seed=int(rng.integers(2**31)))
        np.testing.assert_array_equal(late, other)


@pytest.mark.parametrize("spec", [spec for spec in GEMMS if "reference" in spec.name], ids=case_id)
def test_a_grid_smaller_than_the_tiles_goes_round(spec, rng):
    looping = dataclasses.replace(
        spec, launch=lambda problem, config: dataclasses.replace(spec.launch(problem, config), grid=(3, 1, 1))
    )
    dtype = dtype_named("float32")
    a, b = random_matrix(rng, dtype, (2, 130, 33)), random_matrix(rng, dtype, (2, 33, 190))
    assert_product(multiply(looping, a, b, poisoned(dtype, (2, 130, 190))), a, b)


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@pytest.mark.parametrize("spec", TRANSPOSES, ids=case_id)
def test_transposes(spec, itemsize, rng):
    dtype, reason = opaque_dtype(itemsize).numpy(), None
    kinds, ran = [("row", "row"), ("col", "row"), ("padded", "reversed")], False
    for shape, (first, second) in itertools.product([(1, 1), (1, 100), (31, 33), (97, 130)], kinds):
        values = rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)
        source, target = laid_out(values, first), laid_out(np.full(shape[::-1], 77, dtype), second)
        strides = [[stride // itemsize for stride in x.strides] for x in (source, target)]
        problem = transpose_problem(shape[::-1], tuple(strides[0][::-1]), tuple(strides[1]), itemsize)
        if reason := spec.why_not(problem, virtual_arch(), spec.default):
            continue
        ran = True
        with nothing_strays(target):
            run_kernel(problem, Choice(spec, spec.default), {"a": source, "d": target}, Options(checks=True))
        np.testing.assert_array_equal(target, values.T, err_msg=f"{shape}, {first} to {second}")
    if not ran:
        pytest.skip(reason)


def test_every_batch_runs_and_is_taken_back_before_findings_are_raised(rng, monkeypatch):
    """A kernel of one batch dimension, launched for each entry of another, without its barriers."""
    spec = next(spec for spec in GEMMS if spec.name == "g03_shared_tile")

    def without_barriers(*what, **how):
        artifact = artifact_for(*what, **how)
        text = artifact.ptx.replace("bar.sync", "membar.cta;//").replace("barrier.sync", "membar.cta;//")
        return dataclasses.replace(artifact, ptx=text)

    monkeypatch.setattr(execute, "artifact_for", without_barriers)
    single = dtype_named("float32")
    shape = (2, *(1,) * spec.batch_dims)
    a, b = (random_matrix(rng, single, (*shape, 40, 40)) for _ in range(2))
    out = poisoned(single, (*shape, 40, 40))
    with pytest.raises(CheckError) as caught:
        multiply(spec, a, b, out)
    first_times = max(finding.times for finding in caught.value.findings)
    assert np.isfinite(out).all()
    with pytest.raises(CheckError) as caught:
        multiply(spec, a[:1], b[:1], poisoned(single, (1, *shape[1:], 40, 40)))
    assert first_times == 2 * max(finding.times for finding in caught.value.findings)
