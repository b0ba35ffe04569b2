"""Code does not depend on the number of CTAs of persistent kernels, which the key of compiled kernels leaves out."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.compiler.compile import compile_kernel
from gemmule.core.arch import Arch
from gemmule.dispatch.registry import REGISTRY
from gemmule.kernels.emulation.bf16x6_products.spec import SPEC as SIX_PRODUCTS
from gemmule.kernels.emulation.ozaki_products.spec import SPEC as PRODUCTS

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

ARCH = Arch(9, 0, True)
SPECS = [one for one in (*REGISTRY, SIX_PRODUCTS, PRODUCTS) if "ctas" in one.default.as_dict()]


def check(spec, config):
    signature = spec.signatures(ARCH)[0]
    code, other = artifact_for(spec, config, signature, ARCH), compile_kernel(spec, config.on(114), signature, ARCH)
    assert config.on(114) != config
    assert (other.ptx, other.cubin) == (code.ptx, code.cubin)


#: Each takes two compilations; the others have their frame of it, or are steps towards it.
CASES = [
    pytest.param(spec, id=spec.name, marks=[] if spec.name == "hopper_gemm" else [pytest.mark.slow]) for spec in SPECS
]


@pytest.mark.parametrize("spec", CASES)
def test_code_is_the_same_for_every_number_of_ctas(spec):
    check(spec, spec.default)


@pytest.mark.slow
def test_tiles_that_are_shared_by_all_ctas():
    spec = next(one for one in SPECS if one.name == "hopper_gemm")
    check(spec, dataclasses.replace(spec.default, split_k=1))
