"""Complex types with precision='ozaki': real forms of the operands, then the kernels that multiply by residues."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import COMPLEX64, COMPLEX128, Precision
from gemmule.core.errors import ArgumentError
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.launch import MAP_ALIGNMENT, Launch, ScalarParam, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, OperandTypes
from gemmule.core.row_major import row_result
from gemmule.core.signature import every_signature, major_keys, majors_of
from gemmule.core.spec import NextKernel, Signature
from gemmule.kernels.complex.complex64.spec import SPEC as COMPLEX64_GEMM
from gemmule.kernels.complex.complex128.spec import SPEC as COMPLEX128_GEMM
from gemmule.kernels.emulation.guarded_native.spec import guarded_native
from gemmule.kernels.emulation.launch_spec import emulation_spec
from gemmule.kernels.emulation.ozaki_chain import emulation, emulation_us, native_kernel, pays, why_not_elements
from gemmule.kernels.emulation.ozaki_config import LAUNCH_US, PARTS, SIDE, THREADS, RealFormsConfig
from gemmule.kernels.emulation.ozaki_gemm.first_launches import SET_WORDS
from gemmule.kernels.emulation.product_forms import lead
from gemmule.kernels.hopper.refusals import refuse_hopper, refuse_types
from gemmule.kernels.parts.conjugates import why_not_conjugates

#: By the type of the operands: the native kernel, and that behind the guard.
NATIVE = {
    COMPLEX64: (COMPLEX64_GEMM, guarded_native(COMPLEX64_GEMM, "complex64_guarded")),
    COMPLEX128: (COMPLEX128_GEMM, guarded_native(COMPLEX128_GEMM, "complex128_guarded")),
}
#: Workspaces: the real forms of A and B.
ROWS, COLUMNS = "real form of rows", "real form of columns"


def real_problem(problem: GemmProblem) -> tuple[GemmProblem, dict[str, str]]:
    """Return the product of the real forms, and the names of its A and B.

    D and C are complex, in place. A carries its conjugation.
    """
    oriented, first, _ = row_result(problem)
    m, n, k = oriented.m, oriented.n, PARTS * oriented.k
    a, part, k_major = oriented.a, oriented.a.dtype.part, oriented.a.has_contiguous_rows
    ld, alignment = (PARTS * a.row_stride, a.alignment) if k_major else (k, MAP_ALIGNMENT)
    real = GemmProblem(
        m, n, k, (), StridedMatrix(part, m, k, ld, 1, (), alignment, conj=a.conj),
        StridedMatrix(part, k, n, 1, k, (), MAP_ALIGNMENT), oriented.c, oriented.d,
        complex(problem.alpha).real, complex(problem.beta).real, problem.precision,
    )  # fmt: skip
    return real, {"a": first if k_major else ROWS, "b": COLUMNS}


def next_kernel(problem: GemmProblem, config: RealFormsConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    """Return the kernels of the real product."""
    del config
    return _next_kernel(problem, gpu)


# Selection, a plan and the launch need the same.
@functools.lru_cache(maxsize=256)
def _next_kernel(problem: GemmProblem, gpu: GpuRates) -> NextKernel:
    real, names = real_problem(problem)
    every = emulation(real, "ab", native_kernel(problem, NATIVE[problem.a.dtype][1], gpu), gpu)
    then: NextKernel | None = None
    for one in reversed([NextKernel(SET_WORDS, SET_WORDS.default, real, {}, {}), *every.chain()]):
        operands = names | {name: names.get(given, given) for name, given in one.operands.items()}
        if one.problem is problem:
            # The native kernel reads the operands in place.
            operands = {}
        then = dataclasses.replace(one, operands=operands, then=then)
    assert then is not None
    forms = {COLUMNS: real.k * real.n * real.b.dtype.itemsize}
    if names["a"] == ROWS:
        forms[ROWS] = real.m * real.k * real.a.dtype.itemsize
    return dataclasses.replace(then, workspaces={**every.workspaces, **forms})


def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem without batch, or None where all do."""
    if reason := refuse_types(tuple(NATIVE), problem.types, arch) or refuse_hopper(problem, arch, batch_dims=0):
        return reason
    if reason := why_not_conjugates(problem):
        return reason
    for name in ("alpha", "beta"):
        if complex(getattr(problem, name)).imag:
            return f"{name} is {getattr(problem, name)}; this kernel takes real scalars"
    if reason := why_not_elements(real_problem(problem)[0]):
        return reason
    try:
        _next_kernel(problem, H200_RATES)
    except ArgumentError as error:
        return str(error)
    return None


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    del arch
    if types.a in NATIVE and types.precision is Precision.OZAKI:
        return None
    return f"A is {types.a}, precision {types.precision.value!r}; this kernel is for complex types and 'ozaki'"


def signature(problem: GemmProblem, config: RealFormsConfig) -> Signature:
    """Specialise for the direction in which A and B are contiguous."""
    del config
    oriented, _, _ = row_result(problem)
    return (("element", problem.a.dtype.name), *major_keys(*majors_of(oriented)))


def _squares(matrix: StridedMatrix) -> int:
    return -(-matrix.rows // SIDE) * -(-matrix.cols // SIDE)


def launch(problem: GemmProblem, config: RealFormsConfig) -> Launch:
    """Return the launch recipe: a CTA for each square of B, and of an A that is copied."""
    del config
    oriented, first, second = row_result(problem)
    b, k = oriented.b.transposed(), PARTS * oriented.k
    sign = 1 if oriented.a.conj != oriented.b.conj else -1
    params: list[TensorParam | ScalarParam] = [
        TensorParam(second, (b.cols, b.rows), (lead(b),)),
        TensorParam(COLUMNS, (k, b.rows), (k,)),
        ScalarParam("sign", oriented.a.dtype.part, sign),
    ]
    ctas, a = _squares(b), oriented.a
    if not a.has_contiguous_rows:
        params += [TensorParam(first, (a.cols, a.rows), (lead(a),)), TensorParam(ROWS, (k, a.rows), (k,))]
        ctas += _squares(a)
    shared = a.dtype.itemsize * SIDE * (SIDE + 1) + 64
    return Launch(grid=(ctas, 1, 1), block=(THREADS, 1, 1), params=tuple(params), shared_bytes=shared, overlaps=True)


#: Bytes that are read and written in a microsecond.
_BYTES = 2.5e6


def _own_us(problem: GemmProblem, gpu: GpuRates) -> float:
    oriented, _, _ = row_result(problem)
    copied = 0 if oriented.a.has_contiguous_rows else 2 * oriented.m * oriented.k
    elements = 2 * oriented.k * oriented.n + copied
    return gpu.launch * LAUNCH_US + elements * oriented.a.dtype.itemsize / min(_BYTES, gpu.memory)


def times_us(problem: GemmProblem, gpu: GpuRates) -> tuple[float, float]:
    """Return roughly the microseconds of all launches where the product is emulated, and where the guard refuses it."""
    own, after = _own_us(problem, gpu), _next_kernel(problem, gpu).then
    assert after is not None
    emulated, refused = emulation_us(after, gpu)
    return own + emulated, own + refused


def costs(problem: GemmProblem, configs: Sequence[RealFormsConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the time in microseconds of all launches."""
    emulated, _ = times_us(problem, gpu)
    return [emulated for _ in configs]


def faster_alternative(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the native kernel, where emulation is not expected to pay."""
    del cost
    native, _ = NATIVE[problem.a.dtype]
    return None if pays(*times_us(problem, gpu), native.least_cost(problem, gpu)) else native.name


SPEC = emulation_spec(
    name="ozaki_complex",
    summary="complex types with precision='ozaki', real alpha and beta: three real GEMMs (3M), int8 GEMMs of residues",
    package=__package__,
    configs=(RealFormsConfig(),),
    signatures=every_signature(element=tuple(NATIVE), a_major="km", b_major="nk"),
    signature=signature,
    launch=launch,
    batch_dims=0,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    next_kernel=next_kernel,
    faster_alternative=faster_alternative,
)
