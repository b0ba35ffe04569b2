"""A matrix times its own transpose on the hardware: exactly symmetric, and never taken for another product."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack

import numpy as np
import pytest

import gemmule as gm
from gemmule.api.calls.call_cache import CALLS
from gemmule.core.dtype import Precision, dtype_named
from gemmule.core.problem import GemmProblem, mark_own_transpose
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel
from support.gpu.device_arrays import STREAM, DeviceMatrix, strides_of
from support.gpu.torch_arrays import to_numpy, to_torch
from support.oracle import assert_product, poisoned, random_matrix

SPEC = next(spec for spec in REGISTRY if spec.name == "hopper_syrk")
CONFIGS = [pytest.param(config, id=str(config).replace(" ", ",")) for config in SPEC.configs]


@pytest.fixture(autouse=True)
def _hopper():
    if get_device().capability != (9, 0):
        pytest.skip("needs compute capability 9.0")


def square(a, out, config, *, kind="row", out_kind="row", batch=(), alpha=1, precision="ieee"):
    """Return alpha A @ A.T by the kernel, with A and the result as told."""
    with ExitStack() as stack:

        def device(values, how):
            dtype, sides = dtype_named(values.dtype.name), values.shape[-2:]
            return stack.enter_context(DeviceMatrix(dtype, (*batch, *sides), strides_of(how, batch, *sides))).put(
                values
            )

        da, dd = device(a, kind), device(out, out_kind)
        one = da.matrix()
        m, k = a.shape[-2:]
        problem = GemmProblem(m, m, k, batch, one, one.transposed(), None, dd.matrix(), alpha)
        problem = mark_own_transpose(dataclasses.replace(problem, precision=Precision.parse(precision)), same=True)
        assert SPEC.why_not(problem, get_device().arch, config) is None
        pointers = {"a": da.address, "b": da.address, "d": dd.address}
        run_kernel(problem, Choice(SPEC, config), pointers, 0, STREAM)
        return dd.get()


def check(got, a, alpha=1):
    assert_product(got, a, a.swapaxes(-1, -2), alpha=alpha)
    np.testing.assert_array_equal(got, got.swapaxes(-1, -2))


@pytest.mark.parametrize("shape", [(8, 64), (64, 1), (136, 72), (264, 1000), (1000, 712), (2056, 520)], ids=str)
@pytest.mark.parametrize("config", CONFIGS)
def test_ragged_tiles(config, shape, rng):
    m, k = shape[0], max(shape[1], 64 * config.cluster_k - 56)
    kind = dtype_named("bfloat16")
    a = random_matrix(rng, kind, (m, k))
    check(square(a, poisoned(kind, (m, m)), config, kind="whole", alpha=0.75), a, 0.75)


@pytest.mark.parametrize("out_kind", ["row", "col", "padded"])
@pytest.mark.parametrize("shape", [(1, 64), (71, 24), (513, 200), (2047, 328)], ids=str)
@pytest.mark.parametrize(
    "config",
    [
        one
        for one in CONFIGS
        if one.values[0].holds_rows and one.values[0].cluster_size == 1 and not one.values[0].tile_n % 64
    ],
)
def test_results_whose_lines_begin_anywhere(config, shape, out_kind, rng):
    kind = dtype_named("bfloat16")
    a = random_matrix(rng, kind, shape)
    check(square(a, poisoned(kind, (shape[0], shape[0])), config, kind="whole", out_kind=out_kind, alpha=2), a, 2)


@pytest.mark.parametrize("out", ["float16", "float32"])
@pytest.mark.parametrize(("kind", "out_kind"), [("row", "col"), ("col", "row"), ("col", "col")], ids="-".join)
@pytest.mark.parametrize("config", CONFIGS)
def test_layouts_and_results(config, kind, out_kind, out, rng):
    m, k = 328, 64 * config.cluster_k + 136
    a = random_matrix(rng, dtype_named("float16"), (m, k))
    check(square(a, poisoned(dtype_named(out), (m, m)), config, kind=kind, out_kind=out_kind), a)


@pytest.mark.parametrize("shape", [(136, 72), (1004, 520)], ids=str)
def test_tf32(torch, shape, rng):
    # Values that TF32 holds.
    values = random_matrix(rng, dtype_named("bfloat16"), shape).astype(np.float32)
    for config in SPEC.configs:
        if config.tile_n % 32 == 0 and config.cluster_size == 1:
            check(square(values, poisoned(dtype_named("float32"), (shape[0],) * 2), config, precision="tf32"), values)
    x = to_torch(torch, random_matrix(rng, dtype_named("float32"), (2048, 1024)))
    assert gm.matmul.plan(x, x.T, precision="tf32").kernel == "hopper_syrk"
    assert gm.matmul.plan(x, x.T).kernel != "hopper_syrk"
    got = gm.matmul(x, x.T, precision="tf32")
    assert torch.equal(got, got.T)
    assert (got - x.double() @ x.double().T).abs().max() < 1.0


@pytest.mark.parametrize("config", CONFIGS)
def test_batches(config, rng):
    kind = dtype_named("bfloat16")
    a = random_matrix(rng, kind, (7, 200, 64 * config.cluster_k + 8))
    check(square(a, poisoned(kind, (7, 200, 200)), config, kind="whole", out_kind="whole", batch=(7,)), a)


@pytest.mark.parametrize("ctas", [1, 5])
def test_few_ctas_go_over_many_tiles(ctas, rng):
    kind = dtype_named("bfloat16")
    small = min(SPEC.configs, key=lambda config: config.tile_elements)
    a = random_matrix(rng, kind, (2600, 64))
    for group in (1, 3):
        check(square(a, poisoned(kind, (2600, 2600)), dataclasses.replace(small, ctas=ctas, group=group)), a)


@pytest.mark.parametrize("config", CONFIGS)
def test_the_same_bits_every_time(config, rng):
    kind = dtype_named("bfloat16")
    a = random_matrix(rng, kind, (1032, 1536))
    first, *others = (square(a, poisoned(kind, (1032, 1032)), config) for _ in range(3))
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint16), other.view(np.uint16))


@pytest.mark.parametrize("given", [True, False], ids=["out", "no out"])
def test_what_is_kept_of_one_is_not_taken_for_another(torch, rng, given):
    """x @ x.T and x @ y.T of the same shapes and strides, in turns, with views that are made anew at every call."""
    CALLS.forget()
    kind = dtype_named("bfloat16")
    values = [random_matrix(rng, kind, (3072, 512)) for _ in range(2)]
    x, y = (to_torch(torch, one) for one in values)
    assert gm.matmul.plan(x, x.T).kernel == "hopper_syrk"
    assert gm.matmul.plan(x, y.T).kernel != "hopper_syrk"
    out = torch.empty((3072, 3072), dtype=torch.bfloat16, device="cuda") if given else None
    exact = {(i, j): values[i].astype(np.float32) @ values[j].astype(np.float32).T for i in (0, 1) for j in (0, 1)}
    scale = max(np.abs(one).max() for one in exact.values())
    for _ in range(4):
        for (i, j), wanted in exact.items():
            for _ in range(3):
                # Views have the identities of those that are gone.
                got = gm.matmul((x, y)[i], (x, y)[j].T, out=out)
                error = np.abs(to_numpy(torch, got).astype(np.float32) - wanted).max()
                assert error < 0.01 * scale, (i, j, error, scale)
                if i == j:
                    assert torch.equal(got, got.T)
    # The tensors stay, and their memory does not.
    left, right = x.clone(), y.clone().T
    for _ in range(4):
        gm.matmul(left, right, out=out)
    right.data = left.data.T
    for _ in range(4):
        got = gm.matmul(left, right, out=out)
        assert torch.equal(got, got.T)
    right.data = y.T
    error = np.abs(to_numpy(torch, gm.matmul(left, right, out=out)).astype(np.float32) - exact[0, 1]).max()
    assert error < 0.01 * scale


def test_columns_batches_and_C_through_the_interface(torch, rng):
    kind = dtype_named("float16")
    values = random_matrix(rng, kind, (3, 256, 1104))
    x = to_torch(torch, values)
    for got, a in ((gm.matmul(x, x.mT), values), (gm.matmul(x.mT, x), values.swapaxes(-1, -2))):
        assert torch.equal(got, got.mT)
        assert_product(to_numpy(torch, got), a, a.swapaxes(-1, -2))
    c = to_torch(torch, random_matrix(rng, kind, (1104, 1104)))
    got = gm.gemm(x[0].T, x[0], c, beta=1.0)
    assert_product(to_numpy(torch, got), values[0].T, values[0], to_numpy(torch, c), 1.0, 1.0)


@pytest.mark.parametrize("shape", [(2048, 4095), (2047, 2048), (2047, 4095), (640, 33)], ids=str)
def test_lines_that_are_packed_first_or_written_by_threads(torch, shape, rng):
    values = random_matrix(rng, dtype_named("bfloat16"), shape)
    x = to_torch(torch, values)
    for _ in range(3):
        # Planned, looked up, and found by the arrays.
        assert_product(to_numpy(torch, gm.matmul(x, x.T)), values, values.T)
        assert_product(to_numpy(torch, gm.matmul(x.T, x)), values.T, values)
