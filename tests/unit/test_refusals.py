"""What no kernel takes is refused in a line; all reasons are in the error."""

from __future__ import annotations

import pickle

import pytest

from gemmule.core.arch import Arch
from gemmule.core.errors import NoKernelError
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose, contiguous_gemm

PROBLEM = contiguous_gemm(8, 8, 8, ("float32", "float32", "float64"))


def test_the_message_has_the_reason_that_no_choice_gets_around():
    # Kernels for a matrix and its own transpose are not asked.
    specs = [spec for spec in REGISTRY if spec.operation == "gemm" and not spec.mirrors]
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
    with pytest.raises(NoKernelError, match=r"^g07_cp_async: D is float64; this kernel takes float32 only$"):
        choose(PROBLEM, Arch.parse("sm_90a"), only)
