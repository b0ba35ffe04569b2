"""The public functions on PyTorch tensors on a GPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import DTYPES, dtype_named
from gemmule.core.errors import ArgumentError, DTypeError, OverlapError
from support.gpu.torch_arrays import to_numpy, to_torch
from support.oracle import assert_product, random_matrix


@pytest.mark.parametrize(("ta", "tb"), list(itertools.product((False, True), repeat=2)), ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_transpose_combinations(torch, dtype, ta, tb, rng):
    a, b = random_matrix(rng, dtype, (70, 33)), random_matrix(rng, dtype, (33, 95))
    device_a = to_torch(torch, a.T.copy()).T if ta else to_torch(torch, a)
    device_b = to_torch(torch, b.T.copy()).T if tb else to_torch(torch, b)
    got = gm.matmul(device_a, device_b)
    assert got.is_cuda
    assert got.dtype == device_a.dtype
    assert got.is_contiguous()
    assert_product(to_numpy(torch, got), a, b)


def test_gemm_gives_int32_for_int8(torch, rng):
    a, b = (random_matrix(rng, dtype_named("int8"), (64, 64)) for _ in range(2))
    got = gm.gemm(to_torch(torch, a), to_torch(torch, b))
    assert got.dtype == torch.int32
    assert_product(to_numpy(torch, got), a, b)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((5,), (5,)),
        ((5,), (5, 7)),
        ((3, 5), (5,)),
        ((2, 1, 3, 5), (4, 5, 7)),
        ((4, 3, 5), (5, 7)),
        ((0, 5), (5, 3)),
        ((3, 0), (0, 2)),
    ],
    ids=str,
)
def test_shapes_of_the_array_api(torch, first, second, rng):
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in (first, second))
    got = to_numpy(torch, gm.matmul(to_torch(torch, a), to_torch(torch, b)))
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, atol=1e-4)


def test_out_alpha_beta_and_in_place_c(torch, rng):
    a, b, c = (rng.standard_normal((130, 130)).astype(np.float32) for _ in range(3))
    device_c = to_torch(torch, c)
    result = gm.gemm(to_torch(torch, a), to_torch(torch, b), device_c, alpha=0.5, beta=2.0, out=device_c)
    assert result is device_c
    assert_product(to_numpy(torch, device_c), a, b, c, 0.5, 2.0)


def test_the_current_stream_is_used_and_nothing_waits(torch, rng):
    a, b = (rng.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
    device_a, device_b = to_torch(torch, a), to_torch(torch, b)
    gm.matmul(device_a, device_b)  # compiled and loaded
    late_a = torch.zeros_like(device_a)
    torch.cuda.synchronize()
    stream, done = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)
        late_a.copy_(device_a)
        got = gm.matmul(late_a, device_b)
        done.record()
    assert not done.query(), "the call waited for the GPU"
    stream.synchronize()
    assert_product(to_numpy(torch, got), a, b)


def test_an_explicit_stream(torch, rng):
    a, b = (rng.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
    device_a, device_b = to_torch(torch, a), to_torch(torch, b)
    late_a = torch.zeros_like(device_a)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        late_a.copy_(device_a)
    got = gm.matmul(late_a, device_b, stream=stream)
    got_by_handle = gm.transpose(late_a, stream=stream.cuda_stream)
    stream.synchronize()
    assert_product(to_numpy(torch, got), a, b)
    np.testing.assert_array_equal(to_numpy(torch, got_by_handle), a.T)


def test_a_cuda_graph_captures_and_replays(torch, rng):
    a, b = (to_torch(torch, rng.standard_normal((96, 96)).astype(np.float32)) for _ in range(2))
    out = torch.empty_like(a)
    gm.matmul(a, b, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gm.matmul(a, b, out=out)
    a.copy_(torch.randn_like(a))
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert_product(to_numpy(torch, out), to_numpy(torch, a), to_numpy(torch, b))


def test_refusals(torch):
    a = torch.ones(8, 8, device="cuda")
    with pytest.raises(OverlapError, match="shares memory with a"):
        gm.matmul(a, a, out=a)
    with pytest.raises(OverlapError, match="elements of out"):
        gm.matmul(a, a, out=torch.empty(8, 1, device="cuda").expand(8, 8))
    both = torch.ones(8, 16, device="cuda")
    gm.matmul(both[:, :8], a, out=both[:, 8:])  # interleaved, but no element is shared
    with pytest.raises(ArgumentError, match="host and b"):
        gm.matmul(a.cpu(), a)
    with pytest.raises(ArgumentError, match="requires grad"):
        gm.matmul(a.clone().requires_grad_(), a)
    with pytest.raises(DTypeError, match="complex32"):
        gm.matmul(torch.view_as_complex(both.half().view(8, 8, 2)), a)
    with pytest.raises(ArgumentError, match="executor='cpu'"):
        gm.matmul(a, a, executor="cpu")
    with pytest.raises(DTypeError, match="int64"):
        gm.matmul(a.long(), a.long())


@pytest.mark.parametrize(
    "dtype",
    ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int8", "int64", "bool", "complex64", "complex128"],
)
def test_transposes(torch, dtype):
    x = (torch.randn(3, 45, 70, device="cuda") * 50).to(getattr(torch, dtype))
    bits = torch.uint8
    assert torch.equal(gm.matrix_transpose(x).view(bits), x.transpose(1, 2).contiguous().view(bits))
    assert torch.equal(gm.transpose(x).view(bits), x.permute(2, 1, 0).contiguous().view(bits))
    assert torch.equal(gm.transpose(x, (1, 0, -1)).view(bits), x.permute(1, 0, 2).contiguous().view(bits))
    assert torch.equal(
        gm.matrix_transpose(x[::2, 1:, ::3]).view(bits), x[::2, 1:, ::3].transpose(1, 2).contiguous().view(bits)
    )


def test_plan_says_what_runs(torch):
    a = torch.ones(64, 64, device="cuda")
    plan = gm.matmul.plan(a, a)
    assert plan.executor == "gpu"
    assert plan.device == torch.cuda.get_device_name()
    assert plan.problem.flop == 2 * 64**3
    np.testing.assert_array_equal(to_numpy(torch, plan.execute()), np.full((64, 64), 64, np.float32))


def test_a_capture_is_not_broken_by_memory_that_waits(torch, rng):
    x = to_torch(torch, rng.standard_normal((64, 64)).astype(np.float32))
    out = torch.empty_like(x)
    gm.matmul(x, x, out=out)
    torch.cuda.synchronize()
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        torch.cuda._sleep(200_000_000)
    late = gm.matmul(x, x, stream=other)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(200):
            gm.matmul(x, x, out=out)
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, late)


def test_a_plan_works_on_the_stream_that_is_current_when_it_runs(torch, rng):
    x = to_torch(torch, rng.standard_normal((200, 200)).astype(np.float32))
    out = torch.empty_like(x)
    plan = gm.matmul.plan(x, x, out=out)
    plan.execute()
    torch.cuda.synchronize()
    out.fill_(float("nan"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.execute()
    graph.replay()
    torch.cuda.synchronize()
    assert_product(to_numpy(torch, out), to_numpy(torch, x), to_numpy(torch, x))


def test_memory_handed_to_another_stream_is_kept_until_then_and_let_go(torch):
    import gc
    import time
    import weakref

    first, x = (torch.ones(64, 64, device="cuda") for _ in range(2))
    stream = torch.cuda.Stream()
    # Compiled and chosen before the clock runs: the stream is busy for about a second only.
    gm.matmul(first, first, stream=stream)
    gc.collect()
    torch.cuda.synchronize()
    alive = weakref.ref(x)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(2_000_000_000)
    got = gm.matmul(x, x, stream=stream)
    del x
    gc.collect()
    assert alive() is not None, "the input was let go while the GPU still had to read it"
    stream.synchronize()
    for _ in range(100):
        if alive() is None:
            break
        time.sleep(0.01)
    assert alive() is None, "the input was kept after the GPU had read it"
    assert (got == 64).all()
