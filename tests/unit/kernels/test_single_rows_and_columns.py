"""Matrices of one row or one column: whichever way they are looked at, the copy engine is asked for what it can do."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, Precision
from gemmule.core.gpu_rates import H200_RATES
from gemmule.core.launch import TensorMapParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import mark_own_transpose
from gemmule.dispatch.registry import REGISTRY
from gemmule.lab.products import gemm_problem

HOPPER = Arch.parse("sm_90a")
KERNELS = [spec for spec in REGISTRY if spec.operation == "gemm" and all(arch.specific for arch in spec.archs)]
#: What kernels take that do not take bfloat16.
TAKEN = {
    "bf16x6_gemm": "float32", "hopper_gemm_upcast": "float8_e4m3fn", "ozaki_gemm": "float64",
    "hopper_gemm_w8a16": "float8_e4m3fn", "hopper_gemm_k_major": "int8",
    "simt_gemm_mn_major": "float32", "complex_gemm_upcast": "complex64",
}  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "cols", "strides"),
    [(8, 1, (1, 1)), (8, 1, (1, 8)), (8, 1, (2, 1)), (8, 1, (64, 1)), (1, 8, (8, 1)), (8, 4, (4, 1)), (8, 4, (1, 8))],
)
def test_a_matrix_or_its_transpose_has_contiguous_rows(rows, cols, strides):
    matrix = StridedMatrix(BFLOAT16, rows, cols, *strides)
    assert matrix.has_contiguous_rows != matrix.transposed().has_contiguous_rows
    assert matrix.has_contiguous_cols == matrix.transposed().has_contiguous_rows


@pytest.mark.parametrize("spec", KERNELS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(("dtype", "out"), [("bfloat16", "bfloat16"), ("int8", "int32"), ("float8_e4m3fn", "float16")])
def test_maps_have_pitches_of_whole_16_bytes(spec, layout, dtype, out):
    asked, precision = 0, Precision.IEEE
    if spec.name == "bf16x6_gemm":
        dtype, out, precision = "float32", "float32", Precision.BF16X6
    if spec.name == "ozaki_gemm":
        dtype, out, precision = "float64", "float64", Precision.OZAKI_15
    if spec.name == "ozaki_complex":
        dtype, out, precision = "complex128", "complex128", Precision.OZAKI
    for m, n, k in itertools.product((1, 2, 64, 1024), repeat=3):
        problem = dataclasses.replace(gemm_problem(m, n, k, dtype, out, layout), precision=precision)
        problem = mark_own_transpose(problem, same=True)
        for config in spec.configs[:2]:
            if spec.why_not(problem, HOPPER, config) is not None:
                continue
            launches = [spec.launch(problem, config)]
            if spec.next_kernel is not None:
                then = spec.next_kernel(problem, config)
                launches += [one.spec.launch(one.problem, one.config) for one in then.chain()]
            maps = [param for launch in launches for param in launch.params if isinstance(param, TensorMapParam)]
            assert all(pitch > 0 and pitch % 16 == 0 for param in maps for pitch in param.pitches), (m, n, k)
            asked += len(maps)
    taken = TAKEN.get(spec.name, "bfloat16")
    # B is A transposed in two of the layouts; one kernel takes lines along K alone, and one transposes all others.
    never = layout in {
        "hopper_syrk": ("nn", "tt"),
        "hopper_gemm_w8a16": ("nn", "tn", "tt"),
        "hopper_gemm_k_major": ("nt",),
    }.get(spec.name, ())
    assert asked or never or dtype != taken


def test_one_matrix_for_all_of_a_batch_is_packed_once():
    packed = next(spec for spec in KERNELS if spec.name == "hopper_gemm_repacked")
    problem = gemm_problem(63, 127, 511, "bfloat16", "bfloat16", "nn")
    batched = {
        name: dataclasses.replace(matrix, batch_strides=(0 if name == "b" else matrix.rows * matrix.cols,))
        for name, matrix in problem.operands().items()
    }
    problem = problem.with_operands((6,), batched)
    assert packed.why_not(problem, HOPPER, packed.default) is None
    workspaces = packed.next_kernel(problem, packed.default, H200_RATES).workspaces
    assert workspaces == {"packed a": 6 * 63 * 512 * 2, "packed b": 511 * 128 * 2}


def test_more_to_pack_than_indices_reach_is_refused():
    packed = next(spec for spec in KERNELS if spec.name == "hopper_gemm_repacked")
    large = gemm_problem(131073, 64, 131073, "bfloat16", "bfloat16", "nn")
    assert "32-bit" in packed.why_not(large, HOPPER, packed.default)
