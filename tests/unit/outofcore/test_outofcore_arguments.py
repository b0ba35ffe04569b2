"""Refused arguments of `gemmule.outofcore.matmul`: each error names the value, the rule and the remedy."""

from __future__ import annotations

import importlib.util
import inspect
import re
from fractions import Fraction

import numpy as np
import pytest

import gemmule as gm

F = np.ones((3, 3), np.float32)


def out(dtype=np.float32):
    return np.full((3, 3), 7, dtype)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"memory": 1.5}, gm.ArgumentError, "memory=1.5 is not an amount of memory; give whole bytes, or text like"),
        ({"memory": 0}, gm.ArgumentError, "memory=0 is not an amount"),
        ({"memory": True}, gm.ArgumentError, "memory=True is not an amount"),
        ({"memory": "much"}, gm.ArgumentError, "memory='much' is not an amount"),
        ({"device_memory": -1}, gm.ArgumentError, "device_memory=-1 is not an amount"),
        ({"device_memory": "1MB", "pinned_memory": "x"}, gm.ArgumentError, "pinned_memory='x' is not an amount"),
        ({"memory": 10}, gm.MemoryLimitError, r"give memory='\d+' or more"),
        ({"devices": 3}, gm.ArgumentError, r"devices=\[3\] names GPUs"),
        ({"devices": "0"}, gm.ArgumentError, r"devices='0' are no numbers of GPUs; give some, as \[0, 1\]"),
        ({"devices": []}, gm.ArgumentError, "leave devices out"),
        ({"chunks": 3.5}, gm.ArgumentError, r"chunks=3.5 are not rows and columns; give two whole numbers"),
        ({"chunks": (3, 2, 1)}, gm.ArgumentError, r"chunks=\(3, 2, 1\) are not"),
        ({"chunks": (True, 2)}, gm.ArgumentError, r"chunks=\(True, 2\) are not"),
        ({"shards": True}, gm.ArgumentError, "shards=True are not rows and columns; give two whole numbers"),
        ({"devices": True}, gm.ArgumentError, "devices=True are no numbers of GPUs"),
        ({"shards": (0, 1)}, gm.ArgumentError, r"shards=\(0, 1\) are not"),
        ({"a_dtype": "x"}, gm.DTypeError, "^a_dtype: dtype must be a name such as .*; got 'x'"),
        ({"c": F, "beta": 1, "c_dtype": "object"}, gm.DTypeError, "^c_dtype='object' is none that gemmule multiplies"),
        ({"alpha": "x"}, gm.ArgumentError, "alpha is of type str, not a number; pass"),
        ({"c": F, "beta": F}, gm.ArgumentError, "beta is of type ndarray, not a number; pass"),
        ({"alpha": 1j}, gm.ArgumentError, "alpha=1j is complex, but the product is real; give compute_dtype="),
        ({"progress": 3}, gm.ArgumentError, "progress=3 cannot be called; give a function"),
        ({"executor": "cuda"}, gm.ArgumentError, "choose one of 'gpu', 'cpu', 'vgpu'"),
    ],
)
def test_arguments_that_do_not_fit(given, error, text):
    result = out()
    with pytest.raises(error, match=text):
        gm.outofcore.matmul(F, F, result, **{"executor": "cpu", **given})
    assert (result == 7).all()


WIDE = pytest.mark.skipif(np.longdouble(0).nbytes <= 8, reason="longdouble is float64 here")


@pytest.mark.parametrize(
    "dtype",
    [
        object,
        bool,
        "U3",
        "M8[s]",
        "V8",
        pytest.param("longdouble", marks=WIDE),
        pytest.param("clongdouble", marks=WIDE),
    ],
)
@pytest.mark.parametrize("options", [{}, {"verify": True}, {"device_memory": "1MiB"}])
def test_types_that_are_not_multiplied_are_refused_by_role_before_any_work(dtype, options, tmp_path):
    matrix = np.empty((3, 3), dtype)
    arguments = {"a": F, "b": F, "c": out(), "beta": 1, "executor": "cpu", **options}
    refusal = f": dtype {matrix.dtype} is not multiplied; convert it with astype to a float or integer type"
    for role in ("a", "b", "c", "out"):
        for place in (out(), tmp_path / "c.npy", tmp_path / "c.zarr")[: 1 if role == "out" else None]:
            with pytest.raises(gm.DTypeError, match=f"^{re.escape(role + refusal)}$"):
                gm.outofcore.matmul(**{"out": place, **arguments, role: matrix})
    assert not list(tmp_path.iterdir())


def test_complex_scalars_of_complex_products():
    result = out(np.complex64)
    gm.outofcore.matmul(F, F, result, alpha=2j, compute_dtype="complex64", executor="cpu")
    np.testing.assert_array_equal(result, F @ F * 2j)


@pytest.mark.parametrize("name", ["", "a\0b.npy"])
def test_names_that_name_nothing(name):
    with pytest.raises(gm.ArgumentError, match=r"names no file; give the name of one, such as A\.npy"):
        gm.outofcore.matmul(name, F, out(), executor="cpu")
    with pytest.raises(gm.ArgumentError, match=r"such as C\.npy"):
        gm.outofcore.matmul(F, F, name, executor="cpu")


def test_an_output_whose_elements_share_memory():
    shared = np.lib.stride_tricks.as_strided(np.full(3, 7, np.float32), (3, 3), (0, 4))
    with pytest.raises(gm.OverlapError, match="elements may share memory; pass an array of its own"):
        gm.outofcore.matmul(F, F, shared, executor="cpu")
    assert (shared == 7).all()


def test_any_other_strides():
    for view in (np.empty((3, 6), "f4")[:, ::2], np.empty((3, 3), "f4")[::-1], np.empty((3, 3), "f4").T):
        gm.outofcore.matmul(F[::-1], F.T, view, executor="cpu", memory=np.int64(10**6))
        np.testing.assert_array_equal(view, F @ F)


def test_one_number_stands_for_both(tmp_path):
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    gm.outofcore.matmul(F, F, tmp_path / "c.zarr", chunks=2, executor="cpu")
    array = zarr.open_array(tmp_path / "c.zarr", mode="r")
    assert array.chunks == (2, 2)
    np.testing.assert_array_equal(array[:], F @ F)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("alpha", [np.float32(0.5), np.float16(0.5), np.int8(3), Fraction(1, 2), True])
@pytest.mark.parametrize("through", [{}, {"device_memory": "1MiB"}])
def test_numbers_of_other_kinds(alpha, through):
    # NumPy's narrow floats cannot be compared with what a float64 holds.
    result = out(np.float64)
    gm.outofcore.matmul(F.astype("f8"), F.astype("f8"), result, alpha=alpha, executor="cpu", **through)
    np.testing.assert_array_equal(result, float(alpha) * (F @ F))


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8"])
@pytest.mark.parametrize("alpha", [10**400, -(10**5000), Fraction(10**400, 3)], ids=["large", "larger", "fraction"])
def test_numbers_that_no_float_holds(alpha, dtype):
    result = out(np.dtype(dtype))
    with pytest.raises(gm.ArgumentError, match=r"^alpha does not fit into a? ?.+; scale the .* instead"):
        gm.outofcore.matmul(F.astype(dtype), F.astype(dtype), result, alpha=alpha, executor="cpu")
    assert (result == 7).all()


def test_a_name_that_no_file_system_takes():
    for ending in (".npy", ".zarr") if importlib.util.find_spec("zarr") else (".npy",):
        with pytest.raises(gm.FileAccessError, match="longer than the file system takes; give a shorter"):
            gm.outofcore.matmul(F, F, "x" * 300 + ending, executor="cpu")


@pytest.mark.parametrize("name", ["transpose_a", "transpose_b", "resume", "force", "verify"])
@pytest.mark.parametrize("value", ["no", 0, None])
def test_a_switch_is_true_or_false(name, value):
    x = np.ones((2, 2))
    with pytest.raises(gm.ArgumentError, match=f"{name}={value!r} is neither True nor False; give one of the two"):
        gm.outofcore.matmul(x, x, x.copy(), **{name: value})


def test_a_misspelled_argument_has_a_suggestion():
    x = np.ones((2, 2))
    for name, call in {"matmul": gm.outofcore.matmul, "matmul.plan": gm.outofcore.matmul.plan}.items():
        with pytest.raises(TypeError, match=rf"^outofcore\.{name}\(\) has no argument 'verfy'; did you mean verify\?"):
            call(x, x, x.copy(), verfy=True)
        with pytest.raises(
            TypeError,
            match=rf"^outofcore\.{name}\(\) has no argument 'zz'; help\(gemmule.outofcore.{name}\) lists them",
        ):
            call(zz=1)


def test_a_plan_has_the_signature_of_the_call_and_computes_it():
    assert list(inspect.signature(gm.outofcore.matmul.plan).parameters) == list(
        inspect.signature(gm.outofcore.matmul).parameters
    )
    x, out = np.full((3, 3), 2.0), np.zeros((3, 3))
    plan = gm.outofcore.matmul.plan(x, x, out, executor="cpu", alpha=2)
    assert isinstance(plan, gm.outofcore.Plan)
    assert str(plan).startswith("3 x 3 x 3: 1 tile of 3 x 3, k-tiles of 3; ")
    assert plan.figures["tiles"] == 1
    assert not out.any()
    assert plan.execute().tiles_computed == 1
    assert (out == 24).all()
