"""Every kernel, in the order in which they are tried: the reference kernels, which take everything, stand last."""

from __future__ import annotations

from gemmule.core.spec import KernelSpec
from gemmule.kernels.gemm.d01_shared_ab.spec import SPEC as D01
from gemmule.kernels.gemm.d02_b_in_registers.spec import SPEC as D02
from gemmule.kernels.gemm.d03_mma_f64.spec import SPEC as D03
from gemmule.kernels.gemm.d04_triangle_f64.spec import SPEC as D04
from gemmule.kernels.gemm.g01_naive_uncoalesced.spec import SPEC as G01
from gemmule.kernels.gemm.g02_naive_coalesced.spec import SPEC as G02
from gemmule.kernels.gemm.g03_shared_tile.spec import SPEC as G03
from gemmule.kernels.gemm.g04_register_tile.spec import SPEC as G04
from gemmule.kernels.gemm.g05_conflict_free.spec import SPEC as G05
from gemmule.kernels.gemm.g06_double_buffer.spec import SPEC as G06
from gemmule.kernels.gemm.g07_cp_async.spec import SPEC as G07
from gemmule.kernels.gemm.g08_triangle.spec import SPEC as G08
from gemmule.kernels.gemm.h01_mma_sync.spec import SPEC as H01
from gemmule.kernels.gemm.h02_wgmma_tma.spec import SPEC as H02
from gemmule.kernels.gemm.h03_stages.spec import SPEC as H03
from gemmule.kernels.gemm.h04_warp_specialised.spec import SPEC as H04
from gemmule.kernels.gemm.h05_persistent.spec import SPEC as H05
from gemmule.kernels.gemm.h06_cluster_multicast.spec import SPEC as H06
from gemmule.kernels.gemm.h07_tma_store.spec import SPEC as H07
from gemmule.kernels.gemm.h08_pingpong.spec import SPEC as H08
from gemmule.kernels.gemm.h09_production.spec import SPEC as H09
from gemmule.kernels.gemm.h10_ragged_result.spec import SPEC as H10
from gemmule.kernels.gemm.h11_packed.spec import SPEC as H11
from gemmule.kernels.gemm.h12_bf16x6.spec import SPEC as H12
from gemmule.kernels.gemm.h13_widened.spec import SPEC as H13
from gemmule.kernels.gemm.h14_int8x15.spec import SPEC as H14
from gemmule.kernels.gemm.h15_symmetric.spec import SPEC as H15
from gemmule.kernels.gemm.h16_mixed.spec import SPEC as H16
from gemmule.kernels.gemm.h17_along_k.spec import SPEC as H17
from gemmule.kernels.gemm.reference.spec import SPEC as GEMM_REFERENCE
from gemmule.kernels.transpose.reference.spec import SPEC as TRANSPOSE_REFERENCE
from gemmule.kernels.transpose.t01_copy_row.spec import SPEC as T01
from gemmule.kernels.transpose.t02_copy_col.spec import SPEC as T02
from gemmule.kernels.transpose.t03_naive_row.spec import SPEC as T03
from gemmule.kernels.transpose.t04_naive_col.spec import SPEC as T04
from gemmule.kernels.transpose.t05_unroll_row.spec import SPEC as T05
from gemmule.kernels.transpose.t06_unroll_col.spec import SPEC as T06
from gemmule.kernels.transpose.t07_diagonal_row.spec import SPEC as T07
from gemmule.kernels.transpose.t08_diagonal_col.spec import SPEC as T08
from gemmule.kernels.transpose.t09_shared_tile.spec import SPEC as T09
from gemmule.kernels.transpose.t10_padded.spec import SPEC as T10
from gemmule.kernels.transpose.t11_swizzled_vectorised.spec import SPEC as T11
from gemmule.kernels.transpose.t12_production.spec import SPEC as T12
from gemmule.kernels.transpose.t13_in_place.spec import SPEC as T13
from gemmule.kernels.transpose.t14_whole_sectors.spec import SPEC as T14
from gemmule.kernels.transpose.t15_register_squares.spec import SPEC as T15
from gemmule.kernels.transpose.t16_gathered_words.spec import SPEC as T16
from gemmule.kernels.transpose.t17_unshifted_words.spec import SPEC as T17

REGISTRY: tuple[KernelSpec, ...] = (
    H15,
    H09,
    H10,
    H11,
    H16,
    H17,
    H13,
    H01,
    H12,
    H14,
    H08,
    H07,
    H06,
    H05,
    H04,
    H03,
    H02,
    G08,
    G07,
    G06,
    G05,
    G04,
    G03,
    G02,
    G01,
    D04,
    D03,
    D02,
    D01,
    GEMM_REFERENCE,
    T15,
    T16,
    T17,
    T14,
    T12,
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
    T13,
    TRANSPOSE_REFERENCE,
)

#: The rungs of the ladder in teaching order: single precision, then double, then the tensor cores.
LADDER: tuple[str, ...] = tuple(
    spec.name
    for spec in (G01, G02, G03, G04, G05, G06, G07, D01, D02, D03, H01, H02, H03, H04, H05, H06, H07, H08, H09)
)  # fmt: skip

#: The rungs of the study of transposes, in its order.
TRANSPOSE_LADDER: tuple[str, ...] = tuple(
    spec.name for spec in (T01, T02, T03, T04, T05, T06, T07, T08, T09, T10, T11, T12)
)
