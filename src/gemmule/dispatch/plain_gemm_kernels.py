"""The kernels of products that are neither emulated nor of complex numbers: all that most processes import."""

from __future__ import annotations

from gemmule.core.spec import KernelSpec
from gemmule.kernels.float64.gemm.spec import SPEC as FLOAT64_GEMM
from gemmule.kernels.float64.syrk import SPEC as FLOAT64_SYRK
from gemmule.kernels.hopper.gemm.spec import SPEC as HOPPER_GEMM
from gemmule.kernels.hopper.gemm_k_major.spec import SPEC as HOPPER_GEMM_K_MAJOR
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as HOPPER_GEMM_REPACKED
from gemmule.kernels.hopper.gemm_small_repacked.spec import SPEC as HOPPER_GEMM_SMALL_REPACKED
from gemmule.kernels.hopper.gemm_unaligned.spec import SPEC as HOPPER_GEMM_UNALIGNED
from gemmule.kernels.hopper.gemm_upcast.spec import SPEC as HOPPER_GEMM_UPCAST
from gemmule.kernels.hopper.gemm_w8a16.spec import SPEC as HOPPER_GEMM_W8A16
from gemmule.kernels.hopper.syrk.spec import SPEC as HOPPER_SYRK
from gemmule.kernels.ladder.g07_cp_async.spec import SPEC as G07
from gemmule.kernels.ladder.hopper_rungs import H02, H03, H04, H05, H06, H07, H08
from gemmule.kernels.ladder.row_major_rungs import D01, D02, G01, G02, G03, G04, G05, G06
from gemmule.kernels.mma_sync.batched.spec import SPEC as MMA_SYNC_BATCHED
from gemmule.kernels.mma_sync.gemm_upcast.spec import SPEC as GEMM_UPCAST
from gemmule.kernels.mma_sync.small.spec import SPEC as MMA_SYNC_SMALL
from gemmule.kernels.mma_sync.spec import SPEC as MMA_SYNC_GEMM
from gemmule.kernels.simt.batched.spec import SPEC as SIMT_BATCHED
from gemmule.kernels.simt.dot.spec import SPEC as SIMT_DOT
from gemmule.kernels.simt.gemm.spec import SPEC as SIMT_GEMM
from gemmule.kernels.simt.gemm_mn_major.spec import SPEC as SIMT_GEMM_MN_MAJOR
from gemmule.kernels.simt.reference.spec import SPEC as GEMM_REFERENCE
from gemmule.kernels.simt.syrk import SPEC as SIMT_SYRK

#: In order of preference: kernels of tensor cores, then those of FMA units, float64 and rungs of the ladder, and the
#: last rungs and the general reference kernel, which come after those of complex numbers.
TENSOR_CORES: tuple[KernelSpec, ...] = (
    HOPPER_SYRK,
    # Before what takes TF32 with one MN-major operand, which is slower where that operand is small.
    HOPPER_GEMM_K_MAJOR,
    HOPPER_GEMM,
    HOPPER_GEMM_UNALIGNED,
    HOPPER_GEMM_SMALL_REPACKED,
    HOPPER_GEMM_REPACKED,
    HOPPER_GEMM_W8A16,
    HOPPER_GEMM_UPCAST,
    GEMM_UPCAST,
    MMA_SYNC_GEMM,
    MMA_SYNC_SMALL,
)
FMA_AND_FLOAT64: tuple[KernelSpec, ...] = (
    H08,
    H07,
    H06,
    H05,
    H04,
    H03,
    H02,
    SIMT_SYRK,
    SIMT_BATCHED,
    SIMT_GEMM_MN_MAJOR,
    SIMT_GEMM,
    G07,
    G06,
    G05,
    G04,
    G03,
    G02,
    G01,
    FLOAT64_SYRK,
    FLOAT64_GEMM,
)
LAST: tuple[KernelSpec, ...] = (
    D02,
    D01,
    MMA_SYNC_BATCHED,
    SIMT_DOT,
    GEMM_REFERENCE,
)
PLAIN_GEMM_KERNELS: tuple[KernelSpec, ...] = (*TENSOR_CORES, *FMA_AND_FLOAT64, *LAST)
_EMULATION = ("bf16x6_gemm", "ozaki_gemm", "ozaki_complex")
_COMPLEX = ("complex128_gemm", "complex64_gemm", "complex_gemm_upcast")
#: Names of the others that come before a kernel, by its name.
OTHERS_BEFORE = {spec.name: _EMULATION for spec in FMA_AND_FLOAT64} | {
    spec.name: (*_EMULATION, *_COMPLEX) for spec in LAST
}

#: The rungs of the ladder in teaching order: single precision, then double, then the tensor cores.
LADDER: tuple[str, ...] = tuple(
    spec.name
    for spec in (
        *(G01, G02, G03, G04, G05, G06, G07),
        *(D01, D02, FLOAT64_GEMM),
        *(MMA_SYNC_GEMM, H02, H03, H04, H05, H06, H07, H08, HOPPER_GEMM),
    )
)
