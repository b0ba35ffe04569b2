"""What no kernel takes is refused in a line; all reasons are in the error."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import DTYPES, Precision, opaque_dtype
from gemmule.core.errors import NoKernelError
from gemmule.core.problem import contiguous_gemm
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose

PROBLEM = contiguous_gemm(8, 8, 8, ("float32", "float32", "int8"))


def test_the_message_has_the_reason_that_no_choice_gets_around():
    # Kernels for a matrix and its own transpose are not asked.
    specs = [spec for spec in REGISTRY if spec.operation == "gemm" and not spec.is_syrk]
    with pytest.raises(NoKernelError) as told:
        choose(PROBLEM, Arch.parse("sm_90a"))
    text = str(told.value)
    assert text.startswith("gemm_reference: float32 x float32 accumulates in float32")
    assert f"({len(specs) - 1} more kernels refuse it too: `refused` of this error has their reasons)" in text
    assert len(text) < 320
    assert [name for name, _ in told.value.refused] == [spec.name for spec in specs]
    assert all(reason for _, reason in told.value.refused)
    again = pickle.loads(pickle.dumps(told.value))
    assert (str(again), again.refused) == (text, told.value.refused)


def test_one_kernel_alone_has_its_reason_alone():
    only = tuple(spec for spec in REGISTRY if spec.name == "g07_cp_async")
    with pytest.raises(NoKernelError, match=r"^g07_cp_async: D is int8; this kernel takes float32 only$"):
        choose(PROBLEM, Arch.parse("sm_90a"), only)


def test_types_are_refused_once_for_all_products():
    asked = []

    def refuses_types(types, arch):
        asked.append(types)
        return "not these types"

    specs = tuple(spec for spec in REGISTRY if spec.name in ("g07_cp_async", "gemm_reference"))
    registry = (dataclasses.replace(specs[0], refuses_types=refuses_types), specs[1])
    for n in (8, 16, 24):
        problem = contiguous_gemm(8, n, 8, ("float32", "float32", "float32"))
        assert choose(problem, Arch.parse("sm_90a"), registry).refused == (("g07_cp_async", "not these types"),)
    assert asked == [problem.types]


def test_a_spec_refuses_the_types_that_it_says():
    arch = Arch.parse("sm_90a")
    for spec in REGISTRY:
        for dtype in ("float64", "float32", "bfloat16", "int8", "float8_e4m3fn") if spec.refuses_types else ():
            for precision in Precision:
                problem = contiguous_gemm(64, 64, 64, (dtype, dtype, dtype), precision=precision)
                if reason := spec.refuses_types(problem.types, arch):
                    assert spec.refuses(problem, arch) == spec.why_not(problem, arch, spec.default) == reason


def test_a_type_is_one_object():
    for dtype in (*DTYPES, *map(opaque_dtype, (1, 2, 4, 8, 16))):
        assert pickle.loads(pickle.dumps(dtype)) is copy.deepcopy(dtype) is dtype
    assert opaque_dtype(4) is opaque_dtype(4)
