"""The public function for grouped products: its plan, its call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Never

from gemmule.core.grouped_problem import MATRICES, OFFSETS
from gemmule.runtime.stream import stream_handle

from .calls.grouped_calls import is_name, multiply_groups, replay_by, shapes_of
from .planning import functions as plans
from .planning.grouped_products import plan_groups
from .planning.plan import Plan
from .validation.grouped_product import GroupedArguments
from .validation.rules import unknown_argument


def _plan(*operands: Any, chip: str | None, **options: Any) -> Plan:
    return plan_groups(GroupedArguments(*operands, **options), chip)


@plans.planned_by(_plan)
def grouped_gemm(
    a: Any,
    b: Any,
    /,
    offsets: Any = None,
    *,
    matrices: Any = None,
    bias: Any = None,
    epilogue: Any = None,
    epilogue_args: Mapping[str, float] | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    precision: str | None = None,
    stream: Any = None,
    executor: str | None = None,
    **unknown: Never,
) -> Any:
    """Multiply the groups of a matrix, stored one after another, each with a matrix of its own.

    `offsets` is read on the device: nothing waits for it. The number of dimensions says what is divided:

    - a (m, k), b (groups, k, n): groups of rows, as of the tokens of each expert. The result is (m, n).
    - a (groups, m, k), b (k, n): groups of columns. The result is (m, n).
    - a (m, k), b (k, n): groups of k, as for the gradients of weights. The result is (groups, m, n).
    - a (groups, m, k), b (groups, k, n), without offsets: `matmul`.

    Rows or columns beyond the last offset belong to no group, and are zero in the result, whatever the operands
    hold there; a group without k is zero. Offsets on a GPU are not checked: past the end they are cut off;
    where they decrease, the result is undefined, and nothing beyond an operand is read or written.

    Parameters
    ----------
    a, b : array
        Operands, as of `matmul`. On a GPU: float32, contiguous along a dimension; on a Hopper one also float16,
        bfloat16 or, contiguous along k, 8-bit floats, with rows or columns of whole 16 bytes, where the divided
        dimension is not the contiguous one of `a` or `b`.
    offsets : array of int32, shape (groups,), optional
        End of each group, without a leading 0, on the device of the operands: not decreasing, up to the extent of
        what is divided.
    matrices : array of int32, shape (m,), optional
        Instead of offsets, for few rows: the matrix of `b` that each row of `a` is multiplied by, read on the device.
        On a GPU a row whose number names no matrix is zero, as beyond the last offset. There is no bias and no scale
        then, and no float32 on a GPU.
    bias : array, shape (groups, n), optional
        Bias of the rows of each group, for groups of rows only; 2 n columns for a gated epilogue.
    epilogue : str or callable, optional
        Epilogue, as in `gemm`, of groups of rows only: a name such as ``'relu'``, a function of the product, or a gated
        activation such as ``'swiglu'`` (on a GPU not of float32), for which `b` has the columns of the gates, then
        those of up.
    epilogue_args : mapping of str to number, optional
        Numbers by the names of the function's further parameters.
    scale_a, scale_b : array of float32 or float8_e8m0fnu, optional
        Scales of groups of rows of 8-bit floats, both or none: of one element, or one for each row of `a`, of shape
        (m, 1), and for each column of each matrix of `b`, (groups, 1, n), or each matrix, (groups, 1, 1). The result
        is ``(scale_a * a) @ (scale_b * b) + bias`` of each group, bfloat16 by default, without an epilogue;
        float8_e8m0fnu is converted first.
    out : array, optional
        Array for the result, row-major; it shares no memory with the operands.
    out_dtype : dtype or str, optional
        Element type of the result: by default that of the operands, and bfloat16 with scales. On a GPU it may be
        float32, and of float32 operands float16 or bfloat16; of 8-bit floats it is of 16 or 32 bits there, so that
        without scales it must be given.
    precision : {'ieee', 'float8'}, optional
        ``'float8'`` for 8-bit floats on a GPU, as of `matmul`.
    stream, executor
        As of `matmul`; host arrays are multiplied on the host or the virtual GPU.

    Returns
    -------
    array
        `out`, or a new array.

    Raises
    ------
    ShapeError, DTypeError, OverlapError, ArgumentError
        As of `matmul`, and if offsets on the host decrease or go past the end, or a number there names no matrix.
    UnsupportedError
        If the GPU, a type or a layout does not suit.

    Examples
    --------
    >>> import numpy as np, gemmule as gm
    >>> offsets = np.array([1, 3], np.int32)
    >>> gm.grouped_gemm(np.ones((3, 2)), np.array([[[1.0], [1.0]], [[5.0], [5.0]]]), offsets)
    array([[ 2.],
           [10.],
           [10.]])
    """
    if unknown:
        from .functions import gemm

        raise unknown_argument(grouped_gemm, unknown, gemm)
    role, numbers = (OFFSETS, offsets) if matrices is None else (MATRICES, matrices)
    options = ("grouped_gemm", role, out_dtype, epilogue, precision)
    inputs = tuple([x for x in (a, b, numbers, bias, scale_a, scale_b) if x is not None])
    shapes: tuple[Any, ...] = ()
    # Arguments without a hash, or outside the key, are checked first.
    if executor is scale_a is scale_b is None and (offsets is None or matrices is None) and all(map(is_name, options)):
        shapes = shapes_of(options, inputs, out)
        if (replay := replay_by(shapes)) is not None:
            # The offsets, or numbers of matrices, have the place of C.
            result = replay(a, b, out, numbers, bias, None if stream is None else stream_handle(stream))
            if result is not None:
                return result
    call = GroupedArguments(
        a, b, offsets, bias, epilogue, out, out_dtype, precision, stream, executor, scale_a, scale_b, matrices,
        epilogue_args,
    )  # fmt: skip
    return multiply_groups(call, options, inputs, shapes)
