"""Complex types with precision='ozaki': real forms of the operands, then the kernels of float64 or float32."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import COMPLEX64, COMPLEX128, Precision
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.launch import MAP_ALIGNMENT, Launch, ScalarParam, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, OperandTypes
from gemmule.core.row_major import row_result
from gemmule.core.signature import every_signature, major_keys, majors_of
from gemmule.core.spec import KernelSpec, NextKernel, Signature
from gemmule.kernels.complex.complex64.spec import SPEC as COMPLEX64_GEMM
from gemmule.kernels.complex.complex128.spec import SPEC as COMPLEX128_GEMM
from gemmule.kernels.emulation.bf16x6_gemm.spec import SPEC as BF16X6
from gemmule.kernels.emulation.bf16x6_gemm.spec import times_us as bf16x6_us
from gemmule.kernels.emulation.ozaki_config import SIDE, THREADS, RealFormsConfig
from gemmule.kernels.emulation.ozaki_gemm.spec import SPEC as OZAKI
from gemmule.kernels.emulation.ozaki_gemm.spec import pays
from gemmule.kernels.emulation.ozaki_gemm.spec import times_us as ozaki_us
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper, refuse_no_config, refuse_types
from gemmule.kernels.parts.conjugates import why_not_conjugates

#: By the type of the operands: the guarded product of their parts' type, its times, and the native kernel.
_KERNELS = {COMPLEX64: (BF16X6, bf16x6_us, COMPLEX64_GEMM), COMPLEX128: (OZAKI, ozaki_us, COMPLEX128_GEMM)}
#: Workspaces: the real form of A, and both of B's columns.
ROWS, COLUMNS = "real form of rows", "real forms of columns"


def real_problem(problem: GemmProblem) -> tuple[GemmProblem, dict[str, str]]:
    """Return the product of the real forms, with D as it lies, and the names of its A and B."""
    oriented, first, _ = row_result(problem)
    m, n, k = oriented.m, 2 * oriented.n, 2 * oriented.k
    as_it_lies, part = oriented.a.lies_in_rows, oriented.a.dtype.part
    matrices = {name: _real(matrix) for name, matrix in oriented.operands().items() if name != "b"}
    if not as_it_lies:
        matrices["a"] = StridedMatrix(part, m, k, k, 1, (), MAP_ALIGNMENT)
    matrices["b"] = StridedMatrix(part, k, n, 1, k, (), MAP_ALIGNMENT)
    real = GemmProblem(
        m, n, k, (), matrices["a"], matrices["b"], matrices.get("c"), matrices["d"],
        complex(problem.alpha).real, complex(problem.beta).real, problem.precision,
    )  # fmt: skip
    return real, {"a": first if as_it_lies else ROWS, "b": COLUMNS}


def _real(matrix: StridedMatrix) -> StridedMatrix:
    """Return a row-major complex matrix as real one, with parts in successive columns."""
    part, row_stride = matrix.dtype.part, 2 * matrix.row_stride
    return StridedMatrix(part, matrix.rows, 2 * matrix.cols, row_stride, 1, (), matrix.alignment)


def next_kernel(problem: GemmProblem, config: RealFormsConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    """Return the kernels of the real product."""
    del config
    return _next_kernel(problem, gpu)


# Selection, a plan and the launch need the same.
@functools.lru_cache(maxsize=256)
def _next_kernel(problem: GemmProblem, gpu: GpuRates) -> NextKernel:
    real, names = real_problem(problem)
    spec, _, _ = _KERNELS[problem.a.dtype]
    assert spec.next_kernel is not None
    every = spec.next_kernel(real, spec.default, gpu)
    then: NextKernel | None = None
    for one in reversed([NextKernel(spec, spec.default, real, {}, {}), *every.chain()]):
        operands = names | {name: names.get(given, given) for name, given in one.operands.items()}
        then = dataclasses.replace(one, operands=operands, then=then)
    assert then is not None
    forms = {COLUMNS: real.k * real.n * real.b.dtype.itemsize}
    if names["a"] == ROWS:
        forms[ROWS] = real.m * real.k * real.a.dtype.itemsize
    return dataclasses.replace(then, workspaces={**every.workspaces, **forms})


def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem without batch, or None where all do."""
    if reason := refuse_types(tuple(_KERNELS), problem.types, arch) or refuse_hopper(problem, arch, batch_dims=0):
        return reason
    if reason := why_not_conjugates(problem):
        return reason
    for name in ("alpha", "beta"):
        if complex(getattr(problem, name)).imag:
            return f"{name} is {getattr(problem, name)}; this kernel takes real scalars"
    real, spec = real_problem(problem)[0], _KERNELS[problem.a.dtype][0]
    assert spec.own_refuses is not None
    return spec.own_refuses(real, arch) or spec.why_not(real, arch, spec.default)


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    del arch
    if types.a in _KERNELS and types.precision is Precision.OZAKI:
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
    b, k = oriented.b.transposed(), 2 * oriented.k
    sign_a, sign_b = (-1 if matrix.conj else 1 for matrix in (oriented.a, oriented.b))
    signs, part = (-sign_a * sign_b, sign_b, sign_a), oriented.a.dtype.part
    params: list[TensorParam | ScalarParam] = [
        TensorParam(second, (b.cols, b.rows), (_lead(b),)),
        TensorParam(COLUMNS, (k, 2 * b.rows), (k,)),
        *(ScalarParam(f"sign{place}", part, one) for place, one in enumerate(signs)),
    ]
    ctas, a = _squares(b), oriented.a
    if not a.lies_in_rows:
        params += [TensorParam(first, (a.cols, a.rows), (_lead(a),)), TensorParam(ROWS, (k, a.rows), (k,))]
        ctas += _squares(a)
    shared = a.dtype.itemsize * SIDE * (SIDE + 1) + 64
    return Launch(grid=(ctas, 1, 1), block=(THREADS, 1, 1), params=tuple(params), shared_bytes=shared, overlaps=True)


def _lead(matrix: StridedMatrix) -> int:
    return matrix.row_stride if matrix.lies_in_rows else matrix.col_stride


#: Microseconds of a launch; and bytes that are read and written in one.
_LAUNCH, _BYTES = 2.0, 2.5e6


def _own_us(problem: GemmProblem, gpu: GpuRates) -> float:
    oriented, _, _ = row_result(problem)
    elements = 3 * oriented.k * oriented.n + (0 if oriented.a.lies_in_rows else 2 * oriented.m * oriented.k)
    return gpu.launch * _LAUNCH + elements * oriented.a.dtype.itemsize / min(_BYTES, gpu.memory)


def costs(problem: GemmProblem, configs: Sequence[RealFormsConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the time in microseconds of all launches."""
    times_us = _KERNELS[problem.a.dtype][1]
    return [_own_us(problem, gpu) + times_us(real_problem(problem)[0], gpu)[0] for _ in configs]


def outdone(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the native kernel, where emulation is not expected to pay."""
    del cost
    _, times_us, native = _KERNELS[problem.a.dtype]
    assert native.costs is not None
    own = _own_us(problem, gpu)
    emulated, refused = times_us(real_problem(problem)[0], gpu)
    plain = min(native.costs(problem, native.configs_on(gpu), gpu))
    return None if pays(own + emulated, own + refused, plain) else native.name


SPEC = KernelSpec(
    name="ozaki_complex",
    operation="gemm",
    summary="complex types with precision='ozaki', real alpha and beta: one real GEMM with twice the N and K",
    package=__package__,
    archs=(HOPPER,),
    configs=(RealFormsConfig(),),
    signatures=every_signature(element=tuple(_KERNELS), a_major="km", b_major="nk"),
    why_not=refuse_no_config,
    signature=signature,
    launch=launch,
    batch_dims=0,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
    next_kernel=next_kernel,
    outdone=outdone,
)
