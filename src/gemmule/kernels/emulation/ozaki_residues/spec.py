"""The residues after ozaki_gemm's scales: what it takes, how it is launched."""

from __future__ import annotations

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT64, INT8_PRODUCTS
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch, Param, TensorParam
from gemmule.core.problem import GemmProblem
from gemmule.core.signature import major_keys, majors_of
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.emulation.ozaki_products.config import SLICE
from gemmule.kernels.hopper.refusals import HOPPER

from .config import LINES, PITCH, THREADS, ResiduesConfig


def why_not(problem: GemmProblem, arch: Arch, config: ResiduesConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch, config
    if (problem.a.dtype, problem.b.dtype) != (FLOAT64, FLOAT64) or problem.precision not in INT8_PRODUCTS:
        return f"A is {problem.a.dtype} and B {problem.b.dtype}; this kernel runs after ozaki_gemm"
    return None


def signature(problem: GemmProblem, config: ResiduesConfig) -> Signature:
    """Specialise for the direction in which A and B are contiguous, and the number of moduli."""
    del config
    return _signature(*majors_of(problem), INT8_PRODUCTS[problem.precision])


def _signature(a: str, b: str, count: int) -> Signature:
    return (*major_keys(a, b), ("moduli", str(count)))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every combination."""
    del arch
    return tuple(_signature(a, b, count) for a in "km" for b in "kn" for count in INT8_PRODUCTS.values())


def launch(problem: GemmProblem, config: ResiduesConfig) -> Launch:
    """Return the launch recipe: CTAs for the lines of A, then for those of B."""
    count, length = INT8_PRODUCTS[problem.precision], -(-problem.k // SLICE) * SLICE
    params: list[Param] = []
    ctas, shared = 0, 0
    for operand, matrix, name in (("a", problem.a, "rows"), ("b", problem.b.transposed(), "columns")):
        along = matrix.lies_in_rows
        pitch = matrix.row_stride if along else matrix.col_stride
        params += [
            TensorParam(operand, (matrix.cols, matrix.rows), (pitch,)),
            TensorParam(name, (matrix.rows,), ()),
            TensorParam(f"residues of {name}", (length, matrix.rows, count), (length, length * matrix.rows)),
        ]
        slices = length // SLICE
        if along:
            ctas += -(-slices * matrix.rows // (THREADS // 32 * config.runs))
        else:
            ctas += slices * -(-matrix.rows // LINES)
            shared = PITCH * LINES * 8 + 64
    return Launch(grid=(ctas, 1, 1), block=(THREADS, 1, 1), params=tuple(params), shared_bytes=shared, overlaps=True)


#: Microseconds on an H200: a launch; and bytes that are read and written in one.
_LAUNCH, _BYTES = 2.0, 2.5e6


def cost(problem: GemmProblem, config: ResiduesConfig, gpu: GpuRates) -> float:
    """Return roughly the time in microseconds."""
    del config
    elements = (problem.a.rows + problem.b.cols) * problem.k
    moved = elements * (FLOAT64.itemsize + INT8_PRODUCTS[problem.precision])
    return gpu.launch * _LAUNCH + moved / min(_BYTES, gpu.memory)


SPEC = KernelSpec(
    name="ozaki_residues",
    operation="gemm",
    summary="float64 to integers and these to int8 residues for 15 moduli, along K",
    package=__package__,
    archs=(HOPPER,),
    configs=(ResiduesConfig(), ResiduesConfig(runs=1), ResiduesConfig(runs=4)),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    batch_dims=0,
    cost=cost,
    cost_in_us=True,
)
