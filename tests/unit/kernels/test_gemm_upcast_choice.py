"""Products that are copied as one type off Hopper: which kernel multiplies, in configs that the architecture takes."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.errors import NoKernelError
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import Precision, contiguous_gemm
from gemmule.dispatch.select import choose
from gemmule.kernels.mma_sync.gemm_upcast.spec import SPEC

ARCHS = [Arch.parse(name) for name in ("sm_80", "sm_86", "sm_89", "sm_100a", "sm_120a")]
MIXED = [
    (("float32", "bfloat16", "float32"), "float32", "simt_gemm"),
    (("float16", "bfloat16", "float32"), "float32", "mma_sync_gemm"),
    (("int8", "float16", "float16"), "float16", "mma_sync_gemm"),
    (("bfloat16", "int8", "bfloat16"), "bfloat16", "mma_sync_gemm"),
    (("float64", "float32", "float64"), "float64", "float64_gemm"),
    (("int8", "int32", "int32"), "int32", "simt_gemm"),
    (("complex64", "complex128", "complex128"), "complex128", "complex128_gemm"),
]
FLOAT8 = [
    (("float8_e4m3fn", "float8_e4m3fn", "float16"), "float16", "mma_sync_gemm"),
    (("float8_e5m2", "float8_e4m3fn", "bfloat16"), "bfloat16", "mma_sync_gemm"),
    (("bfloat16", "float8_e4m3fn", "bfloat16"), "bfloat16", "mma_sync_gemm"),
    (("float8_e4m3fn", "float8_e4m3fn", "float8_e4m3fn"), "float16", "mma_sync_gemm"),
]


def assert_multiplied(problem, arch, wide, kernel):
    """Hold that copies of a type are multiplied by a kernel that the architecture takes."""
    choice = choose(problem, arch, multiprocessors=108)
    assert choice.spec.name == ("complex_gemm_upcast" if "complex" in wide else SPEC.name)
    assert choice.predicted_us > 0
    (then,) = choice.next_kernel(choice.product(problem)[0]).chain()
    assert (then.problem.a.dtype.name, then.problem.b.dtype.name, then.spec.name) == (wide, wide, kernel)
    assert then.spec.why_not(then.problem, arch, then.config) is None
    assert then.spec.launch(then.problem, then.config).shared_bytes <= arch.shared_bytes_per_block
    assert then.config.cluster_size == 1 or arch.major > 9


@pytest.mark.parametrize("arch", ARCHS, ids=str)
@pytest.mark.parametrize(("types", "wide", "kernel"), [*MIXED, *FLOAT8], ids=str)
def test_mixed_types_and_8_bit_floats(arch, types, wide, kernel):
    problem = contiguous_gemm(1024, 1024, 1024, types)
    if "float8" in str(types) and not arch.has_float8:
        with pytest.raises(NoKernelError, match=r"8-bit floats need compute capability 8\.9"):
            choose(problem, arch, multiprocessors=108)
    else:
        assert_multiplied(problem, arch, wide, kernel)


@pytest.mark.parametrize("other", ["complex64", "complex128"])
def test_complex_products_of_8_bit_floats_are_refused_where_nothing_converts_them(other):
    problem = contiguous_gemm(256, 256, 256, ("float8_e5m2", other, other))
    problem = dataclasses.replace(problem, alpha=1j)
    with pytest.raises(NoKernelError, match=r"8-bit floats need compute capability 8\.9"):
        choose(problem, ARCHS[1], multiprocessors=108)
    assert choose(problem, ARCHS[2], multiprocessors=108).spec.name == "complex_gemm_upcast"


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_8_bit_results_are_refused_where_nothing_converts_them(dtype):
    problem = contiguous_gemm(256, 256, 256, (dtype, dtype, "float8_e4m3fn"))
    with pytest.raises(NoKernelError, match=r"8-bit floats need compute capability 8\.9"):
        choose(problem, ARCHS[0], multiprocessors=108)
    assert choose(problem, ARCHS[2], multiprocessors=108).predicted_us > 0


@pytest.mark.parametrize("arch", ARCHS, ids=str)
@pytest.mark.parametrize("operand", ["a", "b"])
@pytest.mark.parametrize(
    ("dtype", "kernel"),
    [("bfloat16", "mma_sync_gemm"), ("int8", "mma_sync_gemm"), ("float32", "simt_gemm"), ("float64", "float64_gemm"),
     ("int32", "simt_gemm"), ("complex64", "complex64_gemm")],
)  # fmt: skip
def test_strided_operands(arch, operand, dtype, kernel):
    out = "int32" if dtype == "int8" else dtype
    problem = contiguous_gemm(1024, 1024, 1024, (dtype, dtype, out))
    strided = StridedMatrix(problem.a.dtype, 1024, 1024, -4096, 2)
    problem = dataclasses.replace(problem, **{operand: strided})
    (then,) = choose(problem, arch, multiprocessors=108).next_kernel(problem).chain()
    assert then.spec.name == kernel
    assert then.spec.why_not(then.problem, arch, then.config) is None


def test_what_is_contiguous_and_of_one_type_is_not_copied():
    for dtype in ("bfloat16", "int8", "float32"):
        problem = contiguous_gemm(1024, 1024, 1024, (dtype, dtype, "int32" if dtype == "int8" else dtype))
        assert "nothing is to be copied" in SPEC.why_not(problem, ARCHS[0], SPEC.default)
    assert "hopper_gemm_upcast" in SPEC.why_not(
        contiguous_gemm(1024, 1024, 1024, MIXED[0][0]), Arch.parse("sm_90a"), SPEC.default
    )


def test_emulation_that_is_only_permitted_is_computed_natively():
    problem = contiguous_gemm(1024, 1024, 1024, ("float64",) * 3, precision=Precision.OZAKI)
    problem = dataclasses.replace(problem, a=StridedMatrix(problem.a.dtype, 1024, 1024, 2048, 2))
    assert choose(problem, ARCHS[0], multiprocessors=108).spec is SPEC


@pytest.mark.parametrize("arch", [*ARCHS[:3], Arch.parse("sm_90a")], ids=str)
@pytest.mark.parametrize("types", [("int8",) * 3, ("int8", "int8", "int32"), ("int32",) * 3], ids=str)
def test_strided_results_of_integers_are_copied_from_a_workspace(arch, types):
    problem = contiguous_gemm(1024, 1024, 1024, types)
    problem = dataclasses.replace(problem, d=StridedMatrix(problem.d.dtype, 1024, 1024, 2048, 2))
    choice = choose(problem, arch, multiprocessors=108)
    assert choice.form.name == "sums"
    assert choice.spec.name != "gemm_reference"


@pytest.mark.parametrize("arch", [*ARCHS[:3], Arch.parse("sm_90a")], ids=str)
@pytest.mark.parametrize("operand", ["a", "b"])
def test_a_conjugate_times_a_real_matrix_is_one_real_product(arch, operand):
    types = ("complex64", "float32") if operand == "a" else ("float32", "complex64")
    plain = contiguous_gemm(2048, 2048, 2048, (*types, "complex64"))
    conjugate = dataclasses.replace(plain, **{operand: dataclasses.replace(plain.operands()[operand], conj=True)})
    choices = [choose(one, arch, multiprocessors=108) for one in (plain, conjugate)]
    assert [one.form.name for one in choices] == ["parts", "parts"]
    assert choices[1].predicted_us < 1.1 * choices[0].predicted_us
    assert not any(matrix.conj for matrix in choices[1].product(conjugate)[0].operands().values())
