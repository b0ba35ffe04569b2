"""Operands of mixed types, or without contiguous lines, copied as their common type for kernels of one type."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import (
    BFLOAT16,
    COMPLEX128,
    FLOAT16,
    FLOAT32,
    INT8,
    TF32_SIGNIFICAND,
    DType,
    Kind,
    Precision,
    accumulator,
)
from gemmule.core.epilogue_inputs import num_b_of
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, inner_problem
from gemmule.core.row_major import row_result
from gemmule.core.spec import KernelSpec, NextKernel, Signature
from gemmule.kernels.simt.reference.spec import SPEC as REFERENCE

from .next_kernel import MOST_WORKSPACE, NextProduct, Prepared, with_copies
from .operand_copies import (
    OperandCopy,
    are_strided,
    copied_lines,
    copy_launch,
    in_order,
    is_mirrored,
    is_strided,
    nearer_rows,
    operand_copy,
    read_bytes,
    strided_key,
    why_not_copied,
)
from .refusals import refuse_matrices, why_not_elements
from .repack_config import NONE, OPERANDS, RepackConfig
from .tma_tiles import why_not_stored, why_not_tma

#: Types with tensor cores of their own that hold all values of narrower ones.
_HALVES = (FLOAT16, BFLOAT16)
#: Microseconds of the second launch, and bytes that are read and written in one: as `hopper_gemm_repacked` was measured
#: on an H200.
_LAUNCH, _BYTES = 1.8, 3.3e6
#: CTAs of many vectors for each of the SMs, at least.
_ENOUGH = 4


def common_type(problem: GemmProblem) -> DType:
    """Return the type that A and B are multiplied in: the narrowest that holds both and has a kernel.

    If 16 bits hold neither of two types, it is the result's, and so it is of complex128 results.
    """
    a, b = problem.a.dtype, problem.b.dtype
    if a == b == INT8:
        return INT8
    if (sums := accumulator(a, b)) != FLOAT32 or FLOAT32 in (a, b):
        if sums.kind is Kind.COMPLEX and problem.d.dtype == COMPLEX128:
            return COMPLEX128
        return sums
    halves = [half for half in _HALVES if half.holds(a) and half.holds(b)]
    if not halves:
        return FLOAT32
    return problem.d.dtype if problem.d.dtype in halves else halves[0]


def _by_tf32(problem: GemmProblem) -> bool:
    """Return whether tensor cores multiply float32: rounded, or float16 and bfloat16, which TF32 holds."""
    significand = max(problem.a.dtype.significand, problem.b.dtype.significand)
    exact = common_type(problem) == FLOAT32 and significand <= TF32_SIGNIFICAND
    return exact or problem.precision is Precision.TF32


@cache_last_call
def copies_of(problem: GemmProblem) -> tuple[OperandCopy, ...]:
    """Return the copies of operands of another type than the common one, or without contiguous lines.

    Copies have the operands' majors. With TF32 one at least is K-major, both where TMA does not store D, and each copy
    of a gated epilogue's. For tensor cores, operands that TMA cannot address are copied too.
    """
    wide, gathered = common_type(problem), ""
    tensor_cores = wide in _HALVES or _by_tf32(problem)
    if _by_tf32(problem):
        major = [name for name in "ab" if not _is_k_major(name, problem.operands()[name])]
        if why_not_stored(row_result(problem)[0].d) is not None:
            gathered = "".join(major)
        elif len(major) > 1:
            gathered = "a" if problem.m <= problem.n else "b"
    k_major = _by_tf32(problem) and num_b_of(problem.epilogue) > 1

    def lines(name: str, matrix: StridedMatrix) -> bool | None:
        is_loaded = not tensor_cores or why_not_tma(name, matrix, ()) is None
        if matrix.dtype == wide and is_loaded and not is_strided(matrix) and name not in gathered:
            return None
        if name in gathered or k_major:
            return name == "a"
        return nearer_rows(matrix) if is_strided(matrix) else matrix.has_contiguous_rows

    factors = problem.factors()
    found = in_order(
        [
            operand_copy(name, factors[name], problem.batch, "wide", wide, rows=rows)
            for name, rows in copied_lines(problem, lines).items()
        ]
    )
    return found[:1] if is_mirrored(problem) else found


def _is_k_major(name: str, matrix: StridedMatrix) -> bool:
    rows = nearer_rows(matrix) if is_strided(matrix) else matrix.has_contiguous_rows
    return rows == (name == "a")


def _prepared(problem: GemmProblem) -> Prepared:
    copies = copies_of(problem)
    if is_mirrored(problem):
        # The adjoint of A is its transpose's conjugate.
        mirrored = [dataclasses.replace(one.copy.transposed(), conj=problem.b.conj) for one in copies]
        copies += tuple(dataclasses.replace(one, operand="b", copy=b) for one, b in zip(copies, mirrored, strict=True))
    prepared = with_copies(problem, copies)
    if _by_tf32(problem):
        prepared = prepared._replace(problem=dataclasses.replace(prepared.problem, precision=Precision.TF32))
    return prepared


class UpcastOperands:
    """A spec's answers for operands that are copied as their common type.

    Parameters
    ----------
    specs : dict
        For each common type the kernels that multiply the copies, best first.
    """

    def __init__(self, specs: Mapping[DType, Sequence[KernelSpec]]) -> None:
        self._products = {dtype: NextProduct(_prepared, kernels) for dtype, kernels in specs.items()}

    def _product(self, problem: GemmProblem) -> NextProduct:
        return self._products[common_type(problem)]

    def next_kernel(self, problem: GemmProblem, gpu: GpuRates) -> NextKernel:
        """Return the product of the copies, in the kernel and config that suit it."""
        return self._product(problem).kernel(problem, gpu)

    def refuses(self, problem: GemmProblem, arch: Arch) -> str | None:
        """Say why no config takes a problem of at most one batch dimension, or None where that depends on it."""
        if not (copies := copies_of(problem)):
            return f"A and B are {problem.a.dtype} with contiguous lines: nothing is to be copied"
        if reason := refuse_matrices(problem, "", takes_empty=True):
            return reason
        if (copied := sum(one.nbytes for one in copies)) > MOST_WORKSPACE:
            return f"operands would be copied into {copied / 1e9:.4g} GB, and at most {MOST_WORKSPACE / 1e9:.4g} are"
        for one in copies:
            if reason := why_not_elements(one.operand, problem.operands()[one.operand]) or one.why_not():
                return reason
        return self._product(problem).why_not(problem, arch=arch)

    def costs(self, problem: GemmProblem, configs: Sequence[RepackConfig], gpu: GpuRates) -> list[float]:
        """Return roughly the times in microseconds of the copies and of the product, which is that of all configs."""
        copies, operands = copies_of(problem), problem.operands()
        product = self._product(problem).cost(problem, gpu)
        read = sum(read_bytes(one, operands[one.operand].dtype.itemsize) for one in copies)
        moved = gpu.moved_us(read + sum(one.nbytes for one in copies), _BYTES)

        def conversion(config: RepackConfig) -> float:
            ctas = sum(one.ctas(config) * one.matrices for one in copies)
            # If few CTAs leave SMs idle, fewer vectors for each of them are better.
            few = max(1.0, _ENOUGH * gpu.multiprocessors / max(ctas, 1))
            return moved * few if config.vectors > 1 else moved * 1.01

        return [product + _LAUNCH * gpu.launch + conversion(config) for config in configs]


def faster_reference(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the reference kernel, which takes operands as they are, where copies do not pay."""
    assert REFERENCE.cost is not None
    return REFERENCE.name if REFERENCE.cost(problem, REFERENCE.default, gpu) < cost else None


def why_not(problem: GemmProblem, arch: Arch, config: RepackConfig) -> str | None:
    """Say why the copies cannot be made, or None where they can: `KernelSpec.why_not`."""
    del arch
    return why_not_copied(copies_of(inner_problem(problem, 1)), config, "convert")


def signature(problem: GemmProblem, config: RepackConfig) -> Signature:
    """Specialise for the types before and after the conversion, and whether an operand is gathered."""
    del config
    copies = copies_of(problem)
    types = [problem.operands()[one.operand].dtype for one in copies]
    return types_signature(types, common_type(problem), are_strided(copies))


def types_signature(types: Sequence[DType], wide: DType, strided: bool = False) -> Signature:
    """Return the signature for copies of such types."""
    names = [*(dtype.name for dtype in types), NONE, NONE][: max(len(types), 2)]
    return (*zip(OPERANDS, names, strict=False), ("wide", wide.name), *strided_key(strided))


def launch(problem: GemmProblem, config: RepackConfig) -> Launch:
    """Return the launch recipe of the copies."""
    return copy_launch(copies_of(problem), config)
