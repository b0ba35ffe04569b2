"""Too little memory on the GPU: a clear error, and a process that goes on."""

from __future__ import annotations

import pytest

import gemmule as gm
from gemmule.core.dtype import dtype_named
from gemmule.core.errors import DeviceMemoryError, DriverError
from gemmule.runtime.device import get_device
from gemmule.runtime.memory import DeviceBuffer
from support.gpu.torch_arrays import to_numpy, to_torch
from support.oracle import assert_product, random_matrix

KIND = dtype_named("bfloat16")


@pytest.fixture
def full(torch):
    """Return what fills the GPU's memory but for some bytes."""

    def fill(left):
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        return torch.empty(max(free - left, 0) & ~511, dtype=torch.uint8, device="cuda")

    yield fill
    torch.cuda.empty_cache()


def test_a_buffer_says_what_is_needed_and_what_is_free():
    with pytest.raises(
        DeviceMemoryError, match=r"cuMemAllocAsync .*OUT_OF_MEMORY.*: 2251799813685248 bytes are needed on"
    ):
        DeviceBuffer(1 << 51, 0, 0)
    with DeviceBuffer(1 << 20, 0, 0) as buffer:
        assert buffer.address
    assert issubclass(DeviceMemoryError, DriverError)


def test_no_room_for_a_workspace(torch, full, rng):
    if get_device().capability != (9, 0):
        pytest.skip("needs compute capability 9.0")
    small = [random_matrix(rng, KIND, shape) for shape in ((1031, 515), (515, 1031))]
    tensors = [to_torch(torch, x) for x in small]
    assert gm.matmul.plan(*tensors).kernel == "hopper_gemm_repacked"
    m = 12001
    a, b = (torch.randn(m, m, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    assert gm.matmul.plan(a, b).workspace_bytes > 400 << 20
    for warm in (False, True):
        if warm:
            gm.matmul(a, b, out=out)
            gm.matmul(a, b, out=out)
            torch.cuda.synchronize()
        filler = full(150 << 20)
        with pytest.raises(DeviceMemoryError, match=r"bytes are needed on GPU 0, .*empty_cache"):
            gm.matmul(a, b, out=out)
        # What needs little goes on, and all does when there is room again.
        assert_product(to_numpy(torch, gm.matmul(*tensors)), *small)
        del filler
        torch.cuda.empty_cache()
        gm.matmul(a, b, out=out)
        rows = slice(7000, 7050)
        assert_product(to_numpy(torch, out[rows]), to_numpy(torch, a[rows]), to_numpy(torch, b))


def test_no_room_for_the_result(torch, full):
    a = torch.randn(64 << 10, 64, device="cuda")
    filler = full(64 << 20)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            gm.matmul(a, a.T)
    del filler
    torch.cuda.empty_cache()
    torch.testing.assert_close(gm.matmul(a.T, a), a.T @ a, rtol=1e-3, atol=0.5)
