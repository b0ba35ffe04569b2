"""Gated activations and the absolute maximum of every kernel that knows them, on the hardware."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest

import gemmule as gm
from gemmule.api.epilogues.ending import ending_of
from gemmule.core.dtype import FLOAT32, dtype_named
from gemmule.core.epilogue import Epilogue
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel
from support.epilogue_cases import silu
from support.gpu.device_arrays import STREAM, DeviceMatrix, strides_of
from support.oracle import poisoned, random_matrix

KNOWING = [spec for spec in REGISTRY if spec.gated]
CONFIGS = [
    pytest.param(spec, config, id=f"{spec.name}-{config}".replace(" ", ","))
    for spec in KNOWING
    for config in spec.configs
    if config.as_dict().get("sum_bits", 32) == 32
]


def finish(spec, config, rng, *, shape=(136, 200, 520), kind="row", batch=(), out="bfloat16"):
    """Run a gated activation with C and the maximum in the first config that can; hold both against float64."""
    device, dtype, out = get_device(), dtype_named("bfloat16"), dtype_named(out)
    m, n, k = shape
    ending, _ = ending_of(lambda gate, up, c: gm.epilogue.silu(gate) * up - c, None, np.zeros(1), None, gated=True)
    arrays = {
        "a": random_matrix(rng, dtype, (*batch, m, k)),
        "b": random_matrix(rng, dtype, (*batch, k, n)),
        "u": random_matrix(rng, dtype, (*batch, k, n)),
        "c": random_matrix(rng, out, (*batch, m, n)),
        "d": poisoned(out, (*batch, m, n)),
    }
    with ExitStack() as stack:
        put = {}
        for role, array in arrays.items():
            strides = strides_of(kind if role in "bu" or batch else "row", batch, *array.shape[-2:])
            matrix = DeviceMatrix(dtype_named(array.dtype.name), array.shape, strides)
            put[role] = stack.enter_context(matrix).put(array)
        largest = stack.enter_context(DeviceMatrix(FLOAT32, (1, 1), (1, 1))).put(0)
        a, b, u, c, d = (one.matrix() for one in put.values())
        epilogue = Epilogue(ending.expression, (), (), u, absmax=True)
        problem = GemmProblem(m, n, k, batch, a, b, c, d, epilogue=epilogue)
        reasons = {one: spec.why_not(problem, device.arch, one) for one in (config and [config]) or spec.configs}
        config = next((one for one, reason in reasons.items() if reason is None), None)
        if config is None:
            pytest.skip("; ".join(reasons.values()))
        addresses = {name: one.address for name, one in put.items()} | {"absmax": largest.address}
        run_kernel(problem, Choice(spec, config), addresses, 0, STREAM)
        got, found = put["d"].get().astype("f8"), float(largest.get()[0, 0])
    wide = {role: array.astype("f8") for role, array in arrays.items() if role != "d"}
    gate, up = wide["a"] @ wide["b"], wide["a"] @ wide["u"]
    exact = silu(gate) * up - wide["c"]
    size = (np.abs(wide["a"]) @ np.abs(wide["b"])).max()
    bound = (k + 32) * 2.0**-24 * size * 1.2 * (np.abs(silu(gate)) + np.abs(up) + 1) + 2.0**-17 * (np.abs(exact) + 4)
    assert np.isfinite(got).all()
    assert (np.abs(got - exact) <= bound + out.unit_roundoff * np.abs(exact) * 1.01).all()
    assert abs(found - np.abs(exact).max()) <= bound.max()


@pytest.mark.parametrize("kind", ["row", "col"])
@pytest.mark.parametrize(("spec", "config"), CONFIGS)
def test_configs(spec, config, kind, rng):
    finish(spec, config, rng, kind=kind)


@pytest.mark.parametrize("shape", [(1, 8, 8), (129, 264, 72), (71, 133, 101)], ids=str)
@pytest.mark.parametrize("spec", KNOWING, ids=lambda spec: spec.name)
def test_shapes(spec, shape, rng):
    finish(spec, None, rng, shape=shape, out="float32")


@pytest.mark.parametrize("spec", KNOWING, ids=lambda spec: spec.name)
def test_batches(spec, rng):
    finish(spec, None, rng, shape=(72, 136, 104), batch=(3,), kind="whole")


@pytest.mark.parametrize("storage", ["halves", "pairs"])
def test_torch_arrays(storage, rng):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    m, n, k = 200, 264, 136
    x, w = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for shape in ((2, m, k), (2 * n, k)))
    bias, largest = torch.randn(2 * n, device="cuda"), torch.full((1,), float("nan"), device="cuda")
    product = x.double() @ w.double().T + bias.double()
    gate, up = product.chunk(2, -1) if storage == "halves" else (product[..., ::2], product[..., 1::2])
    exact = torch.nn.functional.silu(gate) * up
    for factor in (1.0, 0.5):
        got = gm.gemm(
            x, w.T, bias=bias, gated=storage, absmax=largest,
            epilogue=lambda gate, up, s: s * gm.epilogue.silu(gate) * up,
            epilogue_args={"s": factor},
        )  # fmt: skip
        assert got.shape == (2, m, n)
        assert bool(((got.double() - factor * exact).abs() <= 2**-8 * exact.abs() + 1e-3).all())
        # The second call overwrites the maximum of the first.
        assert float(largest) == pytest.approx(factor * float(exact.abs().max()), rel=1e-4)


@pytest.mark.parametrize("kind", ["gapped", "padded", "reversed"])
def test_copies_of_both_factors(kind, rng):
    copying = next(spec for spec in KNOWING if spec.name == "hopper_gemm_repacked")
    for config in copying.configs:
        finish(copying, config, rng, kind=kind)
