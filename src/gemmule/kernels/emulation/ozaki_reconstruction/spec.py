"""Spec of the CRT reconstruction of float64 from residues."""

from __future__ import annotations

from gemmule.core.arch import Arch
from gemmule.core.dtype import COMPLEX64, COMPLEX128, FEWEST_INT8_PRODUCTS, FLOAT64
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch, ScalarParam, TensorParam
from gemmule.core.problem import GemmProblem
from gemmule.core.signature import adds_key, every_signature
from gemmule.core.spec import Signature
from gemmule.kernels.emulation.guard_words import guard_params
from gemmule.kernels.emulation.launch_spec import emulation_spec
from gemmule.kernels.emulation.ozaki_config import (
    GROUP,
    LAUNCH_US,
    RECONSTRUCTION_CTAS,
    RUN,
    THREADS,
    ReconstructionConfig,
)
from gemmule.kernels.emulation.product_forms import (
    COMPLEX_FORMS,
    MODULI_KEYS,
    fewest_moduli,
    forms_of,
    moduli_key,
    most_moduli,
    planes_of,
)
from gemmule.kernels.hopper.tma_tiles import row_params, scale_params

#: Bytes that are read and written in a microsecond, on an H200.
_BYTES = 3.0e6


def _refuses(problem: GemmProblem, arch: Arch) -> str | None:
    del arch
    if problem.d.dtype not in (FLOAT64, COMPLEX64, COMPLEX128) or problem.precision not in FEWEST_INT8_PRODUCTS:
        return f"D is {problem.d.dtype}; this kernel runs after ozaki_gemm"
    return None


def _signature(problem: GemmProblem, config: ReconstructionConfig) -> Signature:
    del config
    return (*adds_key(problem.c is not None), *moduli_key(problem.precision), *forms_of(problem))


def _signatures(arch: Arch) -> tuple[Signature, ...]:
    real = every_signature(adds=("no", "yes"), moduli=MODULI_KEYS)(arch)
    guarded = every_signature(adds=("no", "yes"), moduli=["guarded"])(arch)
    return (*real, *((*one, *forms) for forms in COMPLEX_FORMS for one in guarded))


def _launch(problem: GemmProblem, config: ReconstructionConfig) -> Launch:
    """Return the launch recipe: a thread for four columns of a row."""
    del config
    m, n, planes = problem.m, problem.n, planes_of(problem)
    count = most_moduli(problem) * planes
    # If A is conjugated, the conjugate of its product with the conjugate of B is computed.
    sign = (ScalarParam("sign", problem.a.dtype, -1 if problem.a.conj else 1),) if planes > 1 else ()
    width = -(-n // GROUP) * GROUP
    params = (
        TensorParam("residues", (m, width, count), (width, m * width)),
        TensorParam("rows", (m,), ()),
        TensorParam("columns", (n,), ()),
        *row_params(problem, ()),
        *scale_params(problem),
        *sign,
        *guard_params(problem.precision),
    )
    ctas = -(-m * (width // RUN) // THREADS)
    return Launch(grid=(min(ctas, RECONSTRUCTION_CTAS), 1, 1), block=(THREADS, 1, 1), params=params, overlaps=True)


def _cost(problem: GemmProblem, config: ReconstructionConfig, gpu: GpuRates) -> float:
    del config
    moved = fewest_moduli(problem) * planes_of(problem)
    moved += problem.d.dtype.itemsize * (1 if problem.c is None else 2)
    return gpu.launch * LAUNCH_US + problem.m * problem.n * moved / min(_BYTES, gpu.memory)


SPEC = emulation_spec(
    name="ozaki_reconstruction",
    summary="float64 from residues for 15 moduli, scaled back, alpha and beta applied",
    package=__package__,
    configs=(ReconstructionConfig(),),
    signatures=_signatures,
    signature=_signature,
    launch=_launch,
    batch_dims=0,
    refuses=_refuses,
    cost=_cost,
)
