"""Sums of a wgmma are touched only behind the wait for it: else the assembler lets every product wait for the last.

Such code is right and slow, and nothing but its speed tells. Where all kernels are compiled it is looked for, too.
"""

from __future__ import annotations

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.dispatch.registry import REGISTRY
from support.code.wgmma_waits import _SUMS, ARCH, early

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: The steps of the ladder and the last kernel; without C, and with one.
CASES = [
    pytest.param(spec, signature, id=f"{spec.name}-{dict(signature)}".replace(" ", ""))
    for spec in REGISTRY
    if "h02" <= spec.name[:3] <= "h08" or spec.name == "hopper_gemm"
    for signature in spec.signatures(ARCH)[:2]
]


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "signature"), CASES)
def test_sums_are_waited_for(spec, signature):
    ptx = artifact_for(spec, spec.default, signature, ARCH).ptx
    assert _SUMS.search(ptx)
    assert early(ptx) == []


def test_an_early_use_is_found():
    product = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r1, %r2}, %rd1, %rd2, p, 1, 1, 0, 1;"
    use, wait = "mul.f32 \t%r3, %r2, %r9;", "wgmma.wait_group.sync.aligned 0;"
    product += "\nwgmma.commit_group.sync.aligned;"
    but_one = wait.replace("0;", "1;")
    assert early("\n".join([use, product, but_one, "mov.b32 %r4, %r1;", wait, use])) == []
    assert early("\n".join([product, use, wait])) == [use]
    other = product.replace("%r1, %r2", "%r5, %r6")
    assert early("\n".join([product, other, but_one, use, wait])) == []
    assert early("\n".join([other, product, but_one, use, wait])) == [use]
