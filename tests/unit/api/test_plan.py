"""Plans: arguments that the function does not take, the choice of a kernel, workspaces."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest

import gemmule as gm
from gemmule.api.planning.plan import Plan
from gemmule.core.dtype import Precision
from gemmule.core.problem import contiguous_gemm
from gemmule.core.quantities import short_quantity
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.kernels.parts.schedulers.stream_k_workspaces import FLAG_BYTES

X, X32 = np.ones((4, 4)), np.ones((16, 16), np.float32)
SPECS = {spec.name: spec for spec in REGISTRY}


PLANNED = (gm.matmul, gm.gemm, gm.transpose, gm.matrix_transpose)


@pytest.mark.parametrize("function", PLANNED, ids=lambda function: function.__name__)
def test_a_plan_takes_the_arguments_of_the_call(function):
    plan, call = inspect.signature(function.plan), inspect.signature(function)
    *parameters, kernel, chip = plan.parameters.values()
    assert parameters == [*call.parameters.values()]
    assert (kernel.name, kernel.kind, kernel.default) == ("kernel", kernel.KEYWORD_ONLY, None)
    assert (chip.name, chip.kind, chip.default) == ("chip", chip.KEYWORD_ONLY, None)
    # Calls cost what those of a plain function cost.
    assert inspect.isfunction(function)
    assert inspect.isfunction(function.plan)


@pytest.mark.parametrize("function", [gm.grouped_gemm, gm.scaled_gemm, gm.quantize], ids=lambda one: one.__name__)
def test_a_plan_of_the_parameters_of_the_call(function):
    *parameters, chip = inspect.signature(function.plan).parameters.values()
    assert parameters == [*inspect.signature(function).parameters.values()]
    assert (chip.name, chip.kind, chip.default) == ("chip", chip.KEYWORD_ONLY, None)
    assert inspect.signature(function.plan).return_annotation == function.plan.__annotations__["return"] == "Plan"
    assert function.plan.__doc__.startswith(f"Say what a call of `{function.__name__}` would run")
    with pytest.raises(TypeError, match=rf"^{function.__name__}\.plan\(\) missing a required argument: '[ax]'$"):
        function.plan()


def test_arguments_are_refused_as_the_call_refuses_them():
    for function in (gm.matmul, gm.matmul.plan):
        name = function.__qualname__
        with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'epilogue'"):
            function(X, X, epilogue="relu")
    with pytest.raises(
        TypeError, match=r"^gemm\(\) got an unexpected keyword argument 'epilog'; did you mean epilogue"
    ):
        gm.gemm(X, X, epilog="relu")
    with pytest.raises(TypeError, match=r"^gemm\(\) got an unexpected keyword argument 'aplha'; did you mean alpha\?$"):
        gm.gemm(X, X, aplha=2)
    for call, text in (
        (lambda: gm.grouped_gemm(X, X, offs=X), r"grouped_gemm\(\) .* 'offs'; did you mean offsets\?"),
        (lambda: gm.scaled_gemm(X, X, X, X, scale_results=X), r"scaled_gemm\(\) .*; did you mean scale_result\?"),
        (lambda: gm.quantize(X, axis=0), r"quantize\(\) .* 'axis'; help\(gemmule\.quantize\) lists all"),
    ):
        with pytest.raises(TypeError, match=f"^{text}$"):
            call()
    for function in PLANNED:
        name = function.__name__
        with pytest.raises(
            TypeError,
            match=rf"^{name}\(\) got an unexpected keyword argument 'kernel'; gemmule\.{name}\.plan takes it, "
            r"with executor='vgpu' or chip='h100'$",
        ):
            function(X, *[X] * (function in (gm.matmul, gm.gemm)), kernel="simt_gemm")
    with pytest.raises(TypeError, match=r"^matmul\(\) got .* argument 'chip'; gemmule\.matmul\.plan takes it$"):
        gm.matmul(X, X, chip="h100")
    with pytest.raises(TypeError, match=r"^matmul\(\) got .* argument 'epilogue'; gemmule\.gemm takes it$"):
        gm.matmul(X, X, epilogue="relu")
    with pytest.raises(TypeError, match=r"^transpose\(\) got .* argument 'axis'; did you mean axes\?$"):
        gm.transpose(X, axis=0)
    with pytest.raises(
        gm.ArgumentError, match=r"^axes='abc' must be a sequence of integers, one for each dimension of x$"
    ):
        gm.transpose(X, axes="abc")
    with pytest.raises(gm.ArgumentError, match=r"^axes=\(0, 1\) is not a permutation of the 1 dimension of x; name"):
        gm.transpose(X[0], axes=(0, 1))
    with pytest.raises(TypeError, match=r"^gemm\(\) got .* argument 'zzz'; help\(gemmule\.gemm\) lists all$"):
        gm.gemm(X, X, zzz=2)
    with pytest.raises(TypeError, match=r"^gemm\(\) got an unexpected keyword argument 'transb'; .* pass a\.T or b\.T"):
        gm.gemm(X, X, transb=True)
    for function in (*PLANNED, gm.grouped_gemm, gm.scaled_gemm, gm.quantize):
        name = rf"{function.__name__}\.plan"
        with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected .* 'chips'; did you mean chip\?$"):
            function.plan(X, chips="h100")
        with pytest.raises(TypeError, match=rf"^{name}\(\) got .* 'zzz'; help\(gemmule\.{name}\) lists all$"):
            function.plan(X, zzz=1)
    with pytest.raises(TypeError, match=r"^gemm\.plan\(\) missing 1 required positional argument: 'b'$"):
        gm.gemm.plan(X)
    with pytest.raises(TypeError, match=r"^matrix_transpose\.plan\(\) takes 1 positional argument but 2 were given$"):
        gm.matrix_transpose.plan(X, X)


def test_a_plan_computes_what_the_call_computes():
    options = {"alpha": 2.0, "beta": 3.0, "bias": X[0], "epilogue": "relu", "executor": "cpu"}
    np.testing.assert_array_equal(gm.gemm.plan(X, X, X, **options).execute(), gm.gemm(X, X, X, **options))
    x = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(gm.transpose.plan(x, (1, 0, 2)).execute(), x.transpose(1, 0, 2))
    np.testing.assert_array_equal(gm.matrix_transpose.plan(x).execute(), x.swapaxes(1, 2))


def plan_on_a_gpu(name, shape=(1000, 1000, 1000), dtype="bfloat16", precision=Precision.IEEE, **config):
    spec = SPECS[name]
    choice = Choice(spec, dataclasses.replace(spec.default, **config))
    problem = contiguous_gemm(*shape, (dtype, dtype, dtype), precision=precision)
    then = choice.next_kernel(problem)
    return Plan("matmul", "gpu", "GPU", name, "so", 0, 0, lambda: None, problem=problem,
                next_kernel=then.spec.name if then else "", choice=choice)  # fmt: skip


def test_the_workspaces_of_split_k_are_told():
    plan = plan_on_a_gpu("hopper_gemm", (128, 192, 8192), split_k=1, cluster_m=1)
    # For each part of K but the last the sums of a tile, and a flag for each warpgroup that shares it.
    config, parts = plan.choice.config, plan.choice.spec.launch(plan.problem, plan.choice.config).grid[1]
    assert plan.workspace_bytes == (parts - 1) * (config.tile_elements * 4 + config.warpgroups_per_tile * FLAG_BYTES)
    assert f"workspace: {short_quantity(plan.workspace_bytes, 'B')}" in str(plan).splitlines()


def test_no_workspace_is_not_mentioned():
    plan = plan_on_a_gpu("hopper_gemm")
    assert plan.workspace_bytes == 0
    assert "workspace" not in str(plan)
    assert dataclasses.replace(plan, executor="vgpu").workspace_bytes == 0


def test_packed_operands_are_workspaces():
    plan = plan_on_a_gpu("hopper_gemm_repacked", (515, 301, 317))
    assert plan.next_kernel
    assert plan.workspace_bytes >= 2 * (515 + 301) * 317
    assert f"workspace: {short_quantity(plan.workspace_bytes, 'B')}" in str(plan).splitlines()


def test_parts_of_float32_are_workspaces():
    plan = plan_on_a_gpu("bf16x6_gemm", (512, 256, 640), "float32", Precision.BF16X6)
    assert plan.next_kernel == "bf16x6_products"
    # Three parts of 16 bits.
    assert plan.workspace_bytes == 6 * (512 + 256) * 640
    assert "followed by: bf16x6_products" in str(plan).splitlines()


def test_a_plan_without_a_kernel_says_nothing_of_a_choice():
    plan = gm.matmul.plan(X32, X32, executor="cpu")
    assert (plan.chosen_by, plan.chosen_from, plan.predicted_us) == ("", "", None)
    assert "chosen by" not in str(plan)


def test_a_plan_says_what_chose_and_what_is_expected():
    plan = gm.matmul.plan(X32, X32, executor="vgpu")
    assert plan.chosen_by == "single"
    why = "the first kernel that takes it; chip='h100' chooses as on an H100"
    assert f"chosen by: single ({why})" in str(plan).splitlines()
    assert "chosen by: single (the kernel's only config)" in str(dataclasses.replace(plan, executor="gpu")).splitlines()
    tuned = dataclasses.replace(plan, chosen_by="tuned", chosen_from="tuned.json: H200, today", predicted_us=9.04)
    assert "chosen by: tuned (tuned.json: H200, today)" in str(tuned).splitlines()
    assert str(tuned).splitlines()[0].endswith(f"; expected 9.0 us, {2 * 16**3 / 9.04:.4g} MFLOP/s")
    predicted = dataclasses.replace(plan, chosen_by="cost", predicted_us=12000.0, flop=10**13)
    assert str(predicted).splitlines()[0].endswith("; expected 12 ms, 833.3 TFLOP/s")


def test_the_verdict_comes_first_and_refusals_where_they_are_wanted():
    plan = gm.matmul.plan(X32, X32, executor="vgpu")
    verdict, why, *others = str(plan).splitlines()
    assert verdict == f"matmul: {plan.kernel} on virtual GPU (sm_90a) (vgpu)"
    assert why == "why: executor='vgpu' is set"
    assert others[-1] == f"refused: {len(plan.refused)} kernels; plan.describe(verbose=True) lists reasons"
    assert len(others) < 8
    reason = "A and B are float32; this kernel rounds them to TF32, for precision='tf32'"
    assert ("hopper_gemm", reason) in plan.refused
    verbose = plan.describe(verbose=True).splitlines()
    assert verbose[: 1 + len(others)] == [verdict, why, *others[:-1]]
    assert verbose[1 + len(others) :] == [f"refused: {name}: {why_not}" for name, why_not in plan.refused]
