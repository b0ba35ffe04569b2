"""The code of every launch for precision='ozaki-15', without a GPU: no spills, no sums or memory touched too early."""

from __future__ import annotations

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.arch import Arch
from gemmule.kernels.emulation.guard_decision.spec import SPEC as DECISION
from gemmule.kernels.emulation.native_lines.spec import SPEC as NATIVE_LINES
from gemmule.kernels.emulation.ozaki_complex.spec import SPEC as REAL_FORMS
from gemmule.kernels.emulation.ozaki_gemm.first_launches import PAIRS, SCALES
from gemmule.kernels.emulation.ozaki_gemm.spec import NATIVE, SPEC
from gemmule.kernels.emulation.ozaki_guard.spec import SPEC as GUARD
from gemmule.kernels.emulation.ozaki_products.spec import SPEC as PRODUCTS
from gemmule.kernels.emulation.ozaki_reconstruction.spec import SPEC as RECONSTRUCTION
from gemmule.kernels.emulation.ozaki_residues.spec import SPEC as RESIDUES
from support.code.launch_order import assert_reads_a_word_before_it_waits, assert_waits_first
from support.code.wgmma_waits import early

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

ARCH = Arch.parse("sm_90a")


def few(spec, config, signature):
    """The step that reads what all others wrote; it is the same for every number of moduli."""
    return (spec, config, dict(signature).get("moduli")) == (RECONSTRUCTION, RECONSTRUCTION.default, "15")


CASES = [
    pytest.param(
        spec, config, signature, id=f"{spec.name}-{config}-{dict(signature)}".replace(" ", ","),
        marks=[] if few(spec, config, signature) else [pytest.mark.slow],
    )
    for spec in (SPEC, RESIDUES, PRODUCTS, RECONSTRUCTION, GUARD, DECISION, REAL_FORMS, PAIRS, SCALES, NATIVE_LINES)
    for config in spec.configs
    for signature in spec.signatures(ARCH)
]  # fmt: skip


@pytest.mark.parametrize(("spec", "config", "signature"), CASES)
def test_code(spec, config, signature):
    artifact = artifact_for(spec, config, signature, ARCH)
    assert (artifact.resources.spill_bytes, artifact.resources.stack_bytes) == (0, 0)
    # Each reads what the launch in front wrote, and all say that they may begin beside it.
    keys = dict(signature)
    guarded = "guarded" in (*keys, keys.get("moduli")) and spec in (RESIDUES, PRODUCTS, RECONSTRUCTION)
    if guarded or spec is NATIVE_LINES:
        assert_reads_a_word_before_it_waits(artifact.ptx)
    elif spec is SCALES:
        # Elements are read before; that nothing else is, the virtual GPU checks.
        assert "griddepcontrol.wait" in artifact.ptx
    else:
        assert_waits_first(artifact.ptx)
    if spec is PRODUCTS:
        # A slice of 128, 32 at a time, for every block of 64 rows.
        assert artifact.ptx.count("wgmma.mma_async") % (4 * config.mma_tiles_m) == 0
        assert "s32.s8.s8" in artifact.ptx
        assert early(artifact.ptx) == []


def test_the_native_kernel_waits_before_it_reads_the_decision():
    """It is a dependent launch, and its main loop waits too, as without a guard."""
    artifact = artifact_for(NATIVE, NATIVE.default, NATIVE.signatures(ARCH)[0], ARCH)
    assert_waits_first(artifact.ptx, waits=2)
