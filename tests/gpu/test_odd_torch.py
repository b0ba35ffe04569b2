"""The public functions on PyTorch tensors whose rows and pointers are not at multiples of 16 bytes."""

from __future__ import annotations

import pytest

import gemmule as gm
from gemmule.core.dtype import dtype_named
from gemmule.runtime.device import get_device
from support.gpu.torch_arrays import to_numpy, to_torch
from support.oracle import assert_product, random_matrix

KIND = dtype_named("bfloat16")


@pytest.fixture(autouse=True)
def _hopper():
    if get_device().capability != (9, 0):
        pytest.skip("needs compute capability 9.0")


def test_a_plan_names_both_kernels_and_the_workspace(torch, rng):
    a, b = random_matrix(rng, KIND, (1027, 603)), random_matrix(rng, KIND, (603, 1051))
    plan = gm.matmul.plan(to_torch(torch, a), to_torch(torch, b))
    assert plan.kernel == "hopper_gemm_repacked"
    assert plan.next_kernel.startswith("hopper_gemm_unaligned [tile_m=")
    assert plan.workspace_bytes == 2 * (1027 * 640 + 603 * 1088)
    assert f"followed by: {plan.next_kernel}" in str(plan)
    assert_product(to_numpy(torch, plan.execute()), a, b)
    whole = gm.matmul.plan(to_torch(torch, a[:1024, :600].copy()), to_torch(torch, b[:600, :1048].copy()))
    assert (whole.kernel, whole.next_kernel, whole.workspace_bytes) == ("hopper_gemm", "", 0)


def test_a_view_that_begins_anywhere_in_an_aligned_tensor(torch, rng):
    """Rows of whole 16 bytes, the first element between two of them; the rest of out stays as it is."""
    a, b = random_matrix(rng, KIND, (264, 264)), random_matrix(rng, KIND, (264, 264))
    out = to_torch(torch, random_matrix(rng, KIND, (264, 264)))
    before = to_numpy(torch, out).copy()
    da, db = to_torch(torch, a)[3:259, 5:255], to_torch(torch, b)[1:251, 7:260]
    gm.matmul(da, db, out=out[2:258, 9:262])
    after = to_numpy(torch, out)
    assert_product(after[2:258, 9:262].copy(), a[3:259, 5:255], b[1:251, 7:260])
    before[2:258, 9:262] = after[2:258, 9:262]
    assert (before.view("u2") == after.view("u2")).all()


def test_c_in_place_on_another_stream(torch, rng):
    a, b, c = (random_matrix(rng, KIND, shape) for shape in ((131, 77), (77, 99), (131, 99)))
    stream = torch.cuda.Stream()
    tensors = [to_torch(torch, x) for x in (a, b, c)]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            out = gm.gemm(*tensors, alpha=0.5, beta=2.0, out=torch.empty_like(tensors[2]))
        gm.gemm(*tensors, alpha=0.5, beta=2.0, out=tensors[2])
    stream.synchronize()
    assert_product(to_numpy(torch, out), a, b, c, 0.5, 2.0)
    assert torch.equal(out, tensors[2])


def test_a_broadcast_batch(torch, rng):
    a, b = random_matrix(rng, KIND, (5, 1, 67, 45)), random_matrix(rng, KIND, (1, 3, 45, 37))
    got = gm.matmul(to_torch(torch, a), to_torch(torch, b))
    assert_product(to_numpy(torch, got), a, b)
