"""Products that are neither emulated nor complex are chosen among fewer kernels, with the same result."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from gemmule.core.arch import Arch
from gemmule.core.problem import contiguous_gemm
from gemmule.dispatch.registry import kernels_for, kernels_of
from gemmule.dispatch.select import choose


def test_a_plain_product_imports_no_kernel_of_emulation_complex_numbers_or_groups():
    script = textwrap.dedent("""
        import sys
        from gemmule.core.arch import Arch
        from gemmule.core.problem import contiguous_gemm
        from gemmule.dispatch.select import choose
        found = [
            choose(contiguous_gemm(96, 80, 70, (dtype,) * 3), Arch.parse("sm_90a"), multiprocessors=132)
            for dtype in ("bfloat16", "float32", "float64")
        ]
        kinds = "kernels.emulation", "kernels.complex", "grouped"
        assert not [name for name in sys.modules if any(kind in name for kind in kinds)]
        print({name for choice in found for name, reason in choice.refused if reason} >= {"ozaki_gemm", "bf16x6_gemm"})
    """)
    run = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("True\n", "")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64", "int8", "float8_e4m3fn", "complex64"])
@pytest.mark.parametrize("shape", [(96, 80, 70), (1024, 768, 512), (7, 5, 3), (33, 4096, 2048)])
def test_plain_products_are_chosen_as_among_all_kernels(dtype, shape):
    d = {"int8": "int32", "float8_e4m3fn": "bfloat16"}.get(dtype, dtype)
    problem, every = contiguous_gemm(*shape, (dtype, dtype, d)), kernels_of("gemm")
    assert (kernels_for(problem) is every) is (dtype == "complex64")
    assert [one for one in every if one in kernels_for(problem)] == [*kernels_for(problem)]
    for chip in ("NVIDIA H200", None):
        found, expected = (
            choose(problem, Arch.parse("sm_90a"), among, multiprocessors=132, chip=chip) for among in (None, every)
        )
        assert found == expected
        assert sorted(found.refused) == sorted(expected.refused)
