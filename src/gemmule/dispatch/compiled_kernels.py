"""Every kernel that the cache may have: those to choose from, and those that only follow them or quantise."""

from __future__ import annotations

from gemmule.core.spec import KernelSpec
from gemmule.kernels.emulation.bf16x6_gemm.spec import NATIVE as SIMT_GUARDED
from gemmule.kernels.emulation.bf16x6_products.spec import SPEC as BF16X6_PRODUCTS
from gemmule.kernels.emulation.guard_decision.spec import SPEC as GUARD_DECISION
from gemmule.kernels.emulation.native_lines.spec import SPEC as NATIVE_LINES
from gemmule.kernels.emulation.ozaki_complex.spec import NATIVE as COMPLEX_NATIVE
from gemmule.kernels.emulation.ozaki_gemm.first_launches import PAIRS, SCALES
from gemmule.kernels.emulation.ozaki_gemm.spec import NATIVE as FLOAT64_GUARDED
from gemmule.kernels.emulation.ozaki_guard.spec import SPEC as OZAKI_GUARD
from gemmule.kernels.emulation.ozaki_products.spec import SPEC as OZAKI_PRODUCTS
from gemmule.kernels.emulation.ozaki_reconstruction.spec import SPEC as OZAKI_RECONSTRUCTION
from gemmule.kernels.emulation.ozaki_residues.spec import SPEC as OZAKI_RESIDUES
from gemmule.kernels.hopper.gemm_unaligned_a.spec import SPEC as HOPPER_GEMM_UNALIGNED_A
from gemmule.kernels.quantize.spec import BY_TENSOR
from gemmule.kernels.quantize.spec import SPEC as QUANTIZE

from .registry import EVERY_KERNEL

#: Launches that follow a chosen kernel of emulation.
_OF_EMULATION: tuple[KernelSpec, ...] = (
    *(SIMT_GUARDED, BF16X6_PRODUCTS),
    *(SCALES, PAIRS, OZAKI_GUARD, GUARD_DECISION, OZAKI_RESIDUES, OZAKI_PRODUCTS, OZAKI_RECONSTRUCTION),
    *(FLOAT64_GUARDED, NATIVE_LINES),
    *(guarded for _, guarded in COMPLEX_NATIVE.values()),
)
COMPILED_KERNELS: dict[str, KernelSpec] = {
    spec.name: spec for spec in (*EVERY_KERNEL, HOPPER_GEMM_UNALIGNED_A, *_OF_EMULATION, QUANTIZE, BY_TENSOR)
}
