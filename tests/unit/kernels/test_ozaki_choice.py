"""Products for precision='ozaki-15': when they are chosen, what they launch, and what they are refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.arch import Arch
from gemmule.core.chips import H100_SXM
from gemmule.core.dtype import FLOAT32, FLOAT64, Precision, dtype_named
from gemmule.core.errors import ArgumentError, DTypeError
from gemmule.core.gpu_rates import H200_RATES
from gemmule.core.launch import ScalarParam, TensorMapParam, TensorParam
from gemmule.core.layout import contiguous
from gemmule.core.problem import contiguous_gemm, inner_problem
from gemmule.core.real_parts import RealParts, into_rows
from gemmule.core.roofline import fastest_unit
from gemmule.core.spec import Choice
from gemmule.dispatch.select import choose
from gemmule.kernels.emulation.ozaki_complex.spec import SPEC as OZAKI_COMPLEX
from gemmule.kernels.emulation.ozaki_config import ProductsConfig
from gemmule.kernels.emulation.ozaki_gemm.spec import SPEC, times_us
from gemmule.kernels.emulation.ozaki_products.spec import SPEC as PRODUCTS
from gemmule.kernels.emulation.ozaki_reconstruction.spec import SPEC as RECONSTRUCTION
from gemmule.kernels.emulation.ozaki_residues.spec import SPEC as RESIDUES
from gemmule.kernels.emulation.residues import BLOCK_BYTES
from gemmule.kernels.float64.gemm.spec import SPEC as FLOAT64_GEMM
from gemmule.lab.products import gemm_problem
from gemmule.outofcore.calls.device_engine import Limits, memory_beside_workspaces, plan_device_engine
from gemmule.outofcore.stores.arrays import ArraySink, ArraySource
from gemmule.outofcore.tiles.problem import StreamProblem
from support.ozaki_blocks import small_blocks

__all__ = ["small_blocks"]

HOPPER = Arch.parse("sm_90a")


def problem_of(m, n, k, layout="nn", dtype="float64", precision=Precision.OZAKI_15):
    return dataclasses.replace(gemm_problem(m, n, k, dtype, dtype, layout), precision=precision)


def chosen(problem):
    return choose(problem, HOPPER, multiprocessors=132)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", [(8192, 8192, 8192), (8191, 8193, 8195), (16384, 16384, 4096)], ids=str)
def test_large_products_take_it_when_they_are_asked_to(shape, layout):
    choice = chosen(problem_of(*shape, layout))
    assert choice.spec is SPEC
    assert choice.predicted_us > 0
    assert chosen(problem_of(*shape, layout, precision=Precision.IEEE)).spec.name != SPEC.name


@pytest.mark.parametrize("precision", [Precision.OZAKI_15, Precision.OZAKI])
def test_a_batch_in_one_launch_is_compared_with_a_launch_for_each_matrix(precision):
    problem = dataclasses.replace(contiguous_gemm(512, 100, 129, ("float64",) * 3, batch=(64,)), precision=precision)
    choice = chosen(problem)
    assert choice.spec is FLOAT64_GEMM
    assert choice.predicted_us < 64 * min(SPEC.costs(inner_problem(problem, 0), SPEC.configs, H200_RATES))


@pytest.mark.parametrize("shape", [(500, 500, 500), (3000, 70, 16), (300, 200, 0)], ids=str)
def test_products_for_which_residues_do_not_pay(shape):
    choice = chosen(problem_of(*shape))
    assert choice.spec.name != SPEC.name
    reason = dict(choice.refused)[SPEC.name]
    assert reason.endswith("0") if 0 in shape else reason == "supported, but float64_gemm has a lower predicted time"


def spans(param):
    """Bytes from the first element to behind the last one that a parameter describes; 0 where there is none."""
    item = 4 if param.operand.startswith(("scales", "rows", "columns")) else 1
    if 0 in param.shape:
        return 0
    strides = (1, *param.strides)
    if param.operand == "residues" or param.operand == "d":
        strides = (param.strides[0], 1, *param.strides[1:])
    return item * (1 + sum((extent - 1) * stride for extent, stride in zip(param.shape, strides, strict=True)))


@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_every_launch_stays_in_the_workspaces(layout, small_blocks):
    problem = problem_of(70, 1300, 200, layout)
    then = SPEC.next_kernel(problem, SPEC.default)
    chain = list(then.chain())
    assert [one.spec for one in chain] == [RESIDUES, PRODUCTS, RECONSTRUCTION] * 3
    assert [one.problem.n for one in chain[2::3]] == [512, 512, 276]
    # Those of A are there from the first block on.
    assert [one.problem.m for one in chain[::3]] == [70, 0, 0]
    held = Choice(SPEC, SPEC.default).workspaces(problem)
    assert held == then.workspaces
    for one in chain:
        assert set(one.operands.values()) <= {"a", "b", "d", *held}
    assert held["residues of rows"] == 15 * 70 * 256
    assert held["residues of columns"] == 15 * 512 * 256
    reached = dict.fromkeys(held, 0)
    for one in chain:
        for param in one.spec.launch(one.problem, one.config).params:
            name = one.operands.get(getattr(param, "operand", ""), getattr(param, "operand", ""))
            if name in held and isinstance(param, TensorParam):
                reached[name] = max(reached[name], one.beyond.get(param.operand, 0) + spans(param))
            if isinstance(param, TensorMapParam):
                extents, pitches = param.extents, (1, *param.pitches)
                assert sum((e - 1) * p for e, p in zip(extents, pitches, strict=True)) < held[name]
    assert all(0 < reached[name] <= size for name, size in held.items())
    # Of C, D and B the columns of each block.
    assert [one.beyond["d"] for one in chain[2::3]] == [0, 8 * 512, 8 * 1024]
    step = 8 if layout == "nn" else 8 * 200
    assert [one.beyond["b"] for one in chain[::3]] == [0, 512 * step, 1024 * step]


def test_a_long_k_is_cut_before_sums_may_overflow():
    problem = problem_of(70, 80, 140000)
    first, *others = [one for one in SPEC.next_kernel(problem, SPEC.default).chain() if one.spec is PRODUCTS]
    assert [one.problem.k for one in (first, *others)] == [65536, 65536, 140032 - 131072]
    assert first.problem.c is None
    assert all(one.problem.c == one.problem.d for one in others)
    assert [one.beyond["a"] for one in others] == [one.beyond["b"] for one in others] == [65536, 131072]
    longer = dataclasses.replace(first.problem, k=2**16 + 128)
    assert "may overflow" in PRODUCTS.why_not(longer, HOPPER, PRODUCTS.default)


def test_the_number_of_guarded_products_tells_real_from_complex_elements():
    problem = problem_of(1024, 1024, 1024, precision=Precision.OZAKI)
    (products,) = [one.problem for one in SPEC.next_kernel(problem, SPEC.default).chain() if one.spec is PRODUCTS]
    planes = {}
    for count in (9, 16, 27, 48):
        guarded = dataclasses.replace(products, batch=(count,))
        assert PRODUCTS.why_not(guarded, HOPPER, PRODUCTS.default) is None
        planes[count] = dict(PRODUCTS.signature(guarded, PRODUCTS.default)).get("planes", "1")
    assert planes == {9: "1", 16: "1", 27: "3", 48: "3"}
    other = dataclasses.replace(products, batch=(17,))
    assert "this kernel takes 16, 48, 9, 27" in PRODUCTS.why_not(other, HOPPER, PRODUCTS.default)


def test_the_launches_are_a_plan_that_says_so():
    problem = problem_of(9000, 9000, 9000)
    names = [one.spec.name for one in SPEC.next_kernel(problem, SPEC.default).chain()]
    assert names[:4] == ["ozaki_residues", "ozaki_products", "ozaki_reconstruction", "ozaki_residues"]


def test_a_column_major_result_is_the_transposed_product():
    problem = problem_of(300, 200, 100)
    turned = dataclasses.replace(problem, d=contiguous(FLOAT64, 200, 300).transposed())
    first = SPEC.next_kernel(turned, SPEC.default)
    assert (first.operands["a"], first.operands["b"]) == ("b", "a")
    assert first.problem.m == 200


def test_the_products_take_nothing_but_residues():
    assert "residues that ozaki_residues makes" in PRODUCTS.why_not(problem_of(64, 64, 128), HOPPER, PRODUCTS.default)
    for spec in (RESIDUES, RECONSTRUCTION):
        plain = problem_of(64, 64, 128, precision=Precision.IEEE)
        assert "runs after ozaki_gemm" in spec.why_not(plain, HOPPER, spec.default)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"precision": Precision.IEEE}, "for 'ozaki', 'ozaki-14', 'ozaki-15'"),
        ({"alpha": 0}, "nothing to multiply"),
        ({"a": dataclasses.replace(contiguous(FLOAT64, 256, 256), col_stride=2, row_stride=512)}, "A has strides"),
        ({"d": contiguous(FLOAT32, 256, 256)}, "D float32"),
        ({"b": dataclasses.replace(contiguous(FLOAT64, 256, 256), alignment=4)}, "B begins within an element"),
        ({"c": contiguous(FLOAT64, 256, 256).transposed(), "beta": 1}, "different layouts"),
    ],
)
def test_what_is_refused(change, reason):
    problem = dataclasses.replace(problem_of(256, 256, 256), **change)
    assert reason in SPEC.why_not(problem, HOPPER, SPEC.default)
    assert "sm_90a" in SPEC.why_not(problem_of(256, 256, 256), Arch.parse("sm_100a"), SPEC.default)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ProductsConfig(tile_m=192),
        lambda: ProductsConfig(tile_n=288),
        lambda: ProductsConfig(tile_n=96),
        lambda: ProductsConfig(tile_m=256, tile_n=256),
        lambda: ProductsConfig(stages=6),
        lambda: ProductsConfig(cluster_m=4),
    ],
)
def test_impossible_configs(make):
    with pytest.raises(ArgumentError, match="config "):
        make()


def test_the_unit_that_multiplies():
    rate = H100_SXM.peaks.int8_tensor / 15
    assert fastest_unit(H100_SXM, FLOAT64, FLOAT64, Precision.OZAKI_15) == ("int8_tensor", rate)
    assert fastest_unit(H100_SXM, FLOAT64, FLOAT64)[0] == "fp64_tensor"


def test_it_is_for_float64_and_the_host_computes_exactly():
    a = np.ones((3, 3))
    np.testing.assert_array_equal(gm.matmul(a, a, precision="ozaki-15", executor="cpu"), 3 * a)
    with pytest.raises(gm.ArgumentError, match=r"^precision='int8x15' is not known; choose one of .*'ozaki-15'"):
        gm.matmul(a, a, precision="int8x15", executor="cpu")
    with pytest.raises(DTypeError, match="precision='ozaki-15' is for float64 products, not float32 x float32"):
        gm.matmul(a.astype(np.float32), a.astype(np.float32), precision="ozaki-15", executor="cpu")


def test_a_budget_leaves_room_for_residues():
    """Of two slices of A one is converted; the rest in blocks. With little memory all of it is."""
    left = memory_beside_workspaces(8 << 30, Precision.OZAKI_15)
    assert left + left / 2 * 15 / 8 + BLOCK_BYTES == pytest.approx(8 << 30)
    assert memory_beside_workspaces(1 << 30, Precision.OZAKI_15) == int((1 << 30) / (1 + 15 / 8))


@pytest.mark.parametrize(("dtype", "precision"), [("c16", Precision.IEEE), ("f8", Precision.OZAKI)])
def test_streamed_complex_products_are_native(dtype, precision):
    """Budgets have no room for the real forms."""
    a = np.zeros((8, 8), dtype)
    problem = StreamProblem(ArraySource(a), ArraySource(a), None, (8, 8), a.dtype)
    limits = Limits(device=1 << 20, pinned=1 << 20, host=8 << 20)
    engine = plan_device_engine("cpu", problem, ArraySink(np.zeros_like(a)), limits, precision=Precision.OZAKI)
    assert engine.precision is precision


def test_the_guarded_form_launches_the_guard_first_then_the_native_kernel():
    choice = chosen(problem_of(4096, 4096, 4096, precision=Precision.OZAKI))
    assert choice.spec is SPEC
    launches, held = choice.launches(problem_of(4096, 4096, 4096, precision=Precision.OZAKI))
    assert [one.spec.name for one in launches] == [
        "ozaki_gemm", "ozaki_pairs", "ozaki_scales", "ozaki_guard", "float64_guarded", "float64_lines",
        "ozaki_residues", "ozaki_products", "ozaki_reconstruction",
    ]  # fmt: skip
    # Memory is for as many moduli as may be chosen.
    assert held["residues of rows"] == 16 * 4096 * 4096
    # The guard's words, and room for one row and one column in 32.
    assert held["shortfall"] == 4 * (11 + 128 + 128)
    # All after the guard read it.
    for one in launches[4:]:
        assert "shortfall" in {param.operand for param in one.launch.params if isinstance(param, TensorParam)}
    # The first one sets what others raise: no memset is needed.
    assert not any(one.zeroed for launch in launches for one in launch.launch.workspaces)


def test_complex_elements_have_three_products_a_modulus_and_their_own_native_kernel():
    problem = problem_of(2048, 2048, 2048, dtype="complex128", precision=Precision.OZAKI)
    launches, held = chosen(problem).launches(problem)
    assert [one.spec.name for one in launches] == [
        "ozaki_complex", "ozaki_words", "ozaki_pairs", "ozaki_scales", "ozaki_guard", "complex128_guarded",
        "ozaki_residues", "ozaki_products", "ozaki_reconstruction",
    ]  # fmt: skip
    assert held["residues of rows"] == 3 * 16 * 2048 * 2048
    # Magnitudes of the sums of real parts, and of imaginary ones.
    assert held["magnitudes of columns"] == 2 * held["magnitudes of rows"]


@pytest.mark.parametrize(
    ("dtype", "guarded", "native", "sides"),
    [
        ("float64", "ozaki_gemm", "float64_gemm", (2048, 3072)),
        ("complex128", "ozaki_complex", "complex128_gemm", (1024, 3072)),
        ("complex64", "ozaki_complex", "complex64_gemm", (256, 4096)),
    ],
)
@pytest.mark.parametrize("chip", ["NVIDIA H100 80GB HBM3", "NVIDIA H200"])
def test_emulation_must_save_time(dtype, guarded, native, sides, chip):
    """Where both are predicted to take about as long, the native kernel runs: its time is less of a guess."""
    for side, expected in zip(sides, (native, guarded), strict=True):
        problem = problem_of(side, side, side, dtype=dtype, precision=Precision.OZAKI)
        assert choose(problem, HOPPER, multiprocessors=132, chip=chip, tuned=False).spec.name == expected


def test_a_refused_product_pays_for_guard_and_native_kernel():
    problem = problem_of(4096, 4096, 4096, precision=Precision.OZAKI)
    emulated, refused = times_us(problem, H200_RATES)
    native = min(FLOAT64_GEMM.costs(problem, FLOAT64_GEMM.configs, H200_RATES))
    assert emulated < native < refused
    # Without a guard there is nothing to refuse.
    expert = dataclasses.replace(problem, precision=Precision.OZAKI_15)
    assert len(set(times_us(expert, H200_RATES))) == 1


def test_the_guard_of_float32():
    problem = problem_of(4096, 4096, 4096, dtype="float32", precision=Precision.OZAKI)
    choice = chosen(problem)
    names = [one.spec.name for one in choice.launches(problem)[0]]
    assert names == ["bf16x6_gemm", "bf16x6_products", "simt_guarded"]


@pytest.mark.parametrize("dtypes", [("float32", "float64"), ("float16", "float16"), ("int32", "int32")], ids="-".join)
def test_the_guarded_form_is_for_one_type(dtypes):
    a, b = (np.ones((3, 3), dtype) for dtype in dtypes)
    with pytest.raises(DTypeError, match="precision='ozaki' is for two operands of one type, float32, float64"):
        gm.matmul(a, b, precision="ozaki", executor="cpu")


@pytest.mark.parametrize("chip", ["h100", "h200"])
def test_complex64_results_of_complex128_are_emulated_where_that_saves_time(chip):
    for side, kernel in ((256, "complex128_gemm"), (4096, "ozaki_complex")):
        a, b = (np.empty((side, side), np.complex128) for _ in "ab")
        plan = gm.gemm.plan(a, b, out_dtype="complex64", precision="ozaki", chip=chip)
        assert plan.kernel == kernel


@pytest.mark.parametrize(("conj_a", "conj_b", "sign"), [(0, 0, -1), (1, 0, 1), (0, 1, 1), (1, 1, -1)])
@pytest.mark.parametrize("columns", [False, True])
def test_imaginary_parts_have_the_sign_of_both_conjugates(conj_a, conj_b, sign, columns):
    """On the virtual GPU each is compiled anew, so that quick tests there have one."""
    problem = problem_of(33, 34, 35, dtype="complex128", precision=Precision.OZAKI)
    a, b = (dataclasses.replace(x, conj=bool(conj)) for x, conj in ((problem.a, conj_a), (problem.b, conj_b)))
    problem = dataclasses.replace(problem, a=a, b=b)
    if columns:
        problem = problem.transposed()
    params = OZAKI_COMPLEX.launch(problem, OZAKI_COMPLEX.default).params
    assert [param.value for param in params if isinstance(param, ScalarParam)] == [sign]


@pytest.mark.parametrize("types", [("float64", "complex128"), ("complex128", "float64")])
def test_nothing_follows_a_real_product_whose_decision_is_asked_for(types):
    a, b = (contiguous(dtype_named(name), *shape) for name, shape in zip(types, ((33, 35), (35, 34)), strict=True))
    problem = problem_of(33, 34, 35, dtype="complex128", precision=Precision.OZAKI)
    problem = into_rows(dataclasses.replace(problem, a=a, b=b))
    assert not any(step.is_last for step in RealParts().steps(problem))
