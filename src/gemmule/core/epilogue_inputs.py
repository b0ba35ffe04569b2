"""Inputs of a fused epilogue, read by row and column: types, signature and launch parameters."""

from __future__ import annotations

import dataclasses
import math

from .dtype import BFLOAT16, FLOAT16, FLOAT32, INT32, DType
from .epilogue import ABSMAX, Epilogue
from .launch import Param, TensorParam, number_params
from .layout import StridedMatrix
from .problem import GemmProblem
from .spec import Signature

#: Types of inputs in the tensor-core kernels.
INPUTS = (BFLOAT16, FLOAT16, FLOAT32)
#: Marks of strides: constants of the compiled kernel, except `_ANY`.
_NONE, _UNIT, _ANY = "0", "1", "s"
#: Value of a signature's `ABSMAX` where the kernel clears the absolute maximum itself.
CLEARED = "cleared"
#: Mark of a column stride of 1 where elements can be loaded in aligned pairs.
PAIRS = "p"


def why_not_inputs(problem: GemmProblem) -> str | None:
    """Return why the tensor-core kernels do not support the problem's epilogue, or None."""
    if problem.epilogue is None:
        return None
    if problem.scale_type == INT32:
        return f"epilogues are computed in floats; {problem.a.dtype} x {problem.b.dtype} accumulates in int32"
    for matrix in problem.epilogue.matrices:
        if matrix.dtype not in INPUTS:
            return f"an input of the epilogue is {matrix.dtype}; this kernel takes {', '.join(map(str, INPUTS))}"
    return None


def why_not_second(problem: GemmProblem) -> str | None:
    """Return why the tensor-core kernels do not support a gated epilogue, or None."""
    if problem.epilogue is None or (second := problem.epilogue.second) is None:
        return None
    if not problem.d.is_row_major:
        return "the result is column-major; this kernel writes gated activations row-major: give a row-major out"
    layouts = [(x.dtype, x.row_stride, x.col_stride, x.batch_strides) for x in (problem.b, second)]
    return None if layouts[0] == layouts[1] else "the two B of the gated activation differ in type or strides"


def why_not_scales(problem: GemmProblem) -> str | None:
    """Return why the tensor-core kernels do not take the problem's scales by blocks, or None."""
    if problem.epilogue is None or (scales := problem.epilogue.scales) is None:
        return None
    if not problem.a.dtype.is_float8:
        return f"A and B are {problem.a.dtype} and {problem.b.dtype}; 8-bit floats have scales by blocks"
    if problem.batch:
        return "products with scales by blocks have no batch"
    for name, matrix in scales.operands().items():
        if matrix.dtype != FLOAT32:
            return f"{name} is {matrix.dtype}; scales by blocks are float32"
    return None


def num_b_of(epilogue: Epilogue | None) -> int:
    """Return the number of B operands: 2 for a gated epilogue."""
    return 1 if epilogue is None or epilogue.second is None else 2


def aligned_with_second(problem: GemmProblem) -> GemmProblem:
    """Return the problem with the alignment of B reduced to that of both B."""
    if problem.epilogue is None or (second := problem.epilogue.second) is None:
        return problem
    alignment = math.gcd(problem.b.alignment, second.alignment)
    return dataclasses.replace(problem, b=dataclasses.replace(problem.b, alignment=alignment))


def epilogue_signature(epilogue: Epilogue | None, *, clears: bool = False) -> Signature:
    """Return the epilogue's part of a signature.

    Parameters
    ----------
    epilogue : Epilogue or None
        The epilogue, whose matrices are oriented like the kernel's D.
    clears : bool
        Whether the kernel clears the absolute maximum itself, unless it is of several launches.
    """
    if epilogue is None:
        return ()
    inputs = " ".join(f"{matrix.dtype.name}:{''.join(_marks(matrix))}" for matrix in epilogue.matrices)
    absmax = ((ABSMAX, CLEARED if clears and not epilogue.raises else "yes"),) if epilogue.absmax else ()
    scales = epilogue.scales.signature() if epilogue.scales is not None else ()
    return (("epilogue", epilogue.expression.text), ("inputs", inputs), *absmax, *scales)


def epilogue_params(epilogue: Epilogue | None, batch: int, dtype: DType) -> tuple[Param, ...]:
    """Return the parameters: matrices (M, N, L) with their dynamic strides, numbers of `dtype`, absolute maximum."""
    if epilogue is None:
        return ()
    params: list[Param] = []
    for name, matrix in epilogue.inputs().items():
        strides = zip((matrix.row_stride, matrix.col_stride), _marks(matrix), strict=True)
        free = tuple(stride for stride, mark in strides if mark == _ANY)
        further = (matrix.batch_strides or (0,))[0]
        params.append(TensorParam(name, (matrix.rows, matrix.cols, batch), (*free, further)))
    return (*params, *number_params(epilogue, dtype), *absmax_params(epilogue))


def absmax_params(epilogue: Epilogue) -> tuple[Param, ...]:
    """Return the parameter of the absolute maximum, if the epilogue has one."""
    return (TensorParam(ABSMAX, (), ()),) if epilogue.absmax else ()


def _marks(matrix: StridedMatrix) -> tuple[str, str]:
    """Return the marks of both strides; the stride of a single row or column is unused."""
    row, col = (
        _NONE if extent <= 1 or not stride else _UNIT if stride == 1 else _ANY
        for extent, stride in ((matrix.rows, matrix.row_stride), (matrix.cols, matrix.col_stride))
    )
    steps = (matrix.row_stride if row != _NONE else 0, *matrix.batch_strides)
    paired = matrix.cols % 2 == 0 and all(step % 2 == 0 for step in steps)
    if col == _UNIT and paired and matrix.alignment % (2 * matrix.dtype.itemsize) == 0:
        col = PAIRS
    return row, col
