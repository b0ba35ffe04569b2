"""The last launch behind ozaki_gemm: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT64, INT8_PRODUCTS
from gemmule.core.launch import Launch, ScalarParam, TensorParam
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Config, KernelSpec, Signature
from gemmule.kernels.emulation.ozaki_products.spec import GROUP

#: Threads of a CTA, and columns that each of them puts together.
THREADS, RUN = 256, 4
#: The scale of a row or column with an element that is not finite.
NOT_FINITE = 2**20
_MAX_CTAS = 2**31 - 1

__all__ = ["GROUP", "NOT_FINITE", "RUN", "SPEC", "THREADS", "ReconstructionConfig"]


@dataclasses.dataclass(frozen=True)
class ReconstructionConfig(Config):
    """Nothing to choose."""


def why_not(problem: GemmProblem, arch: Arch, config: ReconstructionConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch, config
    if problem.d.dtype != FLOAT64 or problem.precision not in INT8_PRODUCTS:
        return f"D is {problem.d.dtype}; this kernel runs behind ozaki_gemm"
    return None


def signature(problem: GemmProblem, config: ReconstructionConfig) -> Signature:
    """Specialise for whether there is a C, and the number of moduli."""
    del config
    return _signature(problem.c is not None, INT8_PRODUCTS[problem.precision])


def _signature(c: bool, count: int) -> Signature:
    return (("c", "yes" if c else "no"), ("moduli", str(count)))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every combination."""
    del arch
    return tuple(_signature(c, count) for c in (False, True) for count in INT8_PRODUCTS.values())


def launch(problem: GemmProblem, config: ReconstructionConfig) -> Launch:
    """Return the launch recipe: a thread for four columns of a row."""
    del config
    m, n, count = problem.m, problem.n, INT8_PRODUCTS[problem.precision]
    width = -(-n // GROUP) * GROUP
    c = problem.c if problem.c is not None else problem.d
    params = (
        TensorParam("residues", (m, width, count), (width, m * width)),
        TensorParam("rows", (m,), ()),
        TensorParam("columns", (n,), ()),
        TensorParam("d" if problem.c is None else "c", (m, n), (c.row_stride,)),
        TensorParam("d", (m, n), (problem.d.row_stride,)),
        ScalarParam("alpha", FLOAT64, problem.alpha),
        ScalarParam("beta", FLOAT64, problem.beta if problem.c is not None else 0),
    )
    ctas = -(-m * (width // RUN) // THREADS)
    return Launch(grid=(ctas, 1, 1), block=(THREADS, 1, 1), params=params, overlaps=True)


#: Microseconds on an H200: a launch; and bytes that are read and written in one.
_LAUNCH, _BYTES = 2.0, 3.0e6


def cost(problem: GemmProblem, config: ReconstructionConfig, multiprocessors: int) -> float:
    """Return roughly the time in microseconds."""
    del config, multiprocessors
    moved = INT8_PRODUCTS[problem.precision] + FLOAT64.itemsize * (1 if problem.c is None else 2)
    return _LAUNCH + problem.m * problem.n * moved / _BYTES


SPEC = KernelSpec(
    name="ozaki_reconstruction",
    operation="gemm",
    summary="float64 from residues for 15 moduli, scaled back, alpha and beta applied",
    package=__package__,
    archs=(Arch(9, 0, True),),
    configs=(ReconstructionConfig(),),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    batch_dims=0,
    cost=cost,
    cost_in_us=True,
)
