"""float64 with precision='ozaki-15': scales, then residues, their products and the CRT reconstruction by blocks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import FEWEST_INT8_PRODUCTS, FLOAT8_E5M2, FLOAT32, FLOAT64, INT8, INT32, Precision, opaque_dtype
from gemmule.core.errors import ArgumentError
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.launch import MAP_ALIGNMENT, Launch, Param, ScalarParam, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, OperandTypes
from gemmule.core.row_major import row_result
from gemmule.core.signature import every_signature, major_keys, majors_of
from gemmule.core.spec import Buildable, KernelSpec, NextKernel, Signature
from gemmule.kernels.emulation.guard import least_magnitude, least_share, sample_period
from gemmule.kernels.emulation.guard_steps import (
    DECISION,
    GUARD,
    bound_columns,
    guarded_native,
    sampled_length,
)
from gemmule.kernels.emulation.guard_words import (
    COMPLEX_FORMS,
    DECISION_WORD,
    SHORTFALL,
    forms_of,
    planes_of,
    word_param,
)
from gemmule.kernels.emulation.ozaki_config import (
    GROUP,
    PAIR_CTAS,
    PAIR_LINES,
    PAIR_THREADS,
    SLICE,
    THREADS,
    ScalesConfig,
)
from gemmule.kernels.emulation.ozaki_steps import (
    PRODUCTS,
    RECONSTRUCTION,
    RESIDUES,
    depth_of,
    lead,
    moduli_key,
    most_moduli,
)
from gemmule.kernels.emulation.residues import BLOCK_BYTES, MOST_K
from gemmule.kernels.float64.gemm.spec import SPEC as PLAIN
from gemmule.kernels.hopper.next_kernel import choose_next
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper, refuse_no_config, refuse_types

#: Columns of a block are a multiple of this, for whole tiles and aligned lines.
_BLOCK = 512
_MOST_ELEMENTS = 2**37


NATIVE = guarded_native(PLAIN, "float64_guarded")


def _rounded(extent: int, unit: int) -> int:
    return -(-extent // unit) * unit


def next_kernel(problem: GemmProblem, config: ScalesConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    """Return the kernels after the scales: for each block of columns residues, their products, the reconstruction."""
    del config
    return _next_kernel(problem, gpu)


# Selection, a plan and the launch need the same.
@functools.lru_cache(maxsize=256)
def _next_kernel(problem: GemmProblem, gpu: GpuRates) -> NextKernel:
    oriented, *names = row_result(problem)
    native = native_kernel(problem, NATIVE, gpu) if problem.precision is Precision.OZAKI else None
    return emulation(oriented, names, native, gpu)


def emulation(problem: GemmProblem, names: Sequence[str], native: NextKernel | None, gpu: GpuRates) -> NextKernel:
    """Return the kernels after the scales.

    Parameters
    ----------
    problem : GemmProblem
        A product with a row-major result, of real numbers, or a complex result of the parts of A and B (`planes_of`).
    names : sequence of str
        What its A and B are.
    native : NextKernel or None
        The native kernel for where the guard decides so; None without a guard.
    """
    m, n, length = problem.m, problem.n, _rounded(depth_of(problem), SLICE)
    count = most_moduli(problem) * planes_of(problem)
    most = max(BLOCK_BYTES // (count * (length + m)) // _BLOCK * _BLOCK, _BLOCK)
    block = _rounded(-(-n // -(-n // most)), _BLOCK)
    workspaces = {
        "scales of rows": 4 * _rounded(m, GROUP),
        "scales of columns": 4 * (_rounded(n, GROUP) + GROUP),
        "residues of rows": count * m * length,
        "residues of columns": count * min(block, n) * length,
        "residues of the result": count * m * _rounded(min(block, n), GROUP),
    }
    then = native
    # The last block first: each has the next one as its next kernel.
    for begin in reversed(range(0, n, block)):
        then = _block(problem, names, range(begin, min(begin + block, n)), then, gpu)
    assert then is not None
    if native is not None:
        sampled, columns = sampled_length(problem.k), bound_columns(problem)
        workspaces |= {SHORTFALL: 4, DECISION_WORD: 4}
        workspaces |= {"magnitudes of rows": m * sampled, "magnitudes of columns": columns * sampled}
        then = _guard(problem, names, then, gpu)
    return dataclasses.replace(then, workspaces=workspaces)


def native_kernel(problem: GemmProblem, guarded: KernelSpec, gpu: GpuRates) -> NextKernel:
    """Return the native kernel, which computes all where the guard decided so."""
    spec, config, _ = choose_next(problem, (guarded,), gpu)
    return NextKernel(spec, config, problem, {}, {})


def _guard(problem: GemmProblem, names: Sequence[str], then: NextKernel, gpu: GpuRates) -> NextKernel:
    """Return the scales and the launches that decide whether the product is emulated, and `then` after them."""
    m, n, length = problem.m, bound_columns(problem), sampled_length(problem.k)
    decision = NextKernel(DECISION, DECISION.default, problem, {}, {}, then=then)
    a = StridedMatrix(FLOAT8_E5M2, m, length, length, 1, (), MAP_ALIGNMENT)
    b = StridedMatrix(FLOAT8_E5M2, length, n, 1, length, (), MAP_ALIGNMENT)
    d = StridedMatrix(FLOAT32, m, n, n, 1, (), MAP_ALIGNMENT)
    magnitudes = GemmProblem(m, n, length, (), a, b, None, d, precision=problem.precision)
    spec, config, _ = choose_next(magnitudes, (GUARD,), gpu)
    operands = {"a": "magnitudes of rows", "b": "magnitudes of columns"}
    least = NextKernel(spec, config, magnitudes, operands, {}, then=decision)
    scales, config, _ = choose_next(problem, (SCALES,), gpu)
    return NextKernel(scales, config, problem, dict(zip("ab", names, strict=True)), {}, then=least)


def _block(
    problem: GemmProblem, names: Sequence[str], columns: range, then: NextKernel | None, gpu: GpuRates
) -> NextKernel:
    """Return the kernels for some columns, and `then` after them; `problem` and `names` as of `row_result`."""
    n, begin, written = len(columns), columns.start, columns.start * problem.d.dtype.itemsize
    item = problem.b.dtype.itemsize
    matrices = problem.operands()
    for name in matrices.keys() - "a":
        matrices[name] = dataclasses.replace(matrices[name], cols=n, alignment=item)
    part = dataclasses.replace(problem.with_operands((), matrices), n=n)
    of_b = begin * problem.b.col_stride * item
    beyond = {"b": of_b, "d": written, "c": written, "columns": 4 * begin}
    scales = {"rows": "scales of rows", "columns": "scales of columns"}
    operands = scales | {"residues": "residues of the result"} | {name: name for name in "dc" if name in matrices}
    last = NextKernel(RECONSTRUCTION, RECONSTRUCTION.default, part, operands, {}, beyond=beyond, then=then)
    # The last part of K first: each has the next one as its next kernel.
    for start in reversed(range(0, _rounded(depth_of(problem), SLICE), MOST_K)):
        last = _products(problem, n, start, last, gpu)
    # The residues of A are those of the first block.
    a = problem.a if begin == 0 else dataclasses.replace(problem.a, rows=0)
    converted = dataclasses.replace(part, m=a.rows, a=a)
    operands = dict(zip("ab", names, strict=True)) | scales
    return NextKernel(RESIDUES, RESIDUES.default, converted, operands, {}, beyond=beyond, then=last)


def _products(problem: GemmProblem, n: int, start: int, then: NextKernel, gpu: GpuRates) -> NextKernel:
    """Return the products of a part of K for `n` columns, added to those before it, and `then` after them."""
    length, count = _rounded(depth_of(problem), SLICE), most_moduli(problem) * planes_of(problem)
    m, width, k = problem.m, _rounded(n, GROUP), min(length - start, MOST_K)
    a = StridedMatrix(INT8, m, k, length, 1, (m * length,), MAP_ALIGNMENT)
    b = StridedMatrix(INT8, k, n, 1, length, (n * length,), MAP_ALIGNMENT)
    d = StridedMatrix(opaque_dtype(1), m, width, width, 1, (m * width,), MAP_ALIGNMENT)
    part = GemmProblem(m, width, k, (count,), a, b, d if start else None, d, precision=problem.precision)
    operands = {"a": "residues of rows", "b": "residues of columns", "d": "residues of the result"}
    spec, config, _ = choose_next(part, (PRODUCTS,), gpu)
    return NextKernel(spec, config, part, operands, {}, beyond={"a": start, "b": start}, then=then)


def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem without batch, or None where all do."""
    if reason := why_not_elements(problem) or refuse_types((FLOAT64,), problem.types, arch):
        return reason
    if reason := refuse_hopper(problem, arch, batch_dims=0):
        return reason
    try:
        _next_kernel(problem, H200_RATES)
    except ArgumentError as error:
        return str(error)
    return None


def why_not_elements(problem: GemmProblem) -> str | None:
    """Return which operand has too many elements for indices, or None."""
    for name, matrix in problem.operands().items():
        if matrix.rows * matrix.cols > _MOST_ELEMENTS:
            return f"{name.upper()} has {matrix.rows} x {matrix.cols} elements, of at most {_MOST_ELEMENTS}"
    return None


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    del arch
    if types.precision in FEWEST_INT8_PRODUCTS:
        return None
    return f"precision is {types.precision.value!r}; this kernel is for 'ozaki', 'ozaki-14', 'ozaki-15' and 'ozaki-16'"


def signature(problem: GemmProblem, config: ScalesConfig) -> Signature:
    """Specialise for the direction in which A and B are contiguous, and the number of moduli."""
    del config
    oriented, _, _ = row_result(problem)
    return (*major_keys(*majors_of(oriented)), *moduli_key(problem.precision), *forms_of(problem))


def launch(problem: GemmProblem, config: ScalesConfig) -> Launch:
    """Return the recipe of the first launch: with a guard pairs of lines, else the scales."""
    return (_pairs_launch if problem.precision is Precision.OZAKI else _scales_launch)(problem, config)


def _pairs_launch(problem: GemmProblem, config: ScalesConfig) -> Launch:
    """Return the launch recipe of a cluster that compares some pairs of lines."""
    del config
    lines = [TensorParam(operand, (one.cols, one.rows), (lead(one),)) for operand, _, one in _lines(problem)]
    sampling = (
        word_param(SHORTFALL),
        ScalarParam("period", INT32, sample_period(problem.k)),
        ScalarParam("least share", FLOAT64, least_share(problem.k, problem.a.dtype)),
    )
    grid = (PAIR_CTAS, 1, 1)
    shared = 3 * PAIR_THREADS // 32 * PAIR_LINES * FLOAT64.itemsize + 64
    return Launch(
        grid=grid,
        block=(PAIR_THREADS, 1, 1),
        cluster=grid,
        params=(*lines, *sampling),
        shared_bytes=shared,
        overlaps=True,
    )


def _lines(problem: GemmProblem) -> tuple[tuple[str, str, StridedMatrix], ...]:
    """Return of A and of B: the operand, what its lines along K are, and the matrix with these as rows."""
    oriented, first, second = row_result(problem)
    return (first, "rows", oriented.a), (second, "columns", oriented.b.transposed())


def _scales_launch(problem: GemmProblem, config: ScalesConfig) -> Launch:
    """Return the launch recipe of the scales: a CTA for some contiguous lines."""
    params: list[Param] = []
    ctas = 0
    for operand, name, matrix in _lines(problem):
        params.append(TensorParam(operand, (matrix.cols, matrix.rows), (lead(matrix),)))
        params.append(TensorParam(f"scales of {name}", (matrix.rows,), ()))
        ctas += -(-matrix.rows // (config.together if matrix.has_contiguous_rows else config.across))
    if problem.precision is Precision.OZAKI:
        oriented, _, _ = row_result(problem)
        params.append(word_param(SHORTFALL))
        params.append(ScalarParam("period", INT32, sample_period(problem.k)))
        params.append(ScalarParam("least magnitude", INT32, least_magnitude(problem.k, problem.a.dtype)))
        sampled = sampled_length(problem.k)
        for name, lines in (("rows", oriented.m), ("columns", bound_columns(oriented))):
            params.append(TensorParam(f"magnitudes of {name}", (sampled, lines), (sampled,)))
    shared = THREADS * 12 + 64
    return Launch(grid=(ctas, 1, 1), block=(THREADS, 1, 1), params=tuple(params), shared_bytes=shared, overlaps=True)


#: Microseconds of a launch on an H200. And by MN-major lines of a CTA, those of the scales, and the share of memory's
#: rate that they read with.
_LAUNCH = 2.0
_SCALES = {16: (24.0, 0.957), 8: (6.5, 0.859)}


def _scales_us(problem: GemmProblem, config: ScalesConfig, gpu: GpuRates) -> float:
    launched, share = _SCALES[config.across]
    elements = problem.m * problem.k + problem.k * problem.n
    return gpu.launch * launched + elements * problem.a.dtype.itemsize / (share * gpu.memory)


def _scales_costs(problem: GemmProblem, configs: Sequence[ScalesConfig], gpu: GpuRates) -> list[float]:
    return [_scales_us(problem, config, gpu) for config in configs]


#: Share of products that the guard refuses: of ordinary inputs of float64 1 of 29. And of the native time, what must be
#: saved: at 2048 native products took a tenth less than predicted, at the higher clocks of short ones.
_REFUSED, _SAVED = 0.05, 0.1


def times_us(problem: GemmProblem, gpu: GpuRates) -> tuple[float, float]:
    """Return roughly the microseconds of all launches where the product is emulated, and where the guard refuses it.

    Without a guard both are the same.
    """
    guarded = problem.precision is Precision.OZAKI
    first = gpu.launch * _LAUNCH if guarded else _scales_us(problem, ScalesConfig(), gpu)
    emulated, refused = emulation_us(_next_kernel(problem, gpu), gpu)
    return first + emulated, first + refused


def emulation_us(after: NextKernel, gpu: GpuRates) -> tuple[float, float]:
    """Return `times_us` of the kernels after the first."""
    emulated = refused = 0.0
    skipped, is_decided = gpu.launch * _LAUNCH, False
    for one in after.chain():
        assert one.spec.cost is not None
        us, is_native = one.spec.cost(one.problem, one.config, gpu), is_decided and one.then is None
        # CTAs of launches that the decision makes needless return at once.
        emulated += skipped if is_native else us
        refused += skipped if is_decided and not is_native else us
        is_decided = is_decided or one.spec is DECISION
    return emulated, refused


def pays(emulated: float, refused: float, plain: float) -> bool:
    """Return whether emulation is expected to save time, by the microseconds of `times_us` and of the native kernel."""
    return emulated + _REFUSED * (refused - emulated) <= (1 - _SAVED) * plain


def costs(problem: GemmProblem, configs: Sequence[ScalesConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the time in microseconds of all launches, which is that of all configs: of ordinary numbers."""
    emulated, _ = times_us(problem, gpu)
    return [emulated for _ in configs]


def faster_alternative(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel of plain float64, where residues are not expected to pay."""
    del cost
    return None if pays(*times_us(problem, gpu), PLAIN.least_cost(problem, gpu)) else PLAIN.name


def _build_pairs(config: ScalesConfig, signature: Signature) -> Buildable:
    from .early_refusal import buildable

    return buildable(config, dict(signature))


def _build(config: ScalesConfig, signature: Signature) -> Buildable:
    from .kernel import buildable

    return (
        _build_pairs(config, signature)
        if dict(signature)["moduli"] == "guarded"
        else buildable(config, dict(signature))
    )


SPEC = KernelSpec(
    name="ozaki_gemm",
    operation="gemm",
    summary="float64 with precision='ozaki' or 'ozaki-14' to '-16', any leading dimensions: int8 GEMMs of residues",
    package=__package__,
    build=_build,
    archs=(HOPPER,),
    configs=(ScalesConfig(),),
    signatures=every_signature(a_major="km", b_major="nk", moduli=("14", "15", "16", "guarded")),
    why_not=refuse_no_config,
    signature=signature,
    launch=launch,
    batch_dims=0,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
    next_kernel=next_kernel,
    faster_alternative=faster_alternative,
)


def _takes_all(problem: GemmProblem, arch: Arch) -> None:
    del problem, arch


def _parts_signatures(arch: Arch) -> tuple[Signature, ...]:
    del arch
    keys = (*major_keys("k", "k"), *moduli_key(Precision.OZAKI))
    return tuple((*keys, *forms) for forms in COMPLEX_FORMS)


def _guarded_signatures(arch: Arch) -> tuple[Signature, ...]:
    real = every_signature(a_major="km", b_major="nk", moduli=["guarded"])(arch)
    return (*real, *_parts_signatures(arch))


def _pairs_us(problem: GemmProblem, config: ScalesConfig, gpu: GpuRates) -> float:
    del problem, config
    return gpu.launch * _LAUNCH


#: Pairs of lines of the parts of complex elements.
PAIRS = KernelSpec(
    name="ozaki_pairs",
    operation="gemm",
    summary="samples of some pairs of lines, which may refuse emulation",
    package=__package__,
    build=_build_pairs,
    archs=(HOPPER,),
    configs=(ScalesConfig(),),
    signatures=_parts_signatures,
    why_not=refuse_no_config,
    signature=signature,
    launch=_pairs_launch,
    batch_dims=0,
    refuses=_takes_all,
    cost=_pairs_us,
    cost_in_us=True,
)
#: Scales behind the guard's first launch, and magnitudes.
SCALES = KernelSpec(
    name="ozaki_scales",
    operation="gemm",
    summary="powers of two that make integers of lines, and samples of these in float8_e5m2, rounded down",
    package=__package__,
    archs=(HOPPER,),
    configs=(ScalesConfig(), ScalesConfig(across=8)),
    signatures=_guarded_signatures,
    why_not=refuse_no_config,
    signature=signature,
    launch=_scales_launch,
    batch_dims=0,
    refuses=_takes_all,
    costs=_scales_costs,
    cost_in_us=True,
)
