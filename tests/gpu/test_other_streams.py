"""Calls that name another stream than the current one: results, the memory of the operands, and the process's end."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import gemmule as gm
from support.gpu.repeated_products import arrays, planned
from support.gpu.torch_arrays import to_numpy
from support.oracle import assert_product

__all__ = ["arrays", "planned"]

AT_THE_END = """
import sys, torch
import gemmule as gm
x = torch.ones(64, 64, device="cuda")
out, stream = torch.empty_like(x), torch.cuda.Stream()
gm.matmul(x, x, out=out, stream=stream)
torch.cuda.synchronize()
with torch.cuda.stream(stream):
    torch.cuda._sleep(300_000_000)
for _ in range(int(sys.argv[1])):
    gm.matmul(x, x, out=out, stream=stream)
print("queued")
"""


def test_results_on_a_stream_that_is_named(torch, arrays, planned):
    """They are made of that stream's memory, and nothing is planned again."""
    (a, b), (da, db) = arrays("float32", (256, 256), (256, 256))
    # Streams come from a pool: what tests before gave back on this one would be taken first.
    torch.cuda.empty_cache()
    stream = torch.cuda.Stream()
    gm.matmul(da, db, stream=stream)
    stream.synchronize()
    planned.clear()
    for name in (stream, stream.cuda_stream):
        late = torch.zeros_like(da)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            late.copy_(da)
        got = gm.matmul(late, db, stream=name)
        place = late.data_ptr()
        del late
        taken = [torch.zeros(256, 256, device="cuda") for _ in range(4)]
        assert place not in [x.data_ptr() for x in taken]
        stream.synchronize()
        assert_product(to_numpy(torch, got), a, b)
        place = got.data_ptr()
        del got
        taken += [torch.empty(256, 256, device="cuda") for _ in range(4)]
        assert place not in [x.data_ptr() for x in taken]
        with torch.cuda.stream(stream):
            assert torch.empty(256, 256, device="cuda").data_ptr() == place
    assert not planned


@pytest.mark.parametrize("calls", [1, 100])
def test_a_process_may_end_while_work_is_queued(torch, calls):
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_END, str(calls)], capture_output=True, text=True, check=False, timeout=200
    )
    assert (done.returncode, done.stdout) == (0, "queued\n"), done.stderr


def test_many_products_on_two_streams_whose_operands_are_given_back_at_once(torch, rng):
    """Each operand is written late, on the stream that the product is queued on; nobody may have its memory before."""
    values = rng.integers(-3, 4, (60, 96, 96)).astype(np.float32)
    given, one = torch.from_numpy(values).cuda(), torch.eye(96, device="cuda")
    streams = [torch.cuda.Stream() for _ in range(2)]
    for stream in streams:
        gm.matmul(given[0], one, stream=stream)
    torch.cuda.synchronize()
    results = []
    for number in range(len(values)):
        stream = streams[number % 2]
        late = torch.full((96, 96), float("nan"), device="cuda")
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
            late.copy_(given[number])
        results.append(gm.matmul(late, one, stream=stream))
        del late
    torch.cuda.synchronize()
    for value, result in zip(values, results, strict=True):
        np.testing.assert_array_equal(to_numpy(torch, result), value)
