"""Launches of products of nothing: whatever takes one writes each element of a result that has any."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import COMPILED, Arch
from gemmule.core.dtype import Precision
from gemmule.core.problem import contiguous_gemm, split_batch
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from support.empty_products import EXTENTS, KINDS, ODD_EXTENTS, kind_id

ARCHS = [Arch.parse(name) for name in COMPILED]


def problems(kind):
    types, precision = kind
    for m, n, k, batch in (*EXTENTS, *ODD_EXTENTS):
        for alpha in (1, 0):
            for c in ((), types[2:]):
                found = contiguous_gemm(m, n, k, (*types, *c), batch=batch, alpha=alpha, beta=1 if c else 0)
                yield dataclasses.replace(found, precision=Precision.parse(precision))


def assert_written(choice, problem):
    inner, outer, _ = split_batch(problem, choice.batch_dims)
    launches, _ = choice.launches(inner)
    assert all(0 not in one.launch.grid for one in launches)
    if problem.m and problem.n and 0 not in problem.batch:
        assert launches, (choice.spec.name, problem)
        assert launches[-1].operands.get("d", "d") == "d"
    else:
        assert not launches or 0 in outer


@pytest.mark.parametrize("kind", KINDS, ids=kind_id)
def test_what_dispatch_takes(kind):
    for number, problem in enumerate(problems(kind)):
        # A third of the architectures in turn: each meets every alpha and C.
        for arch in ARCHS[number % 3 :: 3]:
            if "float8" in kind_id(kind) and arch.capability < (8, 9):
                continue  # which has no such type
            for multiprocessors in (None, 132):
                assert_written(choose(problem, arch, multiprocessors=multiprocessors), problem)


@pytest.mark.parametrize("kind", KINDS, ids=kind_id)
@pytest.mark.parametrize("batch", [(0,), (2, 0)])
@pytest.mark.parametrize("names", ["c", "d", "cd"])
def test_kernels_take_an_empty_result_or_c_of_any_strides(kind, batch, names):
    types, precision = kind
    given = contiguous_gemm(16, 48, 32, (*types, types[2]), batch=batch, beta=1)
    # NumPy's.
    strides = {"row_stride": 0, "col_stride": 0, "batch_strides": (0,) * len(batch), "alignment": 256}
    lying = {name: dataclasses.replace(getattr(given, name), **strides) for name in names}
    problem = dataclasses.replace(given, **lying, precision=Precision.parse(precision))
    choice = choose(problem, Arch(9, 0, True), multiprocessors=132)
    assert choice.form is None
    assert_written(choice, problem)


@pytest.mark.parametrize("spec", [spec for spec in REGISTRY if spec.operation == "gemm"], ids=lambda spec: spec.name)
def test_every_config_of_every_kernel(spec):
    for problem in (problem for kind in KINDS for problem in problems(kind)):
        inner, _, _ = split_batch(problem, spec.batch_dims)
        for config in spec.configs:
            if spec.why_not(inner, spec.archs[0], config) is None:
                assert_written(Choice(spec, config), problem)
