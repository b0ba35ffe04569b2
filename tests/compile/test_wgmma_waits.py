"""Sums of a wgmma are touched only behind the wait for it: else the assembler lets every product wait for the last.

Such code is right and slow, and nothing but its speed tells. Where all kernels are compiled it is looked for, too.
"""

from __future__ import annotations

import re

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.arch import Arch
from gemmule.dispatch.registry import REGISTRY

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

ARCH = Arch.parse("sm_90a")
#: The steps of the ladder and the last kernel; without C, and with one.
CASES = [
    pytest.param(spec, signature, id=f"{spec.name}-{dict(signature)}".replace(" ", ""))
    for spec in REGISTRY
    if "h02" <= spec.name[:3] <= "h08" or spec.name == "hopper_gemm"
    for signature in spec.signatures(ARCH)[:2]
]
_SUMS = re.compile(r"wgmma\.mma_async\S*\s*\{(?P<sums>[^}]*)\}")
_WAITS_FOR_ALL = re.compile(r"wgmma\.wait_group\S*\s+0\s*;")
_REGISTER = re.compile(r"%\w+")


def early(ptx):
    """The instructions that touch a register of a product that may be under way, in the order of the text."""
    found, under_way = [], set()
    for line in ptx.splitlines():
        if product := _SUMS.search(line):
            under_way.update(_REGISTER.findall(product["sums"]))
        elif _WAITS_FOR_ALL.search(line):
            under_way.clear()
        # Copies are no instructions: they join a register's names.
        elif not re.match(r"\s*(//|mov\.|\.loc)", line) and under_way.intersection(_REGISTER.findall(line)):
            found.append(line.strip())
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "signature"), CASES)
def test_sums_are_waited_for(spec, signature):
    ptx = artifact_for(spec, spec.default, signature, ARCH).ptx
    assert _SUMS.search(ptx)
    assert early(ptx) == []


def test_an_early_use_is_found():
    product = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r1, %r2}, %rd1, %rd2, p, 1, 1, 0, 1;"
    use, wait = "mul.f32 \t%r3, %r2, %r9;", "wgmma.wait_group.sync.aligned 0;"
    assert early("\n".join([use, product, "wgmma.wait_group.sync.aligned 1;", "mov.b32 %r4, %r1;", wait, use])) == []
    assert early("\n".join([product, use, wait])) == [use]
