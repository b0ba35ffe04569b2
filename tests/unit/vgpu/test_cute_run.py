"""`gemmule.vgpu.run`: host functions as their authors call them, launched from their own compiled host part."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gemmule import vgpu
from gemmule.core.errors import ArgumentError, KernelFailedError

cutlass = pytest.importorskip("cutlass", reason="the kernel compiler is not installed")


@pytest.fixture(scope="module")
def functions():
    from support.vgpu import cute_functions

    return cute_functions


def small(rng, *shape):
    return rng.integers(-4, 5, shape).astype(np.float32)


def test_arrays_are_written_in_place_and_a_stream_is_not_used(rng, functions):
    x, y = small(rng, 1000), small(rng, 1000)
    expected = x * np.float32(2.5) + y
    vgpu.run(functions.axpy, x, y, 2.5, None, schedules=3)
    assert (y == expected).all()


def test_launches_run_in_order(rng, functions):
    x, y, z = (small(rng, 300) for _ in "xyz")
    expected = 3 * (2 * x + y) + z
    vgpu.run(functions.axpy_twice, x, y, z)
    assert (z == expected).all()


@pytest.mark.parametrize("shape", [(40, 24, 50), (16, 16, 16)])
def test_a_product_through_shared_memory(rng, functions, shape):
    m, n, k = shape
    a, b, c = small(rng, m, k), small(rng, n, k), np.full((m, n), np.nan, np.float32)
    vgpu.run(functions.Sgemm(), a, b, c, scale=2.0)
    assert (c == 2 * (a @ b.T)).all()


def test_a_missing_barrier_is_a_race_whose_text_begins_with_its_kind(rng, functions):
    a, b, c = small(rng, 32, 32), small(rng, 32, 32), np.zeros((32, 32), np.float32)
    with pytest.raises(vgpu.CheckError, match=r"^race in .*cute_functions\.py"):
        vgpu.run(functions.Sgemm(barriers=False), a, b, c)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, np.uint8])
def test_a_tma_copy_has_the_tensor_map_of_the_host_part(rng, functions, dtype):
    x = rng.integers(0, 100, (70, 144)).astype(dtype)
    y = np.zeros_like(x)
    vgpu.run(functions.TmaCopy(), x, y, schedules=2)
    assert (x == y).all()


def test_a_copy_that_is_not_awaited_is_a_race(rng, functions):
    x = small(rng, 32, 64)
    with pytest.raises(vgpu.CheckError, match=r"^race in"):
        vgpu.run(functions.TmaCopy(waits=False), x, np.zeros_like(x))


def test_a_launch_of_clusters(functions):
    x = np.full(8, -1, np.int32)
    vgpu.run(functions.cluster_ranks, x)
    assert x.tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


def test_an_access_out_of_bounds_and_a_deadlock_are_check_errors(functions):
    x = np.zeros(128, np.float32)
    with pytest.raises(vgpu.CheckError, match=r"^out of bounds in"):
        vgpu.run(functions.past_the_end, x, 1)
    with pytest.raises(vgpu.CheckError, match=r"^deadlock in"):
        vgpu.run(functions.never_arrives, x)


def test_tensors_made_with_from_dlpack_stay_as_they_are(rng, functions):
    from cutlass.cute.runtime import from_dlpack

    x, y = small(rng, 256), small(rng, 256)
    expected = x + y
    static = from_dlpack(x, assumed_align=16), from_dlpack(y, assumed_align=16).mark_layout_dynamic()
    vgpu.run(functions.axpy, *static, cutlass.Float32(1.0), None)
    assert (y == expected).all()


def test_strided_arrays_have_their_strides(rng, functions):
    x, y = small(rng, 300)[::3], np.zeros(100, np.float32)
    vgpu.run(functions.axpy, x, y, 1.0, None)
    assert (x == y).all()


def test_a_write_into_a_read_only_array_is_found(rng, functions):
    x, y = small(rng, 128), small(rng, 128)
    x[0] = 1
    y.flags.writeable = False
    with pytest.raises(ArgumentError, match="y, which is read-only"):
        vgpu.run(functions.axpy, x, y, 1.0, None)


@pytest.mark.parametrize("schedules", [0, 4, "later", ()])
def test_unknown_schedules_are_refused(functions, schedules):
    with pytest.raises(ArgumentError, match="late, eager, random"):
        vgpu.run(functions.axpy, schedules=schedules)


def test_a_function_that_does_not_compile_says_why(functions):
    with pytest.raises(KernelFailedError, match="alpha"):
        vgpu.run(functions.axpy, np.zeros(4, np.float32), np.zeros(4, np.float32))


def test_pointers_lead_into_the_memory_that_is_given(functions):
    from cutlass.cute.runtime import make_ptr

    x = np.zeros(160, np.float32)
    start = make_ptr(cutlass.Float32, x[32:].ctypes.data, cutlass.AddressSpace.gmem, assumed_align=16)
    vgpu.run(functions.fill, start, memory=[x])
    assert (x == [0] * 32 + [7] * 128).all()
    with pytest.raises(ArgumentError, match=r"pass memory=\[array\]"):
        vgpu.run(functions.fill, start)
    with pytest.raises(vgpu.CheckError, match="out of bounds in fill_kernel"):
        vgpu.run(functions.fill, start, memory=[x[:64]])


def test_numbers_of_numpy_and_keywords(rng, functions):
    x, y = small(rng, 64), small(rng, 64)
    expected = 3 * x + y
    vgpu.run(functions.axpy, x, y=y, alpha=np.float32(3), stream=None)
    assert (y == expected).all()
