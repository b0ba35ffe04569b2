"""Every kernel that the cache may have: those to choose from, and those that only follow them or quantise."""

from __future__ import annotations

from collections.abc import Mapping

from gemmule.core.spec import KernelSpec
from gemmule.kernels.emulation.bf16x6_gemm.spec import NATIVE as SIMT_GUARDED
from gemmule.kernels.emulation.bf16x6_products.spec import SPEC as BF16X6_PRODUCTS
from gemmule.kernels.emulation.guard_decision.spec import SPEC as GUARD_DECISION
from gemmule.kernels.emulation.native_lines.spec import SPEC as NATIVE_LINES
from gemmule.kernels.emulation.ozaki_complex.spec import NATIVE as COMPLEX_NATIVE
from gemmule.kernels.emulation.ozaki_gemm.first_launches import PAIRS, SCALES, SET_WORDS
from gemmule.kernels.emulation.ozaki_gemm.spec import NATIVE as FLOAT64_GUARDED
from gemmule.kernels.emulation.ozaki_guard.spec import SPEC as OZAKI_GUARD
from gemmule.kernels.emulation.ozaki_products.spec import SPEC as OZAKI_PRODUCTS
from gemmule.kernels.emulation.ozaki_reconstruction.spec import SPEC as OZAKI_RECONSTRUCTION
from gemmule.kernels.emulation.ozaki_residues.spec import SPEC as OZAKI_RESIDUES
from gemmule.kernels.hopper.gemm_line_classes.spec import SPEC as HOPPER_GEMM_LINE_CLASSES
from gemmule.kernels.hopper.gemm_small_repacked.spec import SPEC as HOPPER_GEMM_SMALL_REPACKED
from gemmule.kernels.hopper.gemm_unaligned_a.spec import SPEC as HOPPER_GEMM_UNALIGNED_A
from gemmule.kernels.quantize.spec import BY_TENSOR
from gemmule.kernels.quantize.spec import SPEC as QUANTIZE

from .registry import EVERY_KERNEL

#: Kernels that only follow others, most of them those of emulation.
FOLLOWERS: tuple[KernelSpec, ...] = (
    *(SIMT_GUARDED, BF16X6_PRODUCTS),
    *(SET_WORDS, PAIRS, SCALES, OZAKI_GUARD, GUARD_DECISION, OZAKI_RESIDUES, OZAKI_PRODUCTS, OZAKI_RECONSTRUCTION),
    *(FLOAT64_GUARDED, NATIVE_LINES),
    *(guarded for _, guarded in COMPLEX_NATIVE.values()),
    *(HOPPER_GEMM_LINE_CLASSES, HOPPER_GEMM_UNALIGNED_A),
    QUANTIZE,
)
#: Kernels besides those of emulation that only kernels of `FOLLOWERS` follow.
_COMPLETE = (BY_TENSOR.name, HOPPER_GEMM_SMALL_REPACKED.name)
COMPILED_KERNELS: dict[str, KernelSpec] = {spec.name: spec for spec in (*EVERY_KERNEL, *FOLLOWERS, BY_TENSOR)}


def with_followers(specs: Mapping[str, KernelSpec]) -> tuple[dict[str, KernelSpec], list[str]]:
    """Return kernels with those that only follow others, if any is followed; and the names of the rest of these.

    The latter prepare operands of a product by a kernel that is chosen by itself, too.
    """
    followed = [name for name, spec in specs.items() if spec.next_kernel is not None]
    found = {spec.name: spec for spec in FOLLOWERS} if followed else {}
    emulation = "gemmule.kernels.emulation."
    complete = {name for name in followed if name in _COMPLETE or specs[name].package.startswith(emulation)}
    return {**specs, **found}, [name for name in followed if name not in complete]
