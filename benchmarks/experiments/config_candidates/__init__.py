"""Configs to time by type: registered ones, and candidates that are not."""

from __future__ import annotations

from gemmule.core.config import Config
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.spec import Choice, KernelSpec
from gemmule.dispatch.kernel_names import on_gpu
from gemmule.kernels.complex.complex64.spec import SPEC as COMPLEX64_GEMM
from gemmule.kernels.complex.complex128.spec import SPEC as COMPLEX128_GEMM
from gemmule.kernels.float64.gemm.spec import SPEC as FLOAT64_GEMM
from gemmule.kernels.hopper.gemm.spec import SPEC as HOPPER_GEMM
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as REPACKED
from gemmule.kernels.mma_sync.spec import SPEC as MMA_SYNC
from gemmule.kernels.simt.gemm.spec import SPEC as SIMT_GEMM
from gemmule.kernels.simt.gemm_mn_major.spec import SPEC as MN_MAJOR

from .complex import complex_candidates
from .float64 import float64_candidates
from .hopper import hopper_candidates
from .mma_sync import mma_sync_choices
from .simt import simt_candidates

_KERNELS = {
    "float32": SIMT_GEMM, "float64": FLOAT64_GEMM, "complex64": COMPLEX64_GEMM, "complex128": COMPLEX128_GEMM,
    "tf32": MMA_SYNC, "float16": MMA_SYNC,
}  # fmt: skip


def choices_of(dtype: str, gpu: GpuRates, *, registered: bool) -> tuple[Choice, ...]:
    """Return the kernels and configs of a type on a GPU, the type's own kernel first; of it registered ones only."""
    spec = _KERNELS.get(dtype, HOPPER_GEMM)
    if spec is MMA_SYNC:
        return on_gpu(mma_sync_choices(), gpu, gpu.arch)
    choices = [Choice(spec, one) for one in (spec.configs if registered else _configs(spec))]
    if dtype != "float32":
        return tuple(choices)
    return on_gpu(
        [*choices, *(Choice(one, config) for one in (MN_MAJOR, REPACKED) for config in one.configs)], gpu, gpu.arch
    )


def _configs(spec: KernelSpec) -> tuple[Config, ...]:
    if spec in (COMPLEX64_GEMM, COMPLEX128_GEMM):
        return complex_candidates(spec)
    return {SIMT_GEMM.name: simt_candidates, FLOAT64_GEMM.name: float64_candidates}.get(spec.name, hopper_candidates)()
