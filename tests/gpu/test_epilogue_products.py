"""Epilogues of every kernel that knows them, on the hardware: activations, inputs of all shapes, layouts, batches."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest

import gemmule as gm
from gemmule.api.epilogues.ending import Ending, ending_of
from gemmule.core.dtype import dtype_named
from gemmule.core.epilogue import Epilogue
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel
from support.epilogue_cases import CASES, assert_finished
from support.gpu.device_arrays import STREAM, DeviceMatrix, strides_of
from support.oracle import poisoned, random_matrix

KNOWING = [
    spec for spec in REGISTRY if spec.epilogues and spec.next_kernel is None and spec.name != "hopper_gemm_w8a16"
]
PACKED = next(spec for spec in REGISTRY if spec.epilogues and spec.next_kernel is not None)


def takes(spec, config):
    """Whether the kernel has tiles to choose, and sums of 32 bits."""
    plain = {"tile_m", "tile_n"} & set(config.as_dict())
    return bool(plain) and config.as_dict().get("sum_bits", 32) == 32


CONFIGS = [
    pytest.param(spec, config, id=f"{spec.name}-{config}".replace(" ", ","))
    for spec in KNOWING
    for config in spec.configs
    if takes(spec, config)
]


def traced(case) -> Ending:
    stand_ins = {name: np.zeros(1) for name in case.arrays if name not in ("bias", "c")}
    named = {"bias": np.zeros(1) if "bias" in case.arrays else None, "c": np.zeros(1) if "c" in case.arrays else None}
    ending, _ = ending_of(case.epilogue, named["bias"], named["c"], stand_ins | case.numbers or None)
    return ending


def finish(spec, config, case, rng, *, shape=(136, 200, 520), kinds=("row", "row", "row"), batch=(), out="bfloat16"):
    """Run a case on a kernel; hold the result against float64."""
    device = get_device()
    dtype, out = dtype_named("float32" if spec.name.startswith("simt_gemm") else "bfloat16"), dtype_named(out)
    m, n, k = shape
    a, b = random_matrix(rng, dtype, (*batch, m, k)), random_matrix(rng, dtype, (*batch, k, n))
    ending = traced(case)
    values = {
        name: random_matrix(rng, dtype_named(one.dtype or out.name), one.shape(m, n))
        for name, one in case.arrays.items()
    }
    with ExitStack() as stack:

        def placed(array, strides):
            return stack.enter_context(DeviceMatrix(dtype_named(array.dtype.name), array.shape, strides)).put(array)

        put, matrices = {}, []
        for role, array, kind in zip("abd", (a, b, poisoned(out, (*batch, m, n))), kinds, strict=True):
            put[role] = placed(array, strides_of(kind, batch, *array.shape[-2:]))
        for number, role in enumerate(ending.roles):
            value = values[role if role == "bias" else role.split("'")[1]]
            rows, cols = value.shape
            put[f"e{number}"] = placed(value, (cols, 1))
            down, along = (cols if rows > 1 else 0), (1 if cols > 1 else 0)
            dtype = dtype_named(value.dtype.name)
            matrices.append(StridedMatrix(dtype, m, n, down, along, (0,) * len(batch), dtype.itemsize))
        c = None
        if case.reads_c:
            put["c"] = placed(np.broadcast_to(values["c"], (*batch, m, n)), put["d"].strides)
            c = put["c"].matrix()
        problem = GemmProblem(
            m, n, k, batch, put["a"].matrix(), put["b"].matrix(), c, put["d"].matrix(), case.alpha, case.beta,
            epilogue=Epilogue(ending.expression, tuple(matrices), ending.numbers),
        )  # fmt: skip
        reason = spec.why_not(problem, device.arch, config)
        if reason is not None:
            pytest.skip(reason)
        run_kernel(problem, Choice(spec, config), {name: one.address for name, one in put.items()}, 0, STREAM)
        assert_finished(put["d"].get(), a, b, case, values)


@pytest.mark.parametrize("name", ["row_bias_silu", "named_c"])
@pytest.mark.parametrize(("spec", "config"), CONFIGS)
def test_configs(spec, config, name, rng):
    finish(spec, config, CASES[name], rng)


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("spec", KNOWING, ids=lambda spec: spec.name)
def test_cases(spec, name, rng):
    finish(spec, spec.default, CASES[name], rng)
    finish(spec, spec.default, CASES[name], rng, out="float32")


@pytest.mark.parametrize("kinds", [("row", "row", "col"), ("row", "col", "row"), ("col", "col", "col")], ids="-".join)
@pytest.mark.parametrize("name", ["bias_gelu", "row_bias_silu", "named_c", "two_matrices"])
@pytest.mark.parametrize("spec", KNOWING, ids=lambda spec: spec.name)
def test_layouts(spec, name, kinds, rng):
    finish(spec, spec.default, CASES[name], rng, kinds=kinds, shape=(264, 328, 136))


@pytest.mark.parametrize("name", ["bias_gelu", "row_bias_silu", "named_c"])
@pytest.mark.parametrize("spec", KNOWING, ids=lambda spec: spec.name)
def test_batches(spec, name, rng):
    finish(spec, spec.default, CASES[name], rng, kinds=("whole", "whole", "whole"), batch=(3,), shape=(71, 133, 102))


@pytest.mark.parametrize("name", ["bias_gelu", "named_c"])
def test_packed_operands(name, rng):
    finish(PACKED, PACKED.default, CASES[name], rng, shape=(136, 200, 263))


def test_torch_arrays(rng):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    m, n, k = 200, 264, 136
    a, b, r = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for shape in ((2, m, k), (k, n), (2, m, n)))
    bias, rows = torch.randn(n, dtype=torch.bfloat16, device="cuda"), torch.randn(m, 1, device="cuda")
    scale = float(rng.uniform(0.5, 2))
    for factor in (scale, scale + 1):
        got = gm.gemm(
            a, b, bias=bias, epilogue=lambda acc, r, rows, s: s * gm.epilogue.relu(acc) + r * rows,
            epilogue_args={"r": r, "rows": rows, "s": factor},
        )  # fmt: skip
        exact = factor * torch.relu(a.double() @ b.double() + bias.double()) + r.double() * rows.double()
        assert got.dtype == torch.bfloat16
        assert bool(((got.double() - exact).abs() <= 2**-8 * exact.abs() + 1e-4).all())
    got = gm.gemm(a[0], b[:, 0].contiguous(), bias=rows[:, 0], out=torch.full((m,), float("nan"), device="cuda"))
    exact = a[0].double() @ b[:, 0].double() + rows[:, 0].double()
    assert bool(((got.double() - exact).abs() <= 1e-4).all())
