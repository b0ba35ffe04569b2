"""The CRT reconstruction of ozaki_gemm, its last launch: what it takes, how it is launched."""

from __future__ import annotations

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT64, INT8_PRODUCTS
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch, TensorParam
from gemmule.core.problem import GemmProblem
from gemmule.core.signature import adds_key
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.emulation.ozaki_products.config import GROUP
from gemmule.kernels.hopper.refusals import HOPPER
from gemmule.kernels.hopper.tma_tiles import row_params, scale_params

from .config import RUN, THREADS, ReconstructionConfig


def why_not(problem: GemmProblem, arch: Arch, config: ReconstructionConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch, config
    if problem.d.dtype != FLOAT64 or problem.precision not in INT8_PRODUCTS:
        return f"D is {problem.d.dtype}; this kernel runs after ozaki_gemm"
    return None


def signature(problem: GemmProblem, config: ReconstructionConfig) -> Signature:
    """Specialise for whether there is a C, and the number of moduli."""
    del config
    return _signature(problem.c is not None, INT8_PRODUCTS[problem.precision])


def _signature(adds: bool, count: int) -> Signature:
    return (*adds_key(adds), ("moduli", str(count)))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every combination."""
    del arch
    return tuple(_signature(adds, count) for adds in (False, True) for count in INT8_PRODUCTS.values())


def launch(problem: GemmProblem, config: ReconstructionConfig) -> Launch:
    """Return the launch recipe: a thread for four columns of a row."""
    del config
    m, n, count = problem.m, problem.n, INT8_PRODUCTS[problem.precision]
    width = -(-n // GROUP) * GROUP
    params = (
        TensorParam("residues", (m, width, count), (width, m * width)),
        TensorParam("rows", (m,), ()),
        TensorParam("columns", (n,), ()),
        *row_params(problem, ()),
        *scale_params(problem),
    )
    ctas = -(-m * (width // RUN) // THREADS)
    return Launch(grid=(ctas, 1, 1), block=(THREADS, 1, 1), params=params, overlaps=True)


#: Microseconds on an H200: a launch; and bytes that are read and written in one.
_LAUNCH, _BYTES = 2.0, 3.0e6


def cost(problem: GemmProblem, config: ReconstructionConfig, gpu: GpuRates) -> float:
    """Return roughly the time in microseconds."""
    del config
    moved = INT8_PRODUCTS[problem.precision] + FLOAT64.itemsize * (1 if problem.c is None else 2)
    return gpu.launch * _LAUNCH + problem.m * problem.n * moved / min(_BYTES, gpu.memory)


SPEC = KernelSpec(
    name="ozaki_reconstruction",
    operation="gemm",
    summary="float64 from residues for 15 moduli, scaled back, alpha and beta applied",
    package=__package__,
    archs=(HOPPER,),
    configs=(ReconstructionConfig(),),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    batch_dims=0,
    cost=cost,
    cost_in_us=True,
)
