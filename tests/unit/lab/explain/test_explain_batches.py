"""Samples of batches of transposes: small ones, of which one stands for what a warp does."""

from __future__ import annotations

import math

import pytest

from gemmule.core.arch import Arch
from gemmule.lab.explain.named import choice_named, problem_of
from gemmule.lab.explain.sample import buffers, extents, samples


@pytest.mark.parametrize("shape", ["3,8192,8192", "37,1000,1000", "37,1030,1001"])
def test_samples_are_small_and_one_tells_the_depth(shape):
    choice = choice_named("transpose_tiled[0]")
    problem = problem_of(choice, Arch(9, 0, True), shape, "float32", None, None, None)
    found = samples(choice.spec, choice.config, problem)
    assert sorted(sample.depth_weight for sample in found) == [0] * (len(found) - 1) + [1]
    elements = sum(sample.weight * math.prod(extents(sample.problem)) for sample in found)
    assert elements == math.prod(extents(problem))
    assert all(memory.nbytes < 8 << 20 for sample in found for memory in buffers(sample.problem, 0).values())
