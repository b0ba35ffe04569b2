"""Real times complex matrices as one real product, and results of other types, on the virtual GPU, checks on."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import dtype_named
from support.kernel_kinds import laid_out, whole_numbers
from support.oracle import assert_product, poisoned, random_matrix

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: A real type, a complex one, and that of the result.
TYPES = (
    ("float32", "complex64", "complex64"),
    ("float64", "complex128", "complex128"),
    ("bfloat16", "complex64", "complex64"),
    ("int8", "complex64", "complex64"),
    ("float32", "complex128", "complex128"),
    ("float64", "complex64", "complex128"),
    ("int32", "complex64", "complex128"),
    ("float64", "complex128", "complex64"),
    ("float32", "complex64", "complex128"),
)
ON_H200 = {"executor": "vgpu", "chip": "h200"}


@pytest.fixture(autouse=True)
def _checked(monkeypatch):
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")


def matrix(rng, name, shape, way="r"):
    dtype = dtype_named(name)
    values = random_matrix(rng, dtype, shape) if "int" not in name else whole_numbers(rng, name, shape)
    return laid_out(rng, values, way, 1)


def result(name, shape, way):
    *batch, m, n = shape
    if way == "s":
        return poisoned(dtype_named(name), (*batch, m, 2 * n))[..., ::2]
    return poisoned(dtype_named(name), shape) if way == "r" else poisoned(dtype_named(name), (*batch, n, m)).mT


def real_parts(plan):
    """Return whether a plan is of one real product."""
    return "the parts of the other make one real product" in plan.rewrite


def hold(types, complex_first, ways, out_way, rng):
    """Hold one real product against a higher precision."""
    real, other, out = types
    names = (other, real) if complex_first else (real, other)
    a, b = matrix(rng, names[0], (37, 21), ways[0]), matrix(rng, names[1], (21, 45), ways[1])
    found = result(out, (37, 45), out_way)
    plan = gm.gemm.plan(a, b, alpha=-0.5, out=found, executor="vgpu")
    plan.execute()
    assert real_parts(plan)
    assert_product(found, a, b, alpha=-0.5)


@pytest.mark.combinations(2)
@pytest.mark.parametrize("complex_first", [False, True])
@pytest.mark.parametrize("ways", ["rr", "rc", "cr", "cc", "sr", "rs"])
@pytest.mark.parametrize("out_way", ["r", "c", "s"])
def test_every_layout(complex_first, ways, out_way, rng):
    hold(TYPES[0], complex_first, ways, out_way, rng)


#: A kernel is compiled for each type and layout: other types in one.
@pytest.mark.combinations(1)
@pytest.mark.parametrize("types", TYPES[1:], ids="-".join)
@pytest.mark.parametrize("complex_first", [False, True])
def test_every_pair_of_types(types, complex_first, rng):
    hold(types, complex_first, "rr", "r", rng)


@pytest.mark.parametrize("complex_first", [False, True])
def test_nothing_is_copied_where_complex_matrices_have_rows(complex_first, rng):
    a, b = matrix(rng, "float64", (37, 21)), matrix(rng, "complex128", (21, 45))
    c, found = matrix(rng, "complex128", (37, 45)), result("complex128", (37, 45), "r")
    # Rows of the transposes are columns.
    given = (b.T, a.T, c.T, found.T) if complex_first else (a, b, c, found)
    plan = gm.gemm.plan(*given[:3], beta=2, out=given[3], executor="vgpu", kernel="float64_gemm")
    plan.execute()
    assert plan.rewrite.endswith("in place")
    assert not plan.copies
    assert plan.choice.workspaces(plan.problem) == {}
    assert plan.flop == 4 * 37 * 45 * 21
    assert_product(found, a, b, c, 1, 2)


@pytest.mark.combinations(2, once=["batch_a", "batch_b", "m"])
@pytest.mark.parametrize("complex_first", [False, True])
@pytest.mark.parametrize(
    ("batch_a", "batch_b", "m"),
    [((3,), (3,), 9), ((), (2,), 9), ((2, 3), (3,), 8), ((2, 3), (2, 1), 9), ((2, 1), (2, 3), 9), ((2, 1), (1, 3), 1)],
    ids=str,
)
@pytest.mark.parametrize("ways", ["cr", "rc"])
def test_batches(complex_first, batch_a, batch_b, m, ways, rng):
    names = ("complex64", "float32") if complex_first else ("float32", "complex64")
    a, b = matrix(rng, names[0], (*batch_a, m, 12), ways[0]), matrix(rng, names[1], (*batch_b, 12, 17), ways[1])
    batch = np.broadcast_shapes(batch_a, batch_b)
    c, found = matrix(rng, "complex64", (*batch, m, 17), "c"), result("complex64", (*batch, m, 17), "r")
    plan = gm.gemm.plan(a, b, c, beta=-1, out=found, executor="vgpu")
    plan.execute()
    assert real_parts(plan)
    assert_product(found, a, b, c, 1, -1)


@pytest.mark.combinations(2)
@pytest.mark.parametrize("complex_first", [False, True])
@pytest.mark.parametrize("c_type", ["complex64", "complex128", "float32"])
@pytest.mark.parametrize("c_way", ["r", "c", "itself"])
def test_c_of_any_type_and_layout(complex_first, c_type, c_way, rng):
    names = ("complex128", "float64") if complex_first else ("float64", "complex128")
    a, b = matrix(rng, names[0], (20, 11)), matrix(rng, names[1], (11, 14))
    found = result("complex128", (20, 14), "r")
    c = matrix(rng, c_type, (20, 14), "r" if c_way == "itself" else c_way)
    expected = c.copy()
    if c_way == "itself":
        found[...] = c
        c = found
    plan = gm.gemm.plan(a, b, c, alpha=0.5, beta=3, out=found, executor="vgpu")
    plan.execute()
    assert real_parts(plan)
    assert_product(found, a, b, expected, 0.5, 3)


@pytest.mark.parametrize(
    ("k", "options"),
    [
        *((12, options) for options in ({"alpha": 1j}, {"conj_b": True}, {"beta": 1j}, {})),
        (0, {"conj_b": True}),
        *(pytest.param(0, options, marks=pytest.mark.slow) for options in ({"alpha": 1j}, {"beta": 1j}, {})),
    ],
    ids=str,
)
def test_what_is_left_to_complex_kernels(k, options, rng):
    a, b, c = matrix(rng, "float32", (9, k)), matrix(rng, "complex64", (k, 11)), matrix(rng, "complex64", (9, 11))
    found, options = result("complex64", (9, 11), "r"), {"beta": 2, **options}
    plan = gm.gemm.plan(a, b, c, out=found, **options, **ON_H200)
    plan.execute()
    assert real_parts(plan) == (bool(k) and options in ({"beta": 2}, {"beta": 2, "conj_b": True}))
    scalars = options.get("alpha", 1), options["beta"]
    assert_product(found, a, b.conj() if "conj_b" in options else b, c, *scalars)


@pytest.mark.combinations(2)
@pytest.mark.parametrize("types", TYPES[:2], ids="-".join)
@pytest.mark.parametrize("complex_first", [False, True])
@pytest.mark.parametrize("ways", ["rr", "cr", "rc", "sr", "rs"])
@pytest.mark.parametrize("out_way", ["r", "c"])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_conjugates(types, complex_first, ways, out_way, adds, batch, rng):
    real, other, out = types
    names, m, n, k = ((other, real) if complex_first else (real, other)), 37, 45, 21
    a, b = matrix(rng, names[0], (*batch, m, k), ways[0]), matrix(rng, names[1], (*batch, k, n), ways[1])
    found, c = result(out, (*batch, m, n), out_way), matrix(rng, out, (*batch, m, n)) if adds else None
    options = {"conj_a": complex_first, "conj_b": not complex_first, "alpha": -0.5, "beta": 3.0 if adds else None}
    plan = gm.gemm.plan(a, b, c, out=found, executor="vgpu", **options)
    plan.execute()
    assert real_parts(plan)
    assert f"the conjugate of {'a' if complex_first else 'b'} is copied" in plan.rewrite
    factors = (a.conj(), b) if complex_first else (a, b.conj())
    assert_product(found, *factors, c, -0.5, 3 if adds else 0)


@pytest.mark.parametrize("complex_first", [False, True])
def test_infinite_parts_stay_in_their_part(complex_first):
    """NumPy's own products of real and complex numbers make NaN of zero times infinity here."""
    a, b = np.array([[2.0, 3.0]]), np.array([[complex(np.inf, 1)], [complex(-1, -np.inf)]])
    given = (b.T, a.T) if complex_first else (a, b)
    for executor in ("vgpu", "cpu"):
        found = gm.matmul(*given, executor=executor)
        assert (found[0, 0].real, found[0, 0].imag) == (np.inf, -np.inf)
    nan = np.array([[complex(np.nan, 1)], [2j]])
    found = gm.matmul(*((nan.T, a.T) if complex_first else (a, nan)), executor="vgpu")[0, 0]
    assert np.isnan(found.real)
    assert found.imag == 8


#: A real type, a complex one, and the kernel; the launches of the first layout are compiled for other tests too.
EMULATED = [("float64", "complex128", "ozaki_gemm"), ("float32", "complex64", "bf16x6_gemm")]


@pytest.mark.parametrize(
    ("ways", "complex_first"),
    [
        ("rr", False),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("rr", True), ("cc", False), ("cc", True))),
    ],
)
@pytest.mark.parametrize(("real", "other", "kernel"), EMULATED)
def test_emulation(real, other, kernel, ways, complex_first, rng):
    names = (other, real) if complex_first else (real, other)
    a, b = matrix(rng, names[0], (19, 70), ways[0]), matrix(rng, names[1], (70, 23), ways[1])
    found = result(other, (19, 23), "r")
    plan = gm.gemm.plan(a, b, alpha=2, out=found, precision="ozaki", executor="vgpu", kernel=kernel)
    plan.execute()
    assert plan.decision() == ("ozaki-14" if real == "float64" else "bf16x6",)
    assert_product(found, a, b, alpha=2)
    a[3, 5] = np.nan
    # One line of the real product, where it has room for it.
    assert plan.decision()[0] in ("ieee", "ozaki-14, ieee in 1 row", "ozaki-14, ieee in 1 column")
    plan.execute()
    assert np.isnan(found[3]).all()
    assert np.isfinite(found[[0, 18]]).all()


def test_emulation_that_is_not_for_complex_scalars_is_native(rng):
    a, b = matrix(rng, "float64", (19, 20)), matrix(rng, "complex128", (20, 23))
    plan = gm.gemm.plan(a, b, alpha=1j, precision="ozaki", **ON_H200)
    assert "unused" in plan.precision
    assert plan.decision() == ("ieee",)
    assert_product(plan.execute(), a, b, alpha=1j)
    with pytest.raises(gm.DTypeError, match="or of a type and its parts'"):
        gm.matmul(a.astype(np.float32), b, precision="ozaki")


#: Types of the operands and the result, that of the sums, and the kernel of large products.
OTHER_RESULTS = {
    ("complex128", "complex128", "complex64"): ("complex128", "complex128_gemm"),
    ("complex64", "complex64", "complex128"): ("complex128", "complex_gemm_upcast"),
    ("complex64", "complex128", "complex64"): ("complex128", "complex_gemm_upcast"),
    ("float32", "float32", "float64"): ("float32", "simt_gemm"),
}
#: Types of C that the sums hold, and that they do not.
TAKEN, REFUSED = (
    [
        (types, c_type)
        for types, (sums, _) in OTHER_RESULTS.items()
        for c_type in ("float32", "float64", "complex64", "complex128")
        if dtype_named(sums).holds(dtype_named(c_type)) == taken
    ]
    for taken in (True, False)
)


@pytest.mark.combinations(1)
@pytest.mark.parametrize(("types", "c_type"), [*((types, None) for types in OTHER_RESULTS), *TAKEN], ids=str)
def test_results_of_another_type_than_the_sums(types, c_type, rng):
    large = [np.broadcast_to(np.zeros((), name), (1024, 1024)).copy() for name in types]
    assert gm.matmul.plan(*large[:2], out=large[2], chip="h200").kernel == OTHER_RESULTS[types][1]
    a, b = matrix(rng, types[0], (37, 21)), matrix(rng, types[1], (21, 45))
    c, beta, found = None, 0, result(types[2], (37, 45), "r")
    if c_type is not None:
        c, beta = matrix(rng, c_type, (37, 45), "c"), 2
    plan = gm.gemm.plan(a, b, c, beta=beta, out=found, **ON_H200)
    plan.execute()
    assert_product(found, a, b, c, 1, beta)


@pytest.mark.parametrize(("types", "c_type"), REFUSED, ids=str)
def test_c_that_the_sums_do_not_hold_is_refused(types, c_type, rng):
    a, b = matrix(rng, types[0], (37, 21)), matrix(rng, types[1], (21, 45))
    found = result(types[2], (37, 45), "r")
    with pytest.raises(gm.GemmuleError, match=f"c is {c_type}|C is {c_type}"):
        gm.gemm.plan(a, b, matrix(rng, c_type, (37, 45), "c"), beta=2, out=found, **ON_H200)


def test_complex_results_of_any_strides(rng):
    a, b, c = (
        matrix(rng, "complex128", shape, way) for shape, way in (((37, 21), "s"), ((21, 45), "r"), ((37, 45), "s"))
    )
    for conj, way in ((False, "s"), (True, "c")):
        found = result("complex128", (37, 45), way)
        plan = gm.gemm.plan(a, b, c, alpha=1j, beta=0.5j, conj_b=conj, out=found, **ON_H200)
        plan.execute()
        assert plan.kernel == "complex_gemm_upcast"
        assert_product(found, a, b.conj() if conj else b, c, 1j, 0.5j)


def test_products_whose_memory_is_planned_take_no_workspace():
    from gemmule.core.arch import Arch
    from gemmule.core.problem import contiguous_gemm
    from gemmule.dispatch.select import choose, choose_streamed

    problem = contiguous_gemm(1024, 1024, 1024, ("complex128", "float64", "complex128"))
    hopper = {"arch": Arch.parse("sm_90a"), "multiprocessors": 132}
    assert sum(choose(problem, **hopper).workspaces(problem).values()) > 0
    choice = choose_streamed(problem, **hopper)
    assert choice.form is None
    turned = dataclasses.replace(problem, a=problem.a.transposed(), d=problem.d.transposed())
    choice = choose_streamed(turned, **hopper)
    assert choice.spec.name == "float64_gemm"
    assert choice.workspaces(turned) == {}
