"""The kernels of products in order of preference, the general reference kernel last."""

from __future__ import annotations

from gemmule.core.spec import KernelSpec
from gemmule.kernels.complex.complex64.spec import SPEC as COMPLEX64_GEMM
from gemmule.kernels.complex.complex128.spec import SPEC as COMPLEX128_GEMM
from gemmule.kernels.complex.syrk import COMPLEX64_SYRK, COMPLEX128_SYRK
from gemmule.kernels.complex.upcast.spec import SPEC as COMPLEX_UPCAST
from gemmule.kernels.emulation.bf16x6_gemm.spec import SPEC as BF16X6_GEMM
from gemmule.kernels.emulation.ozaki_complex.spec import SPEC as OZAKI_COMPLEX
from gemmule.kernels.emulation.ozaki_gemm.spec import SPEC as OZAKI_GEMM

from .plain_gemm_kernels import FMA_AND_FLOAT64, LAST, TENSOR_CORES

EMULATION: tuple[KernelSpec, ...] = (BF16X6_GEMM, OZAKI_GEMM, OZAKI_COMPLEX)
COMPLEX: tuple[KernelSpec, ...] = (COMPLEX128_SYRK, COMPLEX128_GEMM, COMPLEX64_SYRK, COMPLEX64_GEMM, COMPLEX_UPCAST)
GEMM_KERNELS: tuple[KernelSpec, ...] = (*TENSOR_CORES, *EMULATION, *FMA_AND_FLOAT64, *COMPLEX, *LAST)
