"""Spec of the kernel that writes the residues of float64."""

from __future__ import annotations

from gemmule.core.arch import Arch
from gemmule.core.dtype import FEWEST_INT8_PRODUCTS, Precision
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch, Param, TensorParam
from gemmule.core.problem import GemmProblem
from gemmule.core.signature import every_signature, major_keys, majors_of
from gemmule.core.spec import Signature
from gemmule.kernels.emulation.guard import CHOICES
from gemmule.kernels.emulation.guard_words import guard_params
from gemmule.kernels.emulation.launch_spec import emulation_spec
from gemmule.kernels.emulation.ozaki_config import (
    LAUNCH_US,
    LINES,
    PITCH,
    RESIDUES_CTAS,
    SLICE,
    THREADS,
    ResiduesConfig,
)
from gemmule.kernels.emulation.product_forms import (
    COMPLEX_FORMS,
    MODULI_KEYS,
    depth_of,
    fewest_moduli,
    forms_of,
    lead,
    moduli_key,
    most_moduli,
    planes_of,
)

#: Bytes that are read and written in a microsecond, on an H200.
_BYTES = 2.5e6


def _refuses(problem: GemmProblem, arch: Arch) -> str | None:
    del arch
    if problem.a.dtype not in CHOICES or problem.precision not in FEWEST_INT8_PRODUCTS:
        return f"A is {problem.a.dtype} and B {problem.b.dtype}; this kernel runs after ozaki_gemm"
    return None


def _signature(problem: GemmProblem, config: ResiduesConfig) -> Signature:
    del config
    return (*major_keys(*majors_of(problem)), *moduli_key(problem.precision), *forms_of(problem))


def _signatures(arch: Arch) -> tuple[Signature, ...]:
    real = every_signature(a_major="km", b_major="kn", moduli=MODULI_KEYS)(arch)
    complex_keys = (*major_keys("k", "k"), *moduli_key(Precision.OZAKI))
    return (*real, *((*complex_keys, *forms) for forms in COMPLEX_FORMS))


def _launch(problem: GemmProblem, config: ResiduesConfig) -> Launch:
    """Return the launch recipe: CTAs for the lines of A, then for those of B."""
    count = most_moduli(problem) * planes_of(problem)
    length = -(-depth_of(problem) // SLICE) * SLICE
    params: list[Param] = []
    ctas, shared = 0, 0
    for operand, matrix, name in (("a", problem.a, "rows"), ("b", problem.b.transposed(), "columns")):
        along = matrix.has_contiguous_rows
        params += [
            TensorParam(operand, (matrix.cols, matrix.rows), (lead(matrix),)),
            TensorParam(name, (matrix.rows,), ()),
            TensorParam(f"residues of {name}", (length, matrix.rows, count), (length, length * matrix.rows)),
        ]
        k_tiles = length // SLICE
        if along:
            ctas += -(-k_tiles * matrix.rows // (THREADS // 32 * config.runs))
        else:
            ctas += k_tiles * -(-matrix.rows // LINES)
            shared = PITCH * LINES * 8 + 64
    every = (*params, *guard_params(problem.precision))
    grid = (min(ctas, RESIDUES_CTAS), 1, 1)
    return Launch(grid=grid, block=(THREADS, 1, 1), params=every, shared_bytes=shared, overlaps=True)


def _cost(problem: GemmProblem, config: ResiduesConfig, gpu: GpuRates) -> float:
    del config
    written = fewest_moduli(problem) * planes_of(problem) * depth_of(problem)
    moved = (problem.a.rows + problem.b.cols) * (problem.k * problem.a.dtype.itemsize + written)
    return gpu.launch * LAUNCH_US + moved / min(_BYTES, gpu.memory)


SPEC = emulation_spec(
    name="ozaki_residues",
    summary="float64 to integers and these to int8 residues for 15 moduli, along K",
    package=__package__,
    configs=(ResiduesConfig(), ResiduesConfig(runs=1), ResiduesConfig(runs=4)),
    signatures=_signatures,
    signature=_signature,
    launch=_launch,
    batch_dims=0,
    refuses=_refuses,
    cost=_cost,
)
