"""`gemmule.vgpu.run`: host functions as their authors call them, launched from their own compiled host part."""

from __future__ import annotations

import inspect
import re

import ml_dtypes
import numpy as np
import pytest

from gemmule import vgpu
from gemmule.compiler.host_functions.arguments import _check_scalars
from gemmule.core.errors import ArgumentError, DTypeError, KernelFailedError, shown
from gemmule.core.launch import Launch
from gemmule.vgpu.report import merged

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


@pytest.mark.parametrize(("ends", "kind"), [("fault", "out of bounds"), ("deadlock", "deadlock")])
def test_findings_before_a_fault_or_a_deadlock_are_told_before_it(functions, ends, kind):
    with pytest.raises(vgpu.CheckError, match=r"^race in") as caught:
        vgpu.run(functions.several_faults, np.zeros(functions.THREADS, np.float32), ends)
    assert [finding.kind for finding in merged(caught.value.findings)] == ["race", "race", kind]


def test_a_race_names_the_tile_the_offset_and_the_barrier_that_orders_it(functions):
    with pytest.raises(vgpu.CheckError) as caught:
        vgpu.run(functions.several_faults, np.zeros(functions.THREADS, np.float32), "fault")
    write, read, _ = map(str, merged(caught.value.findings))
    assert "another warp writes it at the same time; let one thread write it" in write
    # `second` begins at the next multiple of 128 bytes behind 1024, where shared memory begins, and 96 of `first`.
    assert re.search(r"^race in several_faults_kernel, at .*py:\d+ `value = second\[", read)
    assert "reads 4 bytes at byte 508 of second (0x67c of shared memory); warp 3 wrote it at" in read
    assert "nothing orders the two; a barrier between them (sync_threads, bar.sync) would" in read
    assert "(2 times" not in read


def test_fields_of_a_struct_in_shared_memory_have_names(functions):
    with pytest.raises(vgpu.CheckError, match=r"at byte 4 of storage\.values \(0x\w+ of shared memory\), which no"):
        vgpu.run(functions.unwritten_field, np.zeros(32, np.float32))


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


@pytest.mark.skipif(not hasattr(cutlass, "Array"), reason="this version of CuTe DSL has no Array")
def test_arguments_of_type_array(functions):
    x = np.full(32, -1, np.int32)
    vgpu.run(functions.array_steps, x, 3)
    assert (x == 3 * np.arange(32)).all()
    with pytest.raises(vgpu.CheckError, match=r"^out of bounds in"):
        vgpu.run(functions.array_steps, x[:31], 3)


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


@pytest.mark.parametrize("schedules", [0, 4, "later", (), 2.0])
def test_unknown_schedules_are_refused(functions, schedules):
    with pytest.raises(ArgumentError, match="late, eager, random"):
        vgpu.run(functions.axpy, schedules=schedules)


@pytest.mark.parametrize(
    ("variable", "known"),
    [("SCHEDULE", "late, eager, random"), ("SCHEDULES", "late, eager, random"), ("MMA", "exact, hopper")],
)
def test_a_variable_of_unknown_value_is_named(functions, variable, known, monkeypatch):
    monkeypatch.setenv(f"GEMMULE_VGPU_{variable}", "slow")
    x = np.zeros(4, np.float32)
    with pytest.raises(ArgumentError, match=f"^GEMMULE_VGPU_{variable}=.*'slow'.*{known}"):
        vgpu.run(functions.axpy, x, x, 1.0, None)


def test_an_operand_of_a_launch_is_an_array():
    recipe = Launch((1, 1, 1), (32, 1, 1), ())
    with pytest.raises(ArgumentError, match=r"^operand y is of type list, not an array; convert it with numpy"):
        vgpu.launch("no PTX", recipe, {"y": [1] * 64})


@pytest.mark.parametrize("value", ["2", None, [1.0], 1j, np.ones(1, np.float32)])
def test_what_is_no_number_is_named_with_its_parameter(functions, value):
    x = np.zeros(4, np.float32)
    message = rf"^alpha={re.escape(shown(value))} is not a number, and alpha is a Float32; pass a number$"
    with pytest.raises(ArgumentError, match=message):
        vgpu.run(functions.axpy, x, x, value, None)
    with pytest.raises(ArgumentError, match=message):
        vgpu.run(functions.axpy, x, x, stream=None, alpha=value)


@pytest.mark.parametrize("value", [3, "x", [1.0], (1, 2), 1j])
def test_what_is_no_array_is_named_with_its_parameter(functions, value):
    message = rf"^x={re.escape(shown(value))} is not an array, and x is a Tensor; pass an array$"
    with pytest.raises(ArgumentError, match=message):
        vgpu.run(functions.axpy, value, np.zeros(4, np.float32), 1.0, None)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("memory", "give a list or tuple"), ("observers", "give a list or tuple"), ("options", "give some")],
)
def test_options_of_another_type_are_named(functions, name, remedy):
    x = np.zeros(4, np.float32)
    with pytest.raises(ArgumentError, match=f"^{name}=3 .*; {remedy}, or leave {name} out$"):
        vgpu.run(functions.axpy, x, x, 1.0, None, **{name: 3})


def test_a_number_of_another_type_of_the_compiler_is_refused(functions):
    x = np.zeros(4, np.float32)
    with pytest.raises(ArgumentError, match=r"^alpha is a Float32, got Int32; pass Float32\(…\)$"):
        vgpu.run(functions.axpy, x, x, cutlass.Int32(2), None)


@pytest.mark.parametrize("value", [2.5, float("inf"), 2**31, np.float32(0.5), -(2**31) - 1])
def test_what_an_integer_cannot_hold_is_refused(value):
    (parameter,) = inspect.signature(lambda count: None).parameters.values()
    with pytest.raises(ArgumentError, match=r"^count=.* is none of the whole numbers of Int32$"):
        _check_scalars([parameter.replace(annotation=cutlass.Int32)], [("count", value)])
    for held in (2, 2.0, -(2**31), np.int64(5)):
        _check_scalars([parameter.replace(annotation=cutlass.Int32)], [("count", held)])


@pytest.mark.parametrize(
    "value", [2, True, np.True_, np.float64(2), np.int8(2), cutlass.Float32(2), ml_dtypes.bfloat16(2)]
)
def test_numbers_of_every_kind_are_taken(functions, value):
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    vgpu.run(functions.axpy, x, y, value, None)
    assert (y == (1 if isinstance(value, bool | np.bool_) else 2)).all()


def test_a_type_that_the_kernel_cannot_store_is_named_with_its_line(functions):
    x = np.zeros(4)
    with pytest.raises(KernelFailedError, match=r"cute_functions.py:\d+ `.*`: Type mismatch"):
        vgpu.run(functions.axpy, x, x.astype(np.float32), 1.0, None)


def test_a_call_that_does_not_fit_says_what_is_missing(functions):
    x = np.zeros(4, np.float32)
    with pytest.raises(ArgumentError, match=r"axpy\(x, y, alpha, stream\): missing 'alpha', 'stream'; pass"):
        vgpu.run(functions.axpy, x, x)
    with pytest.raises(ArgumentError, match=r"axpy_kernel is not a @cute\.jit function"):
        vgpu.run(functions.axpy_kernel, x, x, 1.0)
    with pytest.raises(ArgumentError, match=r"3 is not a @cute\.jit function"):
        vgpu.run(3, x)
    with pytest.raises(ArgumentError, match="TmaCopy is a class"):
        vgpu.run(functions.TmaCopy, x, x)


def test_an_array_between_elements_is_named(functions):
    x = np.zeros(17, np.uint8)[1:].view(np.float32)
    with pytest.raises(ArgumentError, match=r"x begins at address .* multiple of the 4 bytes .* pass x\.copy\(\)"):
        vgpu.run(functions.axpy, x, x, 1.0, None)


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


@pytest.mark.parametrize("shape", [(16, 32), (13, 20)])
def test_a_tma_store_of_unwritten_shared_memory_is_found(rng, functions, shape):
    x, y = small(rng, *shape), np.zeros(shape, np.float32)
    vgpu.run(functions.TmaStore(), x, y)
    assert (x == y).all()
    with pytest.raises(vgpu.CheckError, match=r"^uninitialised in TmaStore\.kernel.*cute.copy\(store, source, target"):
        vgpu.run(functions.TmaStore(missing=19), x, y)


def test_rows_that_tma_cannot_take_are_refused(rng, functions):
    with pytest.raises(ArgumentError, match=r"TmaStore\.kernel has operand y, whose row stride is 84 bytes"):
        vgpu.run(functions.TmaStore(), small(rng, 8, 21), np.zeros((8, 21), np.float32))


def test_a_bulk_copy_in_a_cluster_of_one(rng, functions):
    x, y = small(rng, 256), np.zeros(256, np.float32)
    vgpu.run(functions.BulkCopy(), x, y, schedules=3)
    assert (x == y).all()


def test_arrays_without_elements(rng, functions):
    nothing, y = np.empty(0, np.float32), np.zeros(4, np.float32)
    with pytest.raises(ArgumentError, match=r"axpy_kernel is launched with grid=\(0, 1, 1\)"):
        vgpu.run(functions.axpy, nothing, nothing.copy(), 1.0, None)
    with pytest.raises(vgpu.CheckError, match=r"^out of bounds in first_kernel"):
        vgpu.run(functions.first_element, nothing, y, 1, 0)


@pytest.mark.parametrize(
    ("blocks", "shared", "message"),
    [(-1, 0, r"grid=\(-1, 1, 1\)"), (1, -4, "requests -4 bytes"), (1, 232449, "requests 232449 bytes")],
)
def test_launches_that_a_driver_refuses_are_named(functions, blocks, shared, message):
    x = np.zeros(4, np.float32)
    with pytest.raises(ArgumentError, match=f"first_kernel .*{message}"):
        vgpu.run(functions.first_element, x, x, blocks, shared)


def test_the_largest_shared_memory_is_taken(functions):
    x = np.ones(4, np.float32)
    vgpu.run(functions.first_element, x, x, 1, 232448)


def test_elements_that_cute_does_not_take_are_named(functions):
    with pytest.raises(DTypeError, match="x has elements of complex64"):
        vgpu.run(functions.first_element, np.zeros(4, np.complex64), np.zeros(4, np.float32), 1, 0)


@pytest.mark.parametrize(
    ("waits", "found"),
    [
        ("first", ""),
        ("behind a barrier", ""),
        ("never", "reads byte 0 of operand y .* which a predecessor grid writes; griddepcontrol.wait"),
        ("before it writes", "reads byte 0 of operand y .* which a predecessor grid writes; griddepcontrol.wait"),
    ],
)
def test_a_dependent_launch_waits_for_its_predecessor(rng, functions, waits, found):
    x, y, z = rng.random(128, np.float32), np.zeros(128, np.float32), np.zeros(128, np.float32)
    if not found:
        vgpu.run(functions.dependent_launches, x, y, z, waits, False)
        np.testing.assert_array_equal(z, x + 2)
        return
    with pytest.raises(vgpu.CheckError, match=found) as caught:
        vgpu.run(functions.dependent_launches, x, y, z, waits, False)
    assert {finding.kind for finding in caught.value.findings} == {"race"}


def test_a_dependent_launch_that_reads_what_its_predecessor_may_still_write(functions):
    x, y, z = (np.zeros(128, np.float32) for _ in range(3))
    with pytest.raises(vgpu.CheckError, match=r"reads byte 0 of operand z .* which a predecessor grid writes"):
        vgpu.run(functions.dependent_launches, x, y, z, "first", True)
