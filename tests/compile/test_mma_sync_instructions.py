"""The machine code of mma_sync_gemm has the instructions that it is written for, and no stack."""

from __future__ import annotations

import itertools

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.arch import Arch
from gemmule.core.dtype import INT8
from gemmule.kernels.mma_sync import spec as mma_sync
from gemmule.kernels.mma_sync.config import SUBTILE_M, WARP_BYTES
from support.code.instructions import assert_instructions, instructions

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SMALL = min((one for one in mma_sync.SPEC.configs if one.takes(INT8)), key=lambda one: one.tile_elements)


def compiled(arch, **wanted):
    signature = next(
        signature for signature in mma_sync.SPEC.signatures(arch) if wanted.items() <= dict(signature).items()
    )
    return artifact_for(mma_sync.SPEC, SMALL, signature, arch)


# Ampere's code, and Hopper's of every type, are looked at where all kernels are compiled.
@pytest.mark.parametrize(
    ("element", "arch"),
    [
        pytest.param(element, arch, marks=[] if (element, arch) == ("bfloat16", "sm_100a") else [pytest.mark.slow])
        for element in ("bfloat16", "float32", "int8")
        for arch in ("sm_80", "sm_90a", "sm_100a")
    ],
)
def test_tensor_cores_matrix_loads_and_asynchronous_copies(element, arch):
    artifact = compiled(Arch.parse(arch), a=element, a_major="k", tiles="whole")
    assert_instructions(artifact, SMALL, element)


@pytest.mark.parametrize(("element", "copies"), [("bfloat16", "2"), pytest.param("int8", "1", marks=pytest.mark.slow)])
def test_elements_one_by_one_need_no_stack(element, copies):
    artifact = compiled(Arch.parse("sm_90a"), a=element, a_copies=copies)
    found = instructions(artifact)
    assert found["LDGSTS"] == 0
    assert found["LDG"] > 0
    assert artifact.resources.spill_bytes == artifact.resources.stack_bytes == 0


@pytest.mark.parametrize("paired", list(itertools.product((False, True), repeat=2)))
def test_a_warp_has_shared_memory_for_its_subtiles(paired):
    from gemmule.kernels.mma_sync.warp_tiles import WarpTile

    assert 4 * SUBTILE_M * WarpTile(64, 64, 8, True, *paired).row_stride <= WARP_BYTES
