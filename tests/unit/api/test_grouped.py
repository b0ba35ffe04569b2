"""gm.grouped_gemm on the host: what groups are, what is refused, and its plan."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.api.planning import choice
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3
from support.grouped_products import SHAPES, expected, given

AXES = pytest.mark.parametrize("axis", SHAPES)


@AXES
def test_groups_and_nothing_beyond_the_last_end(axis, rng):
    a, b, ends = given(axis, rng)
    np.testing.assert_allclose(gm.grouped_gemm(a, b, ends), expected(axis, a, b, ends), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["bool", "int64", "uint8", "complex128"])
def test_types_that_no_kernel_takes_are_multiplied_on_the_host(dtype, rng):
    a, b, ends = given("m", rng)
    a, b = (x > 0 if dtype == "bool" else np.abs(10 * x).astype(dtype) for x in (a, b))
    got = gm.grouped_gemm(a, b, ends)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got[2:7], a[2:7] @ b[2])


@AXES
def test_out_is_overwritten(axis, rng):
    a, b, ends = given(axis, rng)
    wanted = expected(axis, a, b, ends)
    out = np.full(wanted.shape, np.nan)
    assert gm.grouped_gemm(a, b, ends, out=out) is out
    np.testing.assert_allclose(out, wanted, rtol=0, atol=1e-12)


@AXES
def test_16_bit_floats_on_the_host_and_the_virtual_gpu(axis, rng):
    pytest.importorskip("cutlass", reason="the kernel compiler is not installed")
    # Leading dimensions of whole 16 bytes, and the divided one not contiguous.
    shapes = {"m": ((24, 16), (3, 16, 24)), "n": ((3, 24, 16), (16, 24)), "k": ((16, 24), (24, 8))}[axis]
    a, b = (rng.integers(-4, 5, shape).astype(BFLOAT16.numpy()) for shape in shapes)
    if axis == "n":
        b = np.asfortranarray(b)
    if axis == "k":
        a = np.asfortranarray(a)
    ends = np.array([5, 5, 20], np.int32)
    host, virtual = gm.grouped_gemm(a, b, ends), gm.grouped_gemm(a, b, ends, executor="vgpu")
    np.testing.assert_array_equal(host.astype(np.float32), virtual.astype(np.float32))


def test_ends_with_gaps_on_the_virtual_gpu(rng):
    pytest.importorskip("cutlass", reason="the kernel compiler is not installed")
    a, b = (rng.integers(-4, 5, shape).astype(BFLOAT16.numpy()) for shape in ((24, 16), (3, 16, 24)))
    ends = np.repeat(np.array([5, 9, 20], np.int32), 2)[::2]
    host, plan = gm.grouped_gemm(a, b, ends), gm.grouped_gemm.plan(a, b, ends, executor="vgpu")
    np.testing.assert_array_equal(host.astype(np.float32), plan.execute().astype(np.float32))
    ends[1] = 6
    host = gm.grouped_gemm(a, b, ends)
    np.testing.assert_array_equal(host.astype(np.float32), plan.execute().astype(np.float32))


@pytest.mark.parametrize("executor", ["cpu", "vgpu"])
@pytest.mark.parametrize(
    ("a", "b", "ends"),
    [
        ((9, 0), (3, 0, 4), (2, 2, 7)),
        ((0, 8), (2, 8, 8), (0, 0)),
        ((9, 8), (0, 8, 4), ()),
        ((3, 4, 0), (0, 9), (2, 2, 7)),
        ((4, 0), (0, 5), (0, 0)),
        ((4, 8), (8, 5), ()),
    ],
)
def test_nothing_to_multiply_gives_zeros(executor, a, b, ends):
    ends = np.array(ends, np.int32)
    found = gm.grouped_gemm(np.ones(a, np.float16), np.ones(b, np.float16), ends, executor=executor)
    shape = (len(ends), a[0], b[1]) if len(a) == len(b) else (a[-2], b[-1])
    assert found.shape == shape
    assert not found.any()


def test_groups_of_16_bit_floats_on_older_gpus():
    a, b, ends = np.zeros((3, 8), np.float16), np.zeros((2, 8, 8), np.float16), np.array([1, 3], np.int32)
    text = (
        "no grouped product: wgmma is an instruction of sm_90a, which sm_80 lacks; call matmul for each group, or pass"
    )
    with pytest.raises(gm.UnsupportedError, match=text):
        gm.grouped_gemm.plan(a, b, ends, chip="a100")
    copies = a.astype(np.float32), b.astype(np.float32)
    assert gm.grouped_gemm.plan(*copies, ends, chip="a100").kernel == "simt_grouped"


def test_without_offsets_it_is_a_batch(rng):
    a, b = rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 5, 6))
    np.testing.assert_allclose(gm.grouped_gemm(a, b), a @ b, rtol=0, atol=1e-12)


def test_the_plan_says_where_it_runs(rng):
    a, b, ends = given("m", rng)
    plan = gm.grouped_gemm.plan(a, b, ends)
    assert (plan.operation, plan.executor, plan.flop) == ("grouped_gemm", "cpu", 2 * 9 * 5 * 4)
    np.testing.assert_allclose(plan.execute(), expected("m", a, b, ends), rtol=0, atol=1e-12)
    assert str(plan).startswith("grouped_gemm: blas on ")


def test_ends_are_read_when_it_runs(rng):
    a, b, ends = given("m", rng)
    plan = gm.grouped_gemm.plan(a, b, ends)
    ends[:] = 1, 4, 9
    np.testing.assert_allclose(plan.execute(), expected("m", a, b, ends), rtol=0, atol=1e-12)
    ends[:] = 1, 0, 9
    with pytest.raises(gm.ArgumentError, match=r"offsets\[1\] is 0; it must be at least 1"):
        plan.execute()


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        (
            (2, 1, 9),
            r"offsets\[1\] is 1; it must be at least 2, the end before it; for .* numpy.cumsum\(sizes, dtype=numpy",
        ),
        ((-1, 1, 9), r"offsets\[0\] is -1; it must be at least 0, where the first group begins"),
        (
            (2, 2, 10),
            r"offsets\[2\] is 10; it must be at most 9, {divided}; for a list of group sizes pass numpy.cumsum",
        ),
    ],
)
@AXES
def test_bad_ends(axis, ends, message, rng):
    divided = {"m": "the rows of a", "n": "the columns of b", "k": "the columns of a"}[axis]
    with pytest.raises(gm.ArgumentError, match=message.replace("{divided}", divided)):
        gm.grouped_gemm(*given(axis, rng, ends))


@pytest.mark.parametrize(
    ("dtype", "names", "remedy"),
    [(np.float32, "float32", "leave it out"), (FLOAT8_E4M3.numpy(), "float8_e4m3fn", "leave it out, or pass 'float8'")],
)
def test_a_precision_of_other_products(dtype, names, remedy, rng):
    with pytest.raises(gm.DTypeError, match=f"^precision='tf32' is not for grouped products of {names}; {remedy}$"):
        gm.grouped_gemm(*given("m", rng, dtype=dtype), precision="tf32", out_dtype="float32")


@pytest.mark.parametrize(("gpus", "message"), [(0, "no NVIDIA GPU found; .*'vgpu'"), (1, "copy them to a GPU")])
def test_host_arrays_do_not_pass_through_a_gpu(gpus, message, rng, monkeypatch):
    monkeypatch.setattr(choice, "device_count", lambda: gpus)
    with pytest.raises(gm.UnsupportedError, match=f"^executor='gpu' cannot take this: .*{message}"):
        gm.grouped_gemm(*given("m", rng), executor="gpu")


def test_offsets_in_a_list(rng):
    a, b, ends = given("m", rng)
    with pytest.raises(gm.ArgumentError, match=r"offsets is of type list; give .* as an array of int32, such as numpy"):
        gm.grouped_gemm(a, b, ends.tolist())


def test_arguments_that_do_not_fit(rng):
    a, b, ends = given("m", rng)
    message = r"give the groups' ends as one dimension of int32, offsets\.astype\(numpy\.int32\)$"
    with pytest.raises(gm.DTypeError, match=message):
        gm.grouped_gemm(a, b, ends.astype(np.int64))
    with pytest.raises(gm.DTypeError, match=r"one dimension of int32$"):
        gm.grouped_gemm(a, b, ends[None])
    with pytest.raises(gm.ShapeError, match="offsets has 2 ends and b 3 matrices"):
        gm.grouped_gemm(a, b, ends[:2])
    with pytest.raises(gm.ShapeError, match=r"offsets has 4 ends and b 3 matrices; .*; leave out the leading 0"):
        gm.grouped_gemm(a, b, np.append(np.int32(0), ends))
    with pytest.raises(gm.ShapeError, match="with offsets both must have 2 dimensions, or one of them 3: for a batch"):
        gm.grouped_gemm(b, b, ends)
    with pytest.raises(gm.ShapeError, match="must be equal"):
        gm.grouped_gemm(a[:, :4], b, ends)
    with pytest.raises(gm.ShapeError, match=r"the product has \(9, 4\)"):
        gm.grouped_gemm(a, b, ends, out=np.empty((9, 5)))
    with pytest.raises(gm.DTypeError, match="differs from the dtype of out"):
        gm.grouped_gemm(a, b, ends, out=np.empty((9, 4)), out_dtype="float32")
    with pytest.raises(gm.OverlapError, match="out shares memory with a"):
        gm.grouped_gemm(a, b, ends, out=a[:, :4])


@pytest.mark.parametrize("shapes", [((6, 4), (3, 4, 5)), ((3, 6, 4), (4, 5)), ((6, 4), (4, 5))])
def test_without_offsets_both_have_three_dimensions(shapes):
    """A broadcast product would be returned for groups that somebody forgot to name."""
    with pytest.raises(gm.ArgumentError, match="offsets is None; pass the groups' ends"):
        gm.grouped_gemm(*(np.ones(shape, np.float32) for shape in shapes))
