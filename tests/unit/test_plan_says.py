"""What a plan says of arguments that its function does not take, and of memory beyond the arrays."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gemmule as gm
from gemmule.api.plan import Plan
from gemmule.core.dtype import Precision
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import contiguous_gemm

X = np.ones((4, 4))
SPECS = {spec.name: spec for spec in REGISTRY}


@pytest.mark.parametrize("kind", [TypeError, gm.ArgumentError])
def test_arguments_are_refused_as_the_call_refuses_them(kind):
    with pytest.raises(TypeError, match="epilogue"):
        gm.matmul(X, X, epilogue="relu")
    with pytest.raises(kind, match=r"matmul does not take .* 'epilogue'; plan another function, operation='gemm'$"):
        gm.plan(X, X, epilogue="relu")
    with pytest.raises(kind, match=r"unexpected keyword argument 'epilog'; it takes a, b, out, out_dtype, .*executor$"):
        gm.plan(X, X, epilog="relu")
    with pytest.raises(kind, match=r"gemm does not take .* missing a required argument: 'b'; it takes a, b, c, "):
        gm.plan(X, operation="gemm")


def plan_on_a_gpu(name, shape=(1000, 1000, 1000), dtype="bfloat16", precision=Precision.IEEE, **config):
    spec = SPECS[name]
    choice = Choice(spec, dataclasses.replace(spec.default, **config))
    problem = contiguous_gemm(*shape, (dtype, dtype, dtype), precision=precision)
    then = choice.next_kernel(problem)
    return Plan("matmul", "gpu", "GPU", name, {}, "so", (), problem, 0, 0, None, lambda: None,
                then=then.spec.name if then else "", choice=choice)  # fmt: skip


def test_the_workspaces_of_stream_k_are_told():
    plan = plan_on_a_gpu("hopper_gemm", stream_k=1)
    # For each of the CTAs the sums of a tile, and a flag for each warpgroup that shares it.
    config = plan.choice.config
    assert plan.workspace_bytes == 132 * (config.outputs + config.warpgroups_per_tile) * 4
    assert f"workspace: {plan.workspace_bytes:.3e} bytes" in str(plan).splitlines()


def test_no_workspace_is_not_mentioned():
    plan = plan_on_a_gpu("hopper_gemm")
    assert plan.workspace_bytes == 0
    assert "workspace" not in str(plan)
    assert dataclasses.replace(plan, executor="vgpu").workspace_bytes == 0


def test_packed_operands_are_workspaces():
    plan = plan_on_a_gpu("hopper_gemm_repacked", (515, 301, 317))
    assert plan.then
    assert plan.workspace_bytes >= 2 * (515 + 301) * 317
    assert f"in {plan.workspace_bytes:.3e} bytes of workspace" in str(plan)


def test_parts_of_float32_are_workspaces():
    plan = plan_on_a_gpu("bf16x6_gemm", (512, 256, 640), "float32", Precision.BF16X6)
    assert plan.then == "bf16x6_products"
    # Three parts of 16 bits.
    assert plan.workspace_bytes == 6 * (512 + 256) * 640
    assert "then: bf16x6_products, in" in str(plan)
