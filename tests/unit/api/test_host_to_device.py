"""Host arrays by way of a GPU: its kernels see what the caller has, whatever its order, type and batch."""

from __future__ import annotations

import os

import numpy as np
import pytest

import gemmule as gm
from gemmule.api.calls.call_cache import CALLS
from gemmule.api.planning import host_rates, host_to_device
from gemmule.runtime import driver, round_trip
from support.fakes.cuda import installed
from support.fakes.device_memory import FakeMemory


def _matrices(matrix, batch, address):
    """Return the matrices of a problem's operand as an array in device memory."""
    item = matrix.dtype.itemsize
    strides = [item * stride for stride in (*matrix.batch_strides, matrix.row_stride, matrix.col_stride)]
    shape = (*batch, matrix.rows, matrix.cols)
    extent = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + item
    raw = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * extent).from_address(address))
    return np.ndarray(shape, matrix.dtype.numpy(), raw, 0, strides)


@pytest.fixture
def gpu(monkeypatch):
    """Install a GPU whose kernels multiply when their stream is waited for; `kernels` counts them."""
    with installed(FakeMemory()) as fake:
        fake.kernels = 0

        def execute(problem, choice, device, pointers, stream, execution):
            def kernel():
                given = {name: _matrices(x, problem.batch, pointers[name]) for name, x in problem.operands().items()}
                fake.kernels += 1
                sums = problem.alpha * (given["a"].astype("f8") @ given["b"].astype("f8"))
                given["d"][...] = sums + (problem.beta * given["c"] if "c" in given else 0)

            fake.queue(kernel)

        monkeypatch.setattr(host_to_device, "execute", execute)
        monkeypatch.setattr(host_to_device, "link_times", lambda ordinal: None)
        round_trip.link_of.cache_clear()
        CALLS.forget()
        yield fake
        round_trip.link_of.cache_clear()
        CALLS.forget()


CASES = {
    "rows": ((40, 30), (30, 50), lambda x: x),
    "columns": ((40, 30), (30, 50), lambda x: np.swapaxes(np.swapaxes(x, -1, -2).copy(), -1, -2)),
    "strided": ((40, 30), (30, 50), lambda x: np.repeat(x, 2, -1)[..., ::2]),
    "batch that is copied first": ((5, 4, 20, 30), (4, 30, 5), lambda x: np.repeat(x, 2, -1)[..., ::2]),
    "vectors": ((30,), (30,), lambda x: x),
    "batch": ((3, 2, 20, 30), (2, 30, 5), lambda x: x),
    "batch of columns": ((3, 20, 30), (30, 5), lambda x: np.swapaxes(np.swapaxes(x, -1, -2).copy(), -1, -2)),
    "nothing to sum": ((4, 0), (0, 5), lambda x: x),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_products(gpu, case, dtype, rng):
    left, right, laid = CASES[case]
    for _ in range(3):
        a, b = (laid(rng.integers(-9, 9, shape).astype(dtype)) for shape in (left, right))
        result = gm.matmul(a, b, executor="gpu")
        assert result.dtype == dtype
        assert np.array_equal(result, a @ b)
    assert gpu.kernels == 3


def test_repeated_matrices_are_sent_once(gpu, rng):
    a, b = rng.standard_normal((8, 64, 64)), np.broadcast_to(rng.standard_normal((64, 64)), (8, 64, 64))
    assert np.allclose(gm.matmul(a, b, executor="gpu"), a @ b)
    assert gpu.moved["in"] == 9 * 64 * 64 * 8


def test_c_bias_epilogue_and_an_output(gpu, rng):
    a, b, c = rng.standard_normal((20, 30)), rng.standard_normal((30, 10)), rng.standard_normal((20, 10))
    bias, sums = rng.standard_normal(10), 2 * (a @ b) + 3 * c
    for _ in range(2):
        given = {"alpha": 2, "beta": 3, "executor": "gpu"}
        assert np.allclose(gm.gemm(a, b, c, **given), sums)
        assert np.allclose(gm.gemm(a, b, c, bias=bias, epilogue="relu", **given), np.maximum(sums + bias, 0))
        out = c.copy()
        assert gm.gemm(a, b, out, out=out, **given) is out
        assert np.allclose(out, sums)
        out = np.zeros((10, 20)).T
        gm.gemm(a, b, c, out=out, **given)
        assert np.allclose(out, sums)


def test_a_call_like_one_before_is_not_planned(gpu, rng, monkeypatch):
    a, b = rng.standard_normal((2, 300, 300))
    gm.matmul(a, b, executor="gpu")
    monkeypatch.setattr(host_to_device, "choose_compiling", None)
    assert np.allclose(gm.matmul(b, a, executor="gpu"), b @ a)
    assert gpu.kernels == 2


def test_batches_without_room_go_matrix_by_matrix(gpu, rng, monkeypatch):
    a, b, streamed = rng.standard_normal((4, 64, 64)), rng.standard_normal((64, 64)), []
    gpu.free = 150_000
    assert np.allclose(gm.matmul(a, b, executor="gpu"), a @ b)
    assert gpu.kernels == 4
    gpu.free = 50_000
    round_trip.link_of.cache_clear()
    monkeypatch.setattr(host_to_device, "stream_arrays", lambda request, limits: streamed.append(request))
    gm.matmul(a, b, executor="gpu")
    assert len(streamed) == 4


#: Seconds of the host's squares, and of copies there and back.
HOST = (1e-5, 5e-5, 2e-4, 3e-3, 2.4e-2)
LINK = (2e-5, 3e-5, 1e-4, 4e-4, 1.6e-3, 6.4e-3, 1.28e-2)


@pytest.fixture
def rates(monkeypatch):
    """Let host and link have these rates; the link's can be set."""
    found = {"link": LINK}
    monkeypatch.setattr(host_rates, "host_times", lambda dtypes: HOST)
    monkeypatch.setattr(host_rates, "link_times", lambda ordinal: (*found["link"], *found["link"]))
    return found


def planned(n):
    return gm.matmul.plan(np.empty((n, n), "f4"), np.empty((n, n), "f4"))


def test_the_faster_way_is_chosen(gpu, rates):
    assert [planned(n).executor for n in (64, 256, 512, 1024, 2048)] == ["cpu", "cpu", "cpu", "gpu", "gpu"]
    rates["link"] = tuple(8 * one for one in LINK)
    assert [planned(n).executor for n in (512, 1024, 2048)] == ["cpu", "cpu", "cpu"]
    assert planned(8192).executor == "gpu"


def test_the_reason_has_both_times(gpu, rates):
    assert planned(1024).reason == (
        "host arrays; by rates measured on this machine 3 ms on the host, 1.291 ms through the GPU"
    )


def test_what_is_hardly_faster_stays_on_the_host(gpu, rates):
    for factor, executor in ((2.1, "gpu"), (2.3, "cpu")):
        rates["link"] = tuple(factor * one for one in LINK)
        plan = planned(1024)
        assert plan.executor == executor, plan.reason


def test_both_factors_are_copies_of_their_own(gpu, rates):
    rates["link"] = (1e-3,) * 7
    assert "3.031 ms through the GPU" in planned(512).reason


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        (False, "host arrays; fewer than 2**24 FLOP do not repay copies to a GPU"),
        (True, "no NVIDIA GPU found"),
    ],
)
def test_small_products_start_no_driver(rates, monkeypatch, missing, reason):
    monkeypatch.setattr("gemmule.api.planning.choice.device_count", None)
    monkeypatch.setattr("gemmule.api.planning.functions.driver_is_missing", lambda: missing)
    assert planned(200).reason == reason
    a = np.ones((200, 200), np.float32)
    assert gm.gemm.plan(a, a, a, beta=2).reason == reason


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_forked_processes_stay_on_the_host(gpu, rates, monkeypatch):
    monkeypatch.setattr(driver._Process, "forked", False)
    driver._Process.watch()
    a = np.ones((1024, 1024), "f4")
    assert gm.matmul.plan(a, a).executor == "gpu"
    gm.matmul(a, a)
    assert gpu.kernels == 1
    read, write = os.pipe()
    child = os.fork()
    if not child:
        # Nothing of pytest's may go on here.
        try:
            os.write(write, b"%s %d" % (gm.matmul.plan(a, a).reason.encode(), driver.lost_by_fork()))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1000).startswith(b"this process was forked from one that used the GPU")
    os.close(read)
    os.close(write)
    # As in a child, where threads of the BLAS may be missing.
    monkeypatch.setattr(driver._Process, "forked", True)
    assert (gm.matmul(a, a) == 1024).all()
    assert gpu.kernels == 1
    with pytest.raises(gm.UnsupportedError, match="forked"):
        gm.matmul(a, a, executor="gpu")


def test_times_between_and_beyond_what_was_measured():
    def time(size):
        return host_rates.interpolated((10, 20, 40), (1.0, 2.0, 6.0), size)

    assert [time(size) for size in (1, 10, 15, 30, 40, 80)] == [1.0, 1.0, 1.5, 4.0, 6.0, 14.0]


def test_arrays_are_staged_from_where_that_is_faster_for_good():
    sizes = host_rates.LINK_BYTES
    driver, staged = (1, 2, 3, 4, 5, 6, 7), (2, 1, 4, 3, 4, 5, 6)
    assert host_rates._staged_from(driver, staged) == sizes[3]
    assert host_rates._staged_from(driver, driver) == float("inf")
    assert host_rates._staged_from(driver, (0,) * 7) == sizes[0]


def test_rates_are_measured_once(gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMULE_PROBES", str(tmp_path))
    monkeypatch.setattr(host_rates, "HOST_SIDES", (8, 16))
    monkeypatch.setattr(host_rates, "LINK_BYTES", (1 << 10, 1 << 14))
    runs = []
    try:
        for _ in range(2):
            host_rates.host_times.cache_clear()
            host_rates.link_times.cache_clear()
            found = host_rates.host_times(("float32",) * 3), host_rates.link_times(0)
            assert [len(times) for times in found] == [2, 4]
            assert round_trip.link_of(0).staged_from != round_trip.STAGED_FROM
            round_trip.link_of.cache_clear()
            assert all(time > 0 for times in found for time in times)
            runs.append(found)
        assert runs[0] == runs[1]
    finally:
        host_rates.host_times.cache_clear()
        host_rates.link_times.cache_clear()


def test_a_disturbed_time_of_the_host_is_taken_again(monkeypatch):
    smaller, disturbed, undisturbed = 1e-4, 1.0, 5e-4
    answers = iter((smaller, disturbed, undisturbed, *[disturbed] * 9))
    monkeypatch.setattr(host_rates, "HOST_SIDES", (16, 32, 64))
    monkeypatch.setattr(host_rates, "_seconds_of", lambda run, least_s: next(answers))
    # The last, slow whenever it is timed, counts as the smaller ones by its operations.
    assert host_rates._timed_on_host(("float32",) * 3) == [smaller, undisturbed, 8 * undisturbed]


def test_stored_times_of_the_host_are_of_one_way_to_take_them(monkeypatch):
    keys = []
    monkeypatch.setattr(host_rates, "_figures", lambda key, count, probe: keys.append(key) or (1.0,) * count)
    for name in ("_PRODUCT_S", "_AGAIN"):
        monkeypatch.setattr(host_rates, name, getattr(host_rates, name) * 2)
        host_rates.host_times.cache_clear()
        host_rates.host_times(("float32",) * 3)
    host_rates.host_times.cache_clear()
    assert keys[0] != keys[1]
