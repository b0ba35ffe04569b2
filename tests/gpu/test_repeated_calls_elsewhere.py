"""Products that were computed before, repeated by other threads, on other streams, in graphs and other contexts."""

from __future__ import annotations

import threading

import pytest

import gemmule as gm
from support.gpu.repeated_products import arrays, planned, poisoned
from support.gpu.torch_arrays import to_numpy
from support.oracle import assert_product

__all__ = ["arrays", "planned"]


@pytest.mark.parametrize("shape", [(256, 256, 256), (131, 77, 99)], ids=str)
def test_threads_and_streams(torch, arrays, shape):
    """Four threads, each with a stream of its own, repeat one product with arrays of their own."""
    m, n, k = shape
    work = [arrays("bfloat16", (m, k), (k, n)) for _ in range(8)]
    expected = [gm.matmul(*tensors) for _, tensors in work]
    for values, tensors in work[:2]:
        assert_product(to_numpy(torch, gm.matmul(*tensors)), *values)
    torch.cuda.synchronize()
    failures = []

    def repeat(first):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            out = [poisoned(torch, (m, n), "bfloat16") for _ in range(2)]
            for _ in range(300):
                for place, target in zip((first, first + 4), out, strict=True):
                    gm.matmul(*work[place][1], out=target)
            for place, target in zip((first, first + 4), out, strict=True):
                new = gm.matmul(*work[place][1])
                stream.synchronize()
                if not torch.equal(target, expected[place]) or not torch.equal(new, expected[place]):
                    failures.append(place)

    threads = [threading.Thread(target=repeat, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("shape", [(96, 96, 96), (131, 77, 99)], ids=str)
def test_capture_in_a_graph(torch, arrays, shape):
    m, n, k = shape
    _, (da, db) = arrays("bfloat16", (m, k), (k, n))
    out = torch.empty(m, n, device="cuda", dtype=da.dtype)
    for _ in range(2):
        gm.matmul(da, db, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gm.matmul(da, db, out=out)
        new = gm.matmul(da, db)
    # A call in between with other arrays must not change what was captured.
    _, (other_a, other_b) = arrays("bfloat16", (m, k), (k, n))
    gm.matmul(other_a, other_b, out=torch.empty_like(out))
    for _ in range(2):
        da.copy_(torch.randn_like(da))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert_product(to_numpy(torch, out), to_numpy(torch, da), to_numpy(torch, db))
        assert torch.equal(out, new)


def test_the_stream_is_looked_up_at_every_call(torch, arrays):
    (a, b), (da, db) = arrays("float32", (256, 256), (256, 256))
    out = torch.empty_like(da)
    for _ in range(2):
        gm.matmul(da, db, out=out)
    late = torch.zeros_like(da)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        late.copy_(da)
        gm.matmul(late, db, out=out)
    stream.synchronize()
    assert_product(to_numpy(torch, out), a, b)


def test_a_stream_that_is_named_is_worked_on(torch, arrays, planned):
    """Behind what is queued there, and with memory that PyTorch gives to nobody else until then."""
    (a, b), (da, db) = arrays("float32", (256, 256), (256, 256))
    out = torch.empty_like(da)
    stream = torch.cuda.Stream()
    gm.matmul(da, db, out=out, stream=stream)
    stream.synchronize()
    planned.clear()
    for name in (stream, stream.cuda_stream):
        late = torch.zeros_like(da)
        out.fill_(float("nan"))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            late.copy_(da)
        gm.matmul(late, db, out=out, stream=name)
        place = late.data_ptr()
        del late
        taken = [torch.zeros(256, 256, device="cuda") for _ in range(4)]
        assert place not in [x.data_ptr() for x in taken]
        stream.synchronize()
        assert_product(to_numpy(torch, out), a, b)
    assert not planned
    got = gm.matmul(da, db, stream=torch.cuda.current_stream())
    assert_product(to_numpy(torch, got), a, b)


def test_another_context_is_current(torch, arrays):
    from gemmule.runtime.driver import call

    (a, b), (da, db) = arrays("float32", (64, 64), (64, 64))
    out = torch.empty_like(da)
    for _ in range(2):
        gm.matmul(da, db, out=out)
    out.fill_(float("nan"))
    torch.cuda.synchronize()
    results = []

    def in_a_fresh_thread():
        gm.matmul(da, db, out=out)
        results.append(True)

    thread = threading.Thread(target=in_a_fresh_thread)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert results
    assert_product(to_numpy(torch, out), a, b)
    out.fill_(float("nan"))
    torch.cuda.synchronize()
    context = call("cuCtxCreate", None, 0, call("cuDeviceGet", 0))
    try:
        gm.matmul(da, db, out=out)
    finally:
        call("cuCtxDestroy", context)
    torch.cuda.synchronize()
    assert_product(to_numpy(torch, out), a, b)
