"""What is copied as one type before another kernel multiplies it: types, lines, and who multiplies."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, Precision
from gemmule.core.errors import NoKernelError
from gemmule.core.gpu_rates import H200_RATES
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.problem import GemmProblem, contiguous_gemm
from gemmule.dispatch.registry import kernels_of
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.gemm_upcast.spec import SPEC
from gemmule.kernels.mma_sync.cost import predicted_us
from gemmule.lab.products import gemm_problem

HOPPER = Arch.parse("sm_90a")


def mixed(m=256, n=256, k=256):
    operands = contiguous(FLOAT8_E4M3, m, k), contiguous(BFLOAT16, k, n), None, contiguous(BFLOAT16, m, n)
    return GemmProblem(m, n, k, (), *operands)


def test_results_whose_elements_do_not_touch_are_refused():
    problem = dataclasses.replace(mixed(), d=StridedMatrix(BFLOAT16, 256, 256, 512, 2))
    assert SPEC.why_not(mixed(), HOPPER, SPEC.default) is None
    assert "has strides" in SPEC.why_not(problem, HOPPER, SPEC.default)
    choice = choose(problem, HOPPER, multiprocessors=132)
    assert (choice.spec.name, choice.form.name) == (SPEC.name, "sums")


def test_copies_beyond_16_gib_are_refused():
    problem = mixed(n=8, k=2**20, m=2**13)
    assert SPEC.why_not(problem, HOPPER, SPEC.default) is None
    assert "at most 17.18 are" in SPEC.why_not(mixed(n=8, k=2**20, m=2**13 + 16), HOPPER, SPEC.default)


@pytest.mark.parametrize("strides", [(512, 2), (0, 0), (2, 512), (-512, 2)], ids=str)
def test_operands_whose_elements_do_not_touch_are_copied(strides):
    problem = dataclasses.replace(mixed(), b=StridedMatrix(BFLOAT16, 256, 256, *strides))
    choice = choose(problem, HOPPER, multiprocessors=132)
    assert (choice.spec.name, choice.form) == (SPEC.name, None)
    rows = abs(strides[1]) <= abs(strides[0])
    assert choice.next_kernel(problem).problem.b.has_contiguous_rows == rows


@pytest.mark.parametrize(
    ("types", "wide", "kernel"),
    [
        (("float32", "bfloat16", "float32"), "float32", "simt_gemm"),
        (("float16", "float32", "float16"), "float32", "simt_gemm"),
        (("float16", "bfloat16", "float32"), "float32", "hopper_gemm"),
        (("int8", "float16", "float16"), "float16", "hopper_gemm"),
        (("bfloat16", "int8", "bfloat16"), "bfloat16", "hopper_gemm"),
        (("float8_e4m3fn", "int8", "bfloat16"), "bfloat16", "hopper_gemm"),
        (("float8_e4m3fn", "float32", "float32"), "float32", "simt_gemm"),
        (("int8", "float32", "float32"), "float32", "simt_gemm"),
        (("int32", "float32", "float64"), "float64", "float64_gemm"),
        (("bfloat16", "int32", "float64"), "float64", "float64_gemm"),
        (("float32", "float64", "float64"), "float64", "float64_gemm"),
        (("int8", "int32", "int32"), "int32", "simt_gemm"),
        (("complex64", "complex128", "complex128"), "complex128", "complex128_gemm"),
        (("complex64", "complex64", "complex128"), "complex128", "complex128_gemm"),
    ],
    ids=str,
)
def test_mixed_types_are_multiplied_as_the_narrowest_that_holds_both(types, wide, kernel):
    problem = contiguous_gemm(1024, 1024, 1024, types)
    choice = choose(problem, HOPPER, multiprocessors=132)
    assert choice.spec.name == ("complex_gemm_upcast" if "complex" in wide else SPEC.name)
    (then,) = choice.next_kernel(problem).chain()
    assert (then.problem.a.dtype.name, then.problem.b.dtype.name) == (wide, wide)
    assert then.spec.name == kernel
    # What TF32 holds is rounded by nothing.
    exact = wide == "float32" and "float32" not in types[:2]
    assert then.problem.precision is (Precision.TF32 if exact else Precision.IEEE)


@pytest.mark.parametrize(
    ("shape", "types", "kernel"),
    [
        ((1, 1024, 1024), ("float16", "bfloat16", "float32"), "simt_batched"),
        ((1, 8192, 8192), ("float16", "bfloat16", "float32"), "simt_batched"),
        ((192, 192, 192), ("float16", "bfloat16", "float32"), SPEC.name),
        ((256, 256, 256), ("complex64", "float32", "complex64"), "simt_gemm"),
        ((256, 256, 256), ("complex128", "float64", "complex128"), "float64_gemm"),
        ((1024, 1024, 1024), ("int8", "int8", "int8"), "mma_sync_gemm"),
        ((1536, 3072, 768), ("int8", "int8", "int8"), "hopper_gemm_k_major"),
        ((2048, 2048, 2048), ("int8", "int8", "int8"), "hopper_gemm_k_major"),
    ],
    ids=str,
)
def test_what_was_faster_on_an_h200_is_chosen(shape, types, kernel):
    """Records 20261130T093532 (the times of the parts), T093639, T093654 and T102900."""
    problem = contiguous_gemm(*shape, types)
    assert choose(problem, HOPPER, multiprocessors=132, chip="NVIDIA H200", tuned=False).spec.name == kernel


def test_emulation_of_complex64_writes_complex128_by_a_form_where_that_takes_less():
    problem = contiguous_gemm(4096, 4096, 4096, ("complex64", "complex64", "complex128"))
    choice = choose(dataclasses.replace(problem, precision=Precision.OZAKI), HOPPER, multiprocessors=132)
    assert choice.spec.name == "ozaki_complex"
    assert choice.predicted_us < choose(problem, HOPPER, multiprocessors=132).predicted_us / 2


@pytest.mark.parametrize("name", ["float32", "float64", "int32", "complex64", "complex128", "tf32"])
@pytest.mark.parametrize("operand", ["a", "b"])
def test_strided_operands_take_little_more_than_their_copies(name, operand):
    precision = Precision.TF32 if name == "tf32" else Precision.IEEE
    plain = contiguous_gemm(2048, 2048, 2048, (name if precision is Precision.IEEE else "float32",) * 3)
    plain = dataclasses.replace(plain, precision=precision)
    strided = StridedMatrix(plain.a.dtype, 2048, 2048, 4096, 2)
    choice = choose(dataclasses.replace(plain, **{operand: strided}), HOPPER, multiprocessors=132)
    assert choice.spec.name == ("complex_gemm_upcast" if "complex" in name else SPEC.name)
    copied = 3e6 * plain.a.distinct_bytes(()) / 3.3e12
    usual = choose(plain, HOPPER, multiprocessors=132)
    assert usual.predicted_us < choice.predicted_us < 1.03 * usual.predicted_us + copied + 5


def test_small_batches_of_strided_matrices_are_read_as_they_lie():
    plain = contiguous_gemm(16, 16, 16, ("float32",) * 3, batch=(4096,))
    strided = dataclasses.replace(plain.a, row_stride=32, col_stride=2, batch_strides=(512,))
    assert choose(dataclasses.replace(plain, a=strided), HOPPER, multiprocessors=132).spec.name == "simt_batched"


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("n", [256, 255])
def test_copies_for_tf32_are_k_major_where_its_kernels_need_it(layout, n):
    problem = gemm_problem(256, n, 256, "float16", "float32", layout)
    problem = dataclasses.replace(problem, b=dataclasses.replace(problem.b, dtype=BFLOAT16))
    then = choose(problem, HOPPER, multiprocessors=132).next_kernel(problem)
    major = then.problem.a.has_contiguous_rows, then.problem.b.has_contiguous_cols
    given = problem.a.has_contiguous_rows, problem.b.has_contiguous_cols
    assert major == ((True, True) if n % 4 else (given[0] or not given[1], given[1]))


def test_one_matrix_for_all_of_a_batch_is_copied_once():
    problem = contiguous_gemm(64, 64, 64, ("float32", "bfloat16", "float32"), batch=(5,))
    problem = dataclasses.replace(problem, b=dataclasses.replace(problem.b, batch_strides=(0,)))
    assert SPEC.why_not(problem, HOPPER, SPEC.default) is None
    then = SPEC.next_kernel(problem, SPEC.default)
    assert then.problem.b.batch_strides == (0,)
    assert then.workspaces == {"wide b": 64 * 64 * 4}
    assert SPEC.launch(problem, SPEC.default).grid[2] == 1


def test_strided_operands_with_an_emulated_precision_are_copied_for_native_kernels():
    for precision in (Precision.OZAKI_15, Precision.OZAKI):
        problem = contiguous_gemm(2000, 2000, 2000, ("float64",) * 3, precision=precision)
        assert "nothing is to be copied" in SPEC.why_not(problem, HOPPER, SPEC.default)
        strided = dataclasses.replace(problem, a=StridedMatrix(problem.a.dtype, 2000, 2000, 4000, 2))
        choice = choose(strided, HOPPER, multiprocessors=132)
        assert choice.spec is SPEC
        assert choice.next_kernel(strided).spec.name == "float64_gemm"


def test_the_cheapest_config_multiplies():
    problem = mixed(128, 4096, 4096)
    then = SPEC.next_kernel(problem, SPEC.default)
    costs = then.spec.costs(then.problem, then.spec.configs, H200_RATES)
    able = [then.spec.why_not(then.problem, HOPPER, config) is None for config in then.spec.configs]
    least = min(cost for cost, takes in zip(costs, able, strict=True) if takes)
    assert costs[then.spec.configs.index(then.config)] == least


def test_products_by_mma_sync_take_the_time_that_it_predicts():
    operands = (
        contiguous(FLOAT8_E4M3, 512, 4096),
        contiguous(FLOAT8_E4M3, 4096, 511),
        None,
        contiguous(FLOAT8_E4M3, 512, 511),
    )
    problem = GemmProblem(512, 511, 4096, (), *operands)
    then = SPEC.next_kernel(problem, SPEC.default)
    assert then.spec.name == "mma_sync_gemm"
    product = predicted_us(then.problem, H200_RATES)
    assert product < min(SPEC.costs(problem, SPEC.configs, H200_RATES)) < product + 6


def test_small_products_of_copies_run_the_kernel_of_small_ones():
    for n in (64, 127):
        problem = contiguous_gemm(n, n, n, ("int8", "float16", "float16"))
        choice = choose(problem, HOPPER, multiprocessors=132)
        assert choice.next_kernel(problem).spec.name == "mma_sync_small"
        plain = choose(contiguous_gemm(n, n, n, ("float16",) * 3), HOPPER, multiprocessors=132)
        assert plain.spec.name == "mma_sync_small"
        assert choice.predicted_us < plain.predicted_us + 2.5


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("name", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("columns", [False, True])
def test_few_rows_of_float32_read_narrower_weights_as_they_are(rows, name, columns):
    problem = contiguous_gemm(rows, 8192, 8192, ("float32", name, "float32"))
    if columns:
        problem = dataclasses.replace(problem, b=contiguous(problem.b.dtype, 8192, 8192).transposed())
    choice = choose(problem, HOPPER, multiprocessors=132)
    assert (choice.spec.name, choice.form) == ("simt_batched", None)
    assert choice.predicted_us < 0.8 * SPEC.least_cost(problem, H200_RATES)
    # Weights alone take that long; no prediction is below.
    assert choice.predicted_us > problem.bytes_min / 4.8e6
    # Results of another type, and functions, are computed of its sums.
    narrow = dataclasses.replace(problem, d=contiguous(BFLOAT16, rows, 8192))
    choice = choose(narrow, HOPPER, multiprocessors=132)
    assert (choice.spec.name, choice.form.name) == ("simt_batched", "sums")


def test_many_rows_copy_weights_first():
    for rows in (64, 1024):
        problem = contiguous_gemm(rows, 8192, 8192, ("float32", "bfloat16", "float32"))
        choice = choose(problem, HOPPER, multiprocessors=132)
        assert (choice.spec.name, choice.form) == (SPEC.name, None)


def test_8_bit_floats_are_converted_by_gpus_that_can():
    problem = contiguous_gemm(1, 8192, 8192, ("float32", "float8_e4m3fn", "float32"))
    assert choose(problem, HOPPER, multiprocessors=132).spec.name == "simt_batched"
    with pytest.raises(NoKernelError, match="does not convert"):
        choose(problem, Arch(8, 0), [spec for spec in kernels_of("gemm") if spec.name == "simt_batched"])


def test_mixed_lines_that_no_copy_reads_are_copied_first():
    problem = contiguous_gemm(1, 8191, 8192, ("float32", "bfloat16", "float32"))
    assert choose(problem, HOPPER, multiprocessors=132).spec.name == SPEC.name
