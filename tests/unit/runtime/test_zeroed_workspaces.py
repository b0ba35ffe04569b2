"""Workspaces that launches find zeroed: the zeros come before each launch, in its stream, where its memory lies."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.core.spec import Choice
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.lab.products import gemm_problem
from gemmule.runtime import execute, repeated
from support.fakes.launches import launched

__all__ = ["launched"]

PROBLEM = gemm_problem(128, 512, 7040, "bfloat16", "bfloat16", "nn")
CONFIG = HopperGemmConfig(cluster_m=1, split_k=1)


def with_zeroed_flags(problem, config):
    """Return a recipe of two workspaces, the second of which is to be zeroed."""
    recipe = SPEC.launch(problem, config)
    sums, flags = recipe.workspaces
    return dataclasses.replace(recipe, workspaces=(sums, dataclasses.replace(flags, zeroed=True)))


ZEROED = Choice(dataclasses.replace(SPEC, launch=with_zeroed_flags), CONFIG)


def of_workspaces(named):
    return named["stream-K partials"], named["flags"], named["d"]


def test_zeros_before_every_launch(launched):
    sums, flags = SPEC.launch(PROBLEM, CONFIG).workspaces
    execute.run_kernel(PROBLEM, ZEROED, {"a": 256, "b": 512, "d": 768}, 0, 7)
    at = {memory.nbytes: memory.address for memory in launched.memory}
    zeros, (_, named, stream) = launched.queue[:2]
    assert zeros == ("fill", at[flags.nbytes], 0, flags.nbytes, 7)
    assert (of_workspaces(named), stream) == ((at[sums.nbytes], at[flags.nbytes], 768), 7)
    assert sorted(launched.queue[2:]) == [("free", flags.nbytes), ("free", sums.nbytes)]
    launched.queue.clear()
    queue = repeated.repeated(PROBLEM, ZEROED, ("a", "b", "d"), (256, 512, 768), 0)
    for stream in (3, 4):
        queue((256, 512, 1024 * stream), stream)
        address = launched.memory[-1].address
        zeros, (_, named, launch_stream), free = launched.queue
        assert zeros == ("fill", address + sums.nbytes, 0, flags.nbytes, stream)
        assert of_workspaces(named) == (address, address + sums.nbytes, 1024 * stream)
        assert launch_stream == stream
        assert free[1] >= sums.nbytes + flags.nbytes
        launched.queue.clear()


@pytest.mark.parametrize(("choice", "names"), [(ZEROED, ["fill", "launch"]), (Choice(SPEC, CONFIG), ["launch"])])
def test_launches_of_a_batch_of_batches_find_zeros_each(launched, choice, names):
    """What one launch of several has left behind is not taken for zeros by the next; split-K's own need none."""
    operands = {
        # B is the same for all of the first dimension: no single batch describes that.
        name: dataclasses.replace(matrix, batch_strides=(0 if name == "b" else 4 * step, step))
        for name, matrix in PROBLEM.operands().items()
        for step in [8 * int(np.ceil(matrix.rows * matrix.cols / 8))]
    }
    execute.run_kernel(PROBLEM.with_operands((2, 4), operands), choice, {"a": 0, "b": 0, "d": 0}, 0, 7)
    assert [name for name, *_ in launched.queue[:-2]] == names * 2
