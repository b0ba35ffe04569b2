"""complex128 with precision='ozaki': real forms of the operands, then the kernels of float64."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import COMPLEX128, FLOAT64, Precision
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.launch import MAP_ALIGNMENT, Launch, ScalarParam, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, OperandTypes
from gemmule.core.row_major import row_result
from gemmule.core.signature import every_signature, major_keys, majors_of
from gemmule.core.spec import KernelSpec, NextKernel, Signature
from gemmule.kernels.complex.complex128.spec import SPEC as PLAIN
from gemmule.kernels.emulation.ozaki_config import SIDE, THREADS, RealFormsConfig
from gemmule.kernels.emulation.ozaki_gemm.spec import SPEC as REAL
from gemmule.kernels.emulation.ozaki_gemm.spec import pays, times_us
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper, refuse_no_config, refuse_types
from gemmule.kernels.parts.conjugates import why_not_conjugates

#: Workspaces: the real form of A, and both of B's columns.
ROWS, COLUMNS = "real form of rows", "real forms of columns"


def real_problem(problem: GemmProblem) -> tuple[GemmProblem, dict[str, str]]:
    """Return the product of the real forms, with D as it lies, and the names of its A and B."""
    oriented, first, _ = row_result(problem)
    m, n, k = oriented.m, 2 * oriented.n, 2 * oriented.k
    as_it_lies = oriented.a.lies_in_rows
    matrices = {name: _real(matrix) for name, matrix in oriented.operands().items() if name != "b"}
    if not as_it_lies:
        matrices["a"] = StridedMatrix(FLOAT64, m, k, k, 1, (), MAP_ALIGNMENT)
    matrices["b"] = StridedMatrix(FLOAT64, k, n, 1, k, (), MAP_ALIGNMENT)
    real = GemmProblem(
        m, n, k, (), matrices["a"], matrices["b"], matrices.get("c"), matrices["d"],
        complex(problem.alpha).real, complex(problem.beta).real, problem.precision,
    )  # fmt: skip
    return real, {"a": first if as_it_lies else ROWS, "b": COLUMNS}


def _real(matrix: StridedMatrix) -> StridedMatrix:
    """Return a row-major complex matrix as real one, with parts in successive columns."""
    return StridedMatrix(FLOAT64, matrix.rows, 2 * matrix.cols, 2 * matrix.row_stride, 1, (), matrix.alignment)


def next_kernel(problem: GemmProblem, config: RealFormsConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    """Return the kernels of the real product."""
    del config
    return _next_kernel(problem, gpu)


# Selection, a plan and the launch need the same.
@functools.lru_cache(maxsize=256)
def _next_kernel(problem: GemmProblem, gpu: GpuRates) -> NextKernel:
    real, names = real_problem(problem)
    assert REAL.next_kernel is not None
    every = REAL.next_kernel(real, REAL.default, gpu)
    then: NextKernel | None = None
    for one in reversed([NextKernel(REAL, REAL.default, real, {}, {}), *every.chain()]):
        operands = names | {name: names.get(given, given) for name, given in one.operands.items()}
        then = dataclasses.replace(one, operands=operands, then=then)
    assert then is not None
    forms = {COLUMNS: real.k * real.n * FLOAT64.itemsize}
    if names["a"] == ROWS:
        forms[ROWS] = real.m * real.k * FLOAT64.itemsize
    return dataclasses.replace(then, workspaces={**every.workspaces, **forms})


def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem without batch, or None where all do."""
    if reason := refuse_types((COMPLEX128,), problem.types, arch) or refuse_hopper(problem, arch, batch_dims=0):
        return reason
    if reason := why_not_conjugates(problem):
        return reason
    for name in ("alpha", "beta"):
        if complex(getattr(problem, name)).imag:
            return f"{name} is {getattr(problem, name)}; this kernel takes real scalars"
    assert REAL.own_refuses is not None
    return REAL.own_refuses(real_problem(problem)[0], arch)


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    del arch
    if types.a == COMPLEX128 and types.precision is Precision.OZAKI:
        return None
    return f"A is {types.a}, precision {types.precision.value!r}; this kernel is for complex128 and 'ozaki'"


def signature(problem: GemmProblem, config: RealFormsConfig) -> Signature:
    """Specialise for the direction in which A and B are contiguous."""
    del config
    oriented, _, _ = row_result(problem)
    return (("element", COMPLEX128.name), *major_keys(*majors_of(oriented)))


def _squares(matrix: StridedMatrix) -> int:
    return -(-matrix.rows // SIDE) * -(-matrix.cols // SIDE)


def launch(problem: GemmProblem, config: RealFormsConfig) -> Launch:
    """Return the launch recipe: a CTA for each square of B, and of an A that is copied."""
    del config
    oriented, first, second = row_result(problem)
    b, k = oriented.b.transposed(), 2 * oriented.k
    sign_a, sign_b = (-1 if matrix.conj else 1 for matrix in (oriented.a, oriented.b))
    params: list[TensorParam | ScalarParam] = [
        TensorParam(second, (b.cols, b.rows), (_lead(b),)),
        TensorParam(COLUMNS, (k, 2 * b.rows), (k,)),
        *(ScalarParam(f"sign{place}", FLOAT64, one) for place, one in enumerate((-sign_a * sign_b, sign_b, sign_a))),
    ]
    ctas, a = _squares(b), oriented.a
    if not a.lies_in_rows:
        params += [TensorParam(first, (a.cols, a.rows), (_lead(a),)), TensorParam(ROWS, (k, a.rows), (k,))]
        ctas += _squares(a)
    shared = 16 * SIDE * (SIDE + 1) + 64
    return Launch(grid=(ctas, 1, 1), block=(THREADS, 1, 1), params=tuple(params), shared_bytes=shared, overlaps=True)


def _lead(matrix: StridedMatrix) -> int:
    return matrix.row_stride if matrix.lies_in_rows else matrix.col_stride


#: Microseconds of a launch; and bytes that are read and written in one.
_LAUNCH, _BYTES = 2.0, 2.5e6


def _own_us(problem: GemmProblem, gpu: GpuRates) -> float:
    oriented, _, _ = row_result(problem)
    moved = 48 * oriented.k * oriented.n + (0 if oriented.a.lies_in_rows else 32 * oriented.m * oriented.k)
    return gpu.launch * _LAUNCH + moved / min(_BYTES, gpu.memory)


def costs(problem: GemmProblem, configs: Sequence[RealFormsConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the time in microseconds of all launches."""
    return [_own_us(problem, gpu) + times_us(real_problem(problem)[0], gpu)[0] for _ in configs]


def outdone(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the native kernel, where emulation is not expected to pay."""
    del cost
    assert PLAIN.costs is not None
    own = _own_us(problem, gpu)
    emulated, refused = times_us(real_problem(problem)[0], gpu)
    plain = min(PLAIN.costs(problem, PLAIN.configs_on(gpu), gpu))
    return None if pays(own + emulated, own + refused, plain) else PLAIN.name


SPEC = KernelSpec(
    name="ozaki_complex",
    operation="gemm",
    summary="complex128 with precision='ozaki', real scalars: the real product of twice as many columns and K",
    package=__package__,
    archs=(HOPPER,),
    configs=(RealFormsConfig(),),
    signatures=every_signature(element=[COMPLEX128], a_major="km", b_major="nk"),
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
