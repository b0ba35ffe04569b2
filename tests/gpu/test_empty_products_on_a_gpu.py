"""Products of nothing on a GPU, by the public functions and by each kernel; tests/vgpu has the same."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import Precision
from gemmule.dispatch.registry import REGISTRY
from support.empty_products import KINDS, THOROUGH, empty_products, kind_id
from support.gpu.kernel_products import multiply
from support.gpu.torch_arrays import to_numpy, to_torch
from support.kernel_kinds import TRIANGLES, plainest

GEMMS = [spec for spec in REGISTRY if spec.operation == "gemm" and spec.name not in TRIANGLES]


@pytest.mark.parametrize("kind", KINDS, ids=kind_id)
def test_torch_tensors(torch, kind, rng):
    thorough = kind in THOROUGH
    for case in empty_products(rng, kind, thorough=thorough):
        options = {name: to_torch(torch, x) if isinstance(x, np.ndarray) else x for name, x in case.options.items()}
        a, b = (to_torch(torch, x) for x in case.operands)
        out = to_torch(torch, case.out())
        # The first call plans; the others find what is kept.
        for _ in range(3):
            got = gm.gemm(a, b, **options)
            np.testing.assert_array_equal(to_numpy(torch, got), case.expected, err_msg=str(case))
            out.copy_(to_torch(torch, case.out()))
            assert gm.gemm(a, b, **options | {"out_dtype": None}, out=out) is out
            np.testing.assert_array_equal(to_numpy(torch, out), case.expected, err_msg=str(case))
            if thorough and case.absmax is not None:
                largest = torch.full((1,), float("nan"), device="cuda")
                out.copy_(to_torch(torch, case.out()))
                gm.gemm(a, b, **options | {"out_dtype": None}, out=out, absmax=largest)
                np.testing.assert_array_equal(to_numpy(torch, out), case.expected, err_msg=str(case))
                assert largest.item() == case.absmax, case


@pytest.mark.parametrize("kind", THOROUGH, ids=kind_id)
def test_host_arrays(kind, rng):
    for case in empty_products(rng, kind):
        out = case.out()
        assert gm.gemm(*case.operands, **case.options | {"out_dtype": None}, out=out, executor="gpu") is out
        np.testing.assert_array_equal(out, case.expected, err_msg=str(case))


@pytest.mark.parametrize("spec", GEMMS, ids=lambda spec: spec.name)
def test_each_kernel(spec, rng):
    """It refuses, or writes the result."""
    variant = plainest(spec.name)
    options = {"precision": Precision.parse(variant.family.precision)}
    written = 0
    for case in empty_products(rng, (variant.types, variant.family.precision), thorough=False):
        given = case.options
        if "bias" in given:
            continue
        c = {"c": given["c"], "beta": given["beta"]} if "c" in given else {}
        batch = case.expected.shape[:-2]
        try:
            got = multiply(spec, *case.operands, case.out(), **c, alpha=given["alpha"], batch=batch, **options)
        except pytest.skip.Exception:
            continue
        np.testing.assert_array_equal(got, case.expected, err_msg=str(case))
        written += 1
    if not written:
        pytest.skip("it refuses all of them")
