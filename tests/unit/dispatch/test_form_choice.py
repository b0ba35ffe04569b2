"""The form in which a product is computed whose C or result its kernels do not take as they are."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest

from gemmule.core.activations import silu
from gemmule.core.arch import Arch
from gemmule.core.dtype import DTYPES, dtype_named
from gemmule.core.epilogue import Epilogue
from gemmule.core.errors import DTypeError, UnsupportedError
from gemmule.core.k_parts import KParts
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.problem import GemmProblem, contiguous_gemm
from gemmule.core.tracing import accumulated, accumulated_second, lowered
from gemmule.dispatch.choices import form_choice
from gemmule.dispatch.choices.choice_cache import clear_choices
from gemmule.dispatch.registry import kernels_of
from gemmule.dispatch.select import choose

HOPPER, H200 = Arch.parse("sm_90a"), {"multiprocessors": 132, "chip": "NVIDIA H200", "tuned": False}


def of_bfloat16(m: int, n: int, k: int, c_stride: int) -> GemmProblem:
    """Return a product whose C has rows that far apart; those of no stride are broadcast."""
    kind = dtype_named("bfloat16")
    c = StridedMatrix(kind, m, n, c_stride, 1, (), 2)
    b = contiguous(kind, n, k).transposed()
    return GemmProblem(m, n, k, (), contiguous(kind, m, k), b, c, contiguous(kind, m, n), beta=1)


@pytest.mark.parametrize(
    "shape", [(64, 8192, 8192), (8192, 8192, 4096), (16384, 4096, 8192), (6144, 6144, 6144), (32, 16384, 8192)]
)
def test_c_alone_does_not_bring_the_kernel_of_unaligned_matrices(shape):
    for stride in (0, shape[1] + 3):
        choice = choose(of_bfloat16(*shape, stride), HOPPER, **H200)
        assert choice.spec.name == "hopper_gemm"
        assert choice.form is not None


@pytest.mark.parametrize("shape", [(64, 8191, 8192), (33, 16383, 8191), (16, 8191, 8191), (4095, 65, 8191)])
def test_unaligned_products_take_as_long_as_reading_their_operands(shape):
    problem = contiguous_gemm(*shape, ("bfloat16",) * 3)
    spec = next(spec for spec in kernels_of("gemm") if spec.name == "hopper_gemm_unaligned")
    gpu = choose(problem, HOPPER, **H200).gpu
    read = problem.a.distinct_bytes(()) + problem.b.distinct_bytes(())
    assert min(spec.costs(problem, spec.configs, gpu)) > read / 4.8e6


@pytest.mark.parametrize("name", ["float16", "complex64", "complex128"])
@pytest.mark.parametrize("side", [40, 1024])
def test_strided_results_of_many_lines_are_no_dot_products(name, side):
    kind = dtype_named(name)
    a = contiguous(kind, side, side)
    problem = GemmProblem(side, side, side, (), a, a, None, StridedMatrix(kind, side, side, 4 * side, 2, (), 16))
    assert choose(problem, HOPPER, **H200).spec.name not in ("simt_dot", "gemm_reference")


def test_accumulators_that_nearly_fill_the_memory_are_no_workspace():
    kinds = ("float64", "float64", "float32")
    small, large = (contiguous_gemm(side, side, 64, kinds) for side in (4096, 120_000))
    assert choose(small, HOPPER, **H200).workspaces(small)
    choice = choose(large, HOPPER, **H200)
    assert sum(choice.workspaces(large).values()) <= 16 << 30
    assert choice.form is None


def test_a_kernel_that_is_named_needs_no_other_reason():
    problem = contiguous_gemm(64, 64, 64, ("float32",) * 3)
    named = [spec for spec in kernels_of("gemm") if spec.name == "gemm_reference"]
    choice = choose(problem, HOPPER, named, **H200)
    assert choice.why_reference is not None
    assert choice.why_reference() == "kernel= names it"


def test_gemm_reference_is_chosen_for_small_products_alone():
    """Of every type on every architecture, also where A and B differ."""
    chosen = 0
    names = [dtype.name for dtype in DTYPES]
    for arch, types in itertools.product(
        map(Arch.parse, ("sm_80", "sm_89", "sm_120a")), itertools.product(names, repeat=3)
    ):
        try:
            choice = choose(contiguous_gemm(256, 256, 256, types), arch, multiprocessors=132)
        except (DTypeError, UnsupportedError):
            continue
        chosen += 1
        assert choice.spec.name != "gemm_reference", (arch, types)
    assert chosen > 600


@pytest.mark.parametrize(
    ("types", "n", "kernel"),
    [
        (("int8", "int8", "float16"), 1023, "hopper_gemm_k_major"),
        (("float32", "int32", "float32"), 1024, "hopper_gemm_upcast"),
    ],
)
def test_results_that_no_other_kernel_writes_are_computed_of_sums(types, n, kernel):
    choice = choose(contiguous_gemm(n, n, n, types), HOPPER, **H200)
    assert (choice.spec.name, choice.form.name) == (kernel, "sums")
    named = [spec for spec in kernels_of("gemm") if spec.name == "gemm_reference"]
    assert choice.predicted_us < choose(contiguous_gemm(n, n, n, types), HOPPER, named, **H200).predicted_us / 3


def gated(name, n=1024, k=1024):
    plain = contiguous_gemm(n, n, k, (name,) * 3)
    expression, _, _ = lowered(silu(accumulated()) * accumulated_second(), "swiglu")
    return dataclasses.replace(plain, epilogue=Epilogue(expression, second=plain.b))


@pytest.mark.parametrize(
    ("name", "kernel", "form", "steps"),
    [
        ("float32", "simt_gemm", "gate", ["simt_gemm"]),
        ("float64", "float64_gemm", "sums", ["float64_gemm", "gemm_reference"]),
        ("bfloat16", "hopper_gemm", None, []),
    ],
)
def test_gated_forms_without_a_kernel_take_two_products(name, kernel, form, steps):
    problem = gated(name)
    choice = choose(problem, HOPPER, **H200)
    assert choice.spec.name == kernel
    assert (choice.form.name if choice.form else None) == form
    assert [spec.name for spec, _ in (choice.form.kernels if choice.form else ())] == steps
    reference = choose(problem, HOPPER, [spec for spec in kernels_of("gemm") if spec.name == "gemm_reference"], **H200)
    assert choice.predicted_us < reference.predicted_us / 2
    # Each product's launch is the kernel's own.
    launches, workspaces = choice.launches(problem)
    assert len(launches) == 1 + len(steps)
    assert len(workspaces) == {None: 0, "gate": 1, "sums": 2}[form]


def test_the_second_product_of_a_gated_form_is_the_reference_kernels_for_k_of_0_alone():
    second = [choose(gated("float32", k=k), HOPPER, **H200).form for k in (0, 1)]
    assert [form and form.kernels[0][0].name for form in second] == [None, "simt_gemm"]


@pytest.mark.parametrize(("n", "us"), [(1000, 24.98), (2048, 126.8), (4096, 936.4)])
def test_gated_forms_of_two_16_bit_types_are_predicted_as_they_were_timed(n, us):
    """Gated TF32 takes longer than two products in the same tiles; timed in record 20261130T093620."""
    expression, _, _ = lowered(silu(accumulated()) * accumulated_second(), "swiglu")
    problem = contiguous_gemm(n, n, n, ("float16", "bfloat16", "float32"))
    problem = dataclasses.replace(problem, epilogue=Epilogue(expression, second=problem.b))
    choice = choose(problem, HOPPER, **H200)
    assert choice.form is None
    assert choice.predicted_us == pytest.approx(us, rel=0.07)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("float32", (1, 1, 10**7)),
        ("complex128", (9, 1, 450_000)),
        ("complex64", (16, 1, 10**6)),
        ("bfloat16", (3, 5, 10**6)),
    ],
)
def test_k_of_a_small_result_is_divided(monkeypatch, dtype, shape):
    problem = contiguous_gemm(*shape, (dtype,) * 3)
    choice = choose(problem, HOPPER, **H200)
    assert isinstance(choice.form, KParts)
    monkeypatch.setattr(form_choice, "_LEAST_US", math.inf)
    clear_choices()
    assert choice.predicted_us < 0.5 * choose(problem, HOPPER, **H200).predicted_us
    clear_choices()


@pytest.mark.parametrize("shape", [(64, 64, 8192), (512, 576, 7168), (1, 4096, 8192), (4096, 4096, 16384)])
def test_k_of_other_products_is_not(shape):
    for dtype in ("bfloat16", "float32", "float64"):
        assert not isinstance(choose(contiguous_gemm(*shape, (dtype,) * 3), HOPPER, **H200).form, KParts)
