"""Arguments that are strange but plausible: each has one clear line, or the result of NumPy's own arithmetic."""

from __future__ import annotations

import array
import decimal
import fractions

import ml_dtypes
import numpy as np
import pytest

import gemmule as gm
from gemmule.core.errors import shown
from gemmule.core.layout import broadcast_shape


class Producer:
    """An array of a library that is known by its protocol only, and hands nothing over."""

    def __init__(self, error=None, device=(1, 0)):
        self.error, self.device = error, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_):
        if self.error is not None:
            raise self.error
        return 3


class WithInterface:
    __array_interface__ = np.ones((4, 4)).__array_interface__


class NoCudaArray:
    __cuda_array_interface__ = 3


A = np.arange(16.0).reshape(4, 4)
NO_ARRAYS = {
    "None": None,
    "text": "abc",
    "bytes": b"abc",
    "list": [[1.0, 2.0], [3.0, 4.0]],
    "number": 3,
    "range": range(4),
    "mapping": {},
    "class": np.ndarray,
    "type": np.float32,
    "memoryview": memoryview(A),
    "interface": WithInterface(),
    "DLPack that refuses": Producer(BufferError("not now")),
    "DLPack that fails": Producer(RuntimeError("broken")),
    "DLPack of nothing": Producer(),
    "DLPack of no device": Producer(device="xy"),
    "DLPack of another device": Producer(device=(7, 0)),
    "no CUDA array": NoCudaArray(),
    "objects": A.astype(object),
    "structured": np.zeros((4, 4), [("x", "f4"), ("y", "i4")]),
    "masked": np.ma.array(A, mask=A > 3),
    "strings": np.full((4, 4), "a"),
    "dates": np.zeros((4, 4), "M8[s]"),
    "durations": np.zeros((4, 4), "m8[s]"),
    "raw": np.zeros((4, 4), "V4"),
    "another 8-bit float": A.astype(ml_dtypes.float8_e4m3),
    "4 bits": A.astype(ml_dtypes.int4),
}


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 400, text
    return text


CALLS = {
    "a": lambda x: gm.matmul(x, x),
    "b": lambda x: gm.matmul(A, x),
    "out": lambda x: gm.matmul(A, A, out=[] if x is None else x),
    "c": lambda x: gm.gemm(A, A, [] if x is None else x, beta=1),
    "bias": lambda x: gm.gemm(A, A, bias=[] if x is None else x),
    "x": lambda x: gm.transpose(x),
    "x of matrix_transpose": lambda x: gm.matrix_transpose(x),
    "a on the virtual GPU": lambda x: gm.matmul(x, x, executor="vgpu"),
    "a of a plan": lambda x: gm.matmul.plan(x, x),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", NO_ARRAYS)
def test_what_is_no_array_of_numbers_is_named(call, name):
    with pytest.raises(gm.GemmuleError, match=rf"^({call.split()[0]}|a comes from|b comes from|out|x|a) ") as error:
        CALLS[call](NO_ARRAYS[name])
    one_line(error)


def test_the_remedy_for_what_numpy_converts():
    for x in ([[1.0]], (1.0,), WithInterface()):
        with pytest.raises(gm.ArgumentError, match=r"^b is of type .*, not an array; .*numpy.asarray"):
            gm.matmul(A, x)
    with pytest.raises(gm.ArgumentError) as error:
        gm.matmul(A, "text")
    assert "asarray" not in str(error.value)


def test_a_type_that_is_not_taken_is_not_called_no_number():
    with pytest.raises(gm.DTypeError, match=r"^b is of dtype float8_e4m3, which gemmule does not take; convert"):
        gm.matmul(A, A.astype(ml_dtypes.float8_e4m3))
    for name in ("datetime64[s]", "O"):
        with pytest.raises(gm.DTypeError, match="is none that gemmule multiplies; name one such as"):
            gm.matmul(A, A, out_dtype=name)


OPTIONS = {
    "executor": lambda x: gm.matmul(A, A, executor=x),
    "executor of a transpose": lambda x: gm.transpose(A, executor=x),
    "precision": lambda x: gm.matmul(A, A, precision=x),
    "out_dtype": lambda x: gm.matmul(A, A, out_dtype=x),
    "epilogue": lambda x: gm.gemm(A, A, epilogue=x),
    "epilogue_args": lambda x: gm.gemm(A, A, epilogue=lambda acc, s: acc * s, epilogue_args=x),
    "epilogue_args without a function": lambda x: gm.gemm(A, A, epilogue_args=x),
    "kernel": lambda x: gm.matmul.plan(A, A, executor="vgpu", kernel=x),
    "stream": lambda x: gm.matmul(A, A, stream=x),
    "axes": lambda x: gm.transpose(A, x),
    "path": gm.load_pack,
    "strategy": lambda x: gm.outofcore.matmul(A, A, np.empty((4, 4)), strategy=x),
    "scheduler": lambda x: gm.outofcore.matmul(A, A, np.empty((4, 4)), scheduler=x),
    "memory": lambda x: gm.outofcore.matmul(A, A, np.empty((4, 4)), memory=x),
    "devices": lambda x: gm.outofcore.matmul(A, A, np.empty((4, 4)), devices=x),
    "alpha": lambda x: gm.gemm(A, A, alpha=x),
    "alpha of multiply": lambda x: gm.outofcore.matmul(A, A, np.empty((4, 4)), alpha=x),
}
VALUES = {
    "array": A,
    "bfloat16": A.astype(ml_dtypes.bfloat16),
    "structured": NO_ARRAYS["structured"],
    "masked": NO_ARRAYS["masked"],
    "list": [["x"]],
    "mapping": {1: 2},
    "memoryview": memoryview(A),
    "class": Producer,
    "complex": 3j,
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("value", VALUES)
def test_options_of_another_kind_are_named(option, value):
    with pytest.raises(gm.GemmuleError, match=option.split()[0]) as error:
        OPTIONS[option](VALUES[value])
    one_line(error)


def test_axes_without_an_order_are_refused():
    for axes in ({1, 0}, {1: 0, 0: 1}, frozenset((0, 1))):
        with pytest.raises(gm.ArgumentError, match="has no order; give a tuple"):
            gm.transpose(A, axes)


def test_values_in_messages_are_short():
    assert shown(A) == "<ndarray of shape (4, 4)>"
    assert shown("x" * 1000) == "'" + "x" * 56 + "..."
    assert shown("a\nb") == r"'a\nb'"
    assert shown(np.ndarray) == "<class 'numpy.ndarray'>"
    assert len(shown(list(range(1000)))) == 60


@pytest.mark.parametrize(
    "two",
    [
        2,
        2.0,
        True + True,
        np.int8(2),
        np.float16(2),
        np.longdouble(2),
        np.array(2),
        np.array(2.0, ">f4"),
        np.array(2, ml_dtypes.bfloat16),
        ml_dtypes.bfloat16(2),
        fractions.Fraction(4, 2),
    ],
    ids=repr,
)
def test_numbers_of_every_kind(two, rng):
    a, c = rng.standard_normal((2, 4, 4))
    np.testing.assert_allclose(gm.gemm(a, a, c, alpha=two, beta=two), 2 * (a @ a) + 2 * c, rtol=1e-13, atol=1e-13)
    integers = rng.integers(-5, 5, (4, 4)).astype(np.int8)
    assert np.array_equal(gm.gemm(integers, integers, alpha=two), 2 * (integers.astype(int) @ integers))
    out = np.full((4, 4), np.nan)
    gm.outofcore.matmul(a, a, out, alpha=two, executor="cpu")
    np.testing.assert_allclose(out, 2 * (a @ a), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("value", [decimal.Decimal(2), np.ones(1), np.array("2"), np.datetime64("2020"), "2"], ids=repr)
def test_what_is_no_number_is_no_scalar(value):
    for call in (lambda: gm.gemm(A, A, alpha=value), lambda: gm.gemm(A, A, A.copy(), beta=value)):
        with pytest.raises(gm.ArgumentError, match=r"^(alpha|beta) (is |cannot be read as a number)") as error:
            call()
        one_line(error)


@pytest.mark.parametrize("executor", ["cpu", "vgpu"])
@pytest.mark.parametrize("dimensions", [33, 34, 35, 48, 64])
def test_up_to_64_dimensions(dimensions, executor, rng):
    """NumPy broadcasts shapes of up to 32 dimensions only, and multiplies arrays of up to 64."""
    batch = dimensions - 2
    # Of integers, whose kernel is compiled soonest.
    a = rng.integers(-9, 10, (2, *(1,) * (batch - 2), 3, 4, 5), np.int32)
    b = rng.integers(-9, 10, (*(1,) * (batch - 1), 3, 5, 2), np.int32)
    np.testing.assert_array_equal(gm.matmul(a, b, executor=executor), np.matmul(a, b))
    assert gm.matmul(a, np.ones(5, np.int32), executor=executor).shape == a.shape[:-1]
    with pytest.raises(gm.ShapeError, match="do not broadcast"):
        gm.matmul(a, np.ones((3, *(1,) * (batch - 1), 5, 2)), executor=executor)


@pytest.mark.parametrize(
    "shapes", [((), ()), ((3,), (1,)), ((2, 1), (3,)), ((0,), (1,)), ((4, 1, 5), (3, 1), ()), ((1, 0), (7, 1))], ids=str
)
def test_shapes_are_broadcast_as_by_numpy(shapes):
    assert broadcast_shape(*shapes) == np.broadcast_shapes(*shapes)


@pytest.mark.parametrize("shapes", [((2,), (3,)), ((0,), (2,)), ((2, 1), (3, 1))], ids=str)
def test_shapes_that_do_not_broadcast(shapes):
    with pytest.raises(ValueError, match="differ"):
        broadcast_shape(*shapes)


HUGE = 2**31
TOO_LARGE = {
    "matmul": lambda x: gm.matmul(np.broadcast_to(x, (HUGE, 1)), np.broadcast_to(x, (1, HUGE))),
    "matmul on the virtual GPU": lambda x: gm.matmul(
        np.broadcast_to(x, (HUGE, 1)), np.broadcast_to(x, (1, HUGE)), executor="vgpu"
    ),
    "without a sum": lambda x: gm.matmul(np.empty((2**40, 0), x.dtype), np.empty((0, 2**40), x.dtype)),
    "gemm": lambda x: gm.gemm(np.broadcast_to(x, (HUGE, 1)), np.broadcast_to(x, (1, HUGE)), out_dtype=x.dtype),
    "transpose": lambda x: gm.transpose(np.broadcast_to(x, (HUGE // 4, HUGE // 4))),
    "quantize": lambda x: gm.quantize(np.broadcast_to(np.float32(x.real), (HUGE, 2**16))),
    "grouped_gemm": lambda x: gm.grouped_gemm(
        np.broadcast_to(x, (HUGE, 1)), np.broadcast_to(x, (1, 1, HUGE)), np.full(1, 1, np.int32)
    ),
}
#: Functions without a counterpart of `gemmule.outofcore`.
NOT_STREAMED = ("transpose", "quantize", "grouped_gemm")


@pytest.mark.parametrize("dtype", ["int8", "float64", "complex128"])
@pytest.mark.parametrize("name", TOO_LARGE)
def test_results_too_large_for_memory(name, dtype):
    if dtype == "complex128" and name == "transpose":
        pytest.skip("NumPy itself makes no such view")
    with pytest.raises(
        gm.HostMemoryError, match=r"a result of shape .*(does not fit into|is larger than any) memory"
    ) as error:
        TOO_LARGE[name](np.ones((), dtype))
    one_line(error)
    assert isinstance(error.value, MemoryError)
    assert ("gemmule.outofcore.matmul" in str(error.value)) == (name not in NOT_STREAMED)


def test_memory_that_runs_out_on_the_way(monkeypatch):
    def short(*_, **__):
        raise MemoryError("Unable to allocate 8.00 EiB")

    monkeypatch.setattr("gemmule.host.gemm.CheckedGemm.run", short)
    with pytest.raises(gm.HostMemoryError, match=r"on the way to a result of shape \(4, 4\).*8.00 EiB"):
        gm.gemm(A, A)
    monkeypatch.setattr(np, "matmul", short)
    with pytest.raises(gm.HostMemoryError, match=r"on the way to a result of shape \(4, 4\).*8.00 EiB"):
        gm.matmul(A + 0j, A + 0j)


def test_integers_wrap_as_the_docstrings_say():
    minus_one = np.array([[-1]], np.int8)
    one = np.array([[1]], np.int8)
    assert gm.matmul(minus_one, one, out=np.zeros((1, 1), np.uint8)) == 255
    assert gm.matmul(minus_one, one, out_dtype="uint16") == 65535
    signed, unsigned = np.array([[-1]]), np.array([[2**63 + 5]], np.uint64)
    assert gm.matmul(signed, unsigned).dtype == np.float64
    assert gm.matmul(signed, unsigned) == -(2.0**63)
    for dtype in (np.int64, np.uint64, np.int32):
        out = np.zeros((1, 1), dtype)
        assert gm.matmul(signed, unsigned, out=out) is out
        assert int(out[0, 0]) % 2 ** (8 * out.itemsize) == -(2**63 + 5) % 2 ** (8 * out.itemsize)
        assert np.array_equal(gm.matmul(signed, unsigned, out_dtype=dtype), out)


def test_arrays_of_every_layout(rng):
    # One kernel takes integers of every layout.
    a = rng.integers(-9, 10, (4, 4), dtype=np.int32)
    readonly = a.copy()
    readonly.flags.writeable = False
    between = np.zeros(65, np.uint8)[1:].view(np.int32).reshape(4, 4)
    between[...] = a
    field = np.zeros((4, 4), [("p", "u1"), ("v", "i4")])
    field["v"] = a
    for x in (
        readonly,
        a[::-1, ::-1],
        a.astype(">i4"),
        between,
        field["v"],
        a.view(np.recarray),
        np.broadcast_to(a[0], (4, 4)),
    ):
        for executor in ("cpu", "vgpu"):
            assert np.array_equal(gm.matmul(x, a, executor=executor), x @ a)
            assert np.array_equal(gm.transpose(x, executor=executor), x.T)
    for out in (between, field["v"], np.zeros((4, 4), ">i4"), np.zeros((4, 4), np.int32)[::-1, ::-1]):
        for executor in ("cpu", "vgpu"):
            out[...] = 7777
            assert gm.matmul(a, a, out=out, executor=executor) is out
            assert np.array_equal(out, a @ a)
    with pytest.raises(gm.ArgumentError, match=r"^out is read-only"):
        gm.matmul(a, a, out=readonly)


class Sparse:
    """A sparse matrix, as SciPy's: no array, and no array by numpy.asarray either."""

    def toarray(self):
        return A


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (
            {"a": Sparse()},
            r"a is of type Sparse, not an array; convert it with a\.toarray\(\), or pass an array of NumPy",
        ),
        ({"a": memoryview(A)}, "a is of type memoryview, not an array; convert it with numpy.asarray, or pass"),
        ({"b": array.array("d", [1, 2])}, "b is of type array, not an array; convert it with numpy.asarray, or pass"),
        ({"b": b"abc"}, "b is of type bytes, not an array; pass an array of NumPy"),
        ({"a": np.zeros((4, 4), [("x", "f4")])}, r"which gemmule does not take; pass one of its fields, a\['x'\]$"),
        ({"a": np.ma.masked_array(A, A > 3)}, r"a is a masked array, .*; pass a\.filled\(value\)$"),
        ({"out": np.ma.empty((4, 4))}, r"out is a masked array, .*; pass out\.data$"),
    ],
)
def test_the_remedy_makes_an_array_of_what_is_none(arguments, remedy):
    given = {"a": A, "b": A, "out": None} | arguments
    with pytest.raises(gm.GemmuleError, match=remedy):
        gm.matmul(given["a"], given["b"], given["out"])
