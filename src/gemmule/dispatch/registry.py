"""The registry: every kernel in order of preference, the general reference kernels last."""

from __future__ import annotations

from gemmule.core.spec import KernelSpec
from gemmule.kernels.emulation.bf16x6_gemm.spec import SPEC as BF16X6_GEMM
from gemmule.kernels.emulation.ozaki_gemm.spec import SPEC as OZAKI_GEMM
from gemmule.kernels.float64.gemm.spec import SPEC as FLOAT64_GEMM
from gemmule.kernels.float64.syrk import SPEC as FLOAT64_SYRK
from gemmule.kernels.hopper.gemm.spec import SPEC as HOPPER_GEMM
from gemmule.kernels.hopper.gemm_k_major.spec import SPEC as HOPPER_GEMM_K_MAJOR
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as HOPPER_GEMM_REPACKED
from gemmule.kernels.hopper.gemm_unaligned.spec import SPEC as HOPPER_GEMM_UNALIGNED
from gemmule.kernels.hopper.gemm_upcast.spec import SPEC as HOPPER_GEMM_UPCAST
from gemmule.kernels.hopper.gemm_w8a16.spec import SPEC as HOPPER_GEMM_W8A16
from gemmule.kernels.hopper.syrk.spec import SPEC as HOPPER_SYRK
from gemmule.kernels.ladder.g07_cp_async.spec import SPEC as G07
from gemmule.kernels.ladder.h01_mma_sync.spec import SPEC as H01
from gemmule.kernels.ladder.hopper_rungs import H02, H03, H04, H05, H06, H07, H08
from gemmule.kernels.ladder.row_major_rungs import D01, D02, G01, G02, G03, G04, G05, G06
from gemmule.kernels.ladder.transpose_rungs import T01, T02, T03, T04, T05, T06, T07, T08, T09, T10, T11
from gemmule.kernels.simt.batched.spec import SPEC as SIMT_BATCHED
from gemmule.kernels.simt.gemm.spec import SPEC as SIMT_GEMM
from gemmule.kernels.simt.reference.spec import SPEC as GEMM_REFERENCE
from gemmule.kernels.simt.syrk import SPEC as SIMT_SYRK
from gemmule.kernels.transpose.gathered.spec import SPEC as TRANSPOSE_GATHERED
from gemmule.kernels.transpose.in_place.spec import SPEC as TRANSPOSE_IN_PLACE
from gemmule.kernels.transpose.in_registers.spec import SPEC as TRANSPOSE_IN_REGISTERS
from gemmule.kernels.transpose.reference.spec import SPEC as TRANSPOSE_REFERENCE
from gemmule.kernels.transpose.rows.spec import SPEC as TRANSPOSE_ROWS
from gemmule.kernels.transpose.skinny.spec import SPEC as TRANSPOSE_SKINNY
from gemmule.kernels.transpose.tiled.spec import SPEC as TRANSPOSE_TILED
from gemmule.kernels.transpose.whole_sectors.spec import SPEC as TRANSPOSE_WHOLE_SECTORS
from gemmule.kernels.transpose.word_aligned.spec import SPEC as TRANSPOSE_WORD_ALIGNED

REGISTRY: tuple[KernelSpec, ...] = (
    HOPPER_SYRK,
    HOPPER_GEMM,
    HOPPER_GEMM_UNALIGNED,
    HOPPER_GEMM_REPACKED,
    HOPPER_GEMM_W8A16,
    HOPPER_GEMM_K_MAJOR,
    HOPPER_GEMM_UPCAST,
    H01,
    BF16X6_GEMM,
    OZAKI_GEMM,
    H08,
    H07,
    H06,
    H05,
    H04,
    H03,
    H02,
    SIMT_SYRK,
    SIMT_BATCHED,
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
    D02,
    D01,
    GEMM_REFERENCE,
    TRANSPOSE_IN_REGISTERS,
    TRANSPOSE_GATHERED,
    TRANSPOSE_WORD_ALIGNED,
    TRANSPOSE_SKINNY,
    TRANSPOSE_ROWS,
    TRANSPOSE_WHOLE_SECTORS,
    TRANSPOSE_TILED,
    T11,
    T10,
    T09,
    T08,
    T07,
    T06,
    T05,
    T04,
    T03,
    T02,
    T01,
    TRANSPOSE_IN_PLACE,
    TRANSPOSE_REFERENCE,
)

#: The rungs of the ladder in teaching order: single precision, then double, then the tensor cores.
LADDER: tuple[str, ...] = tuple(
    spec.name
    for spec in (
        *(G01, G02, G03, G04, G05, G06, G07),
        *(D01, D02, FLOAT64_GEMM),
        *(H01, H02, H03, H04, H05, H06, H07, H08, HOPPER_GEMM),
    )
)

#: The rungs of the study of transposes, in its order.
TRANSPOSE_LADDER: tuple[str, ...] = tuple(
    spec.name for spec in (T01, T02, T03, T04, T05, T06, T07, T08, T09, T10, T11, TRANSPOSE_TILED)
)
