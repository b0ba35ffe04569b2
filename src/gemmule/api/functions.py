"""Products and transposes of arrays: check, choose, run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isqrt
from typing import Any, Never

from numpy import dtype as dtype_of
from numpy import ndarray

from gemmule.host.block_product import NO_THREAD
from gemmule.host.gemm import MOST_CLEARED, WITHOUT_ERRORS, run_without_errors
from gemmule.host.product import K_STEP
from gemmule.runtime.arrays.descriptions import executor_in_environment
from gemmule.runtime.stream import stream_handle

from .calls.call_cache import CALLS
from .calls.dispatcher import LAST_TWO, product, transposed
from .planning import functions as plans
from .planning.transposes import axes_as_given, last_two_exchanged
from .validation.product import ProductArguments
from .validation.rules import unknown_argument

__all__ = ["gemm", "matmul", "matrix_transpose", "transpose"]

_replays, _find = CALLS.by_identity, CALLS.by_identity.get
_FLOAT32, _FLOAT64 = dtype_of("float32"), dtype_of("float64")
_multiply_of, _executor, _dot = CALLS.by_layout.get, executor_in_environment, ndarray.dot
#: Side of the largest square that `_is_small`.
_SIDE = isqrt(MOST_CLEARED)


def _is_small(m: int, n: int, k: int) -> bool:
    """Return whether `numpy.ndarray.dot` begins sooner than `numpy.matmul` and starts no thread."""
    return k <= K_STEP and m * n <= MOST_CLEARED and m * n * k < NO_THREAD


@plans.attached(plans.matmul)
def matmul(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    out_dtype: Any = None,
    precision: str | None = None,
    stream: Any = None,
    executor: str | None = None,
    **unknown: Never,
) -> Any:
    """Multiply two arrays, by the rules of the array API standard's matmul.

    int8 times int8 wraps: the result is int8, modulo 256. `gemm` gives int32, and so does ``out_dtype="int32"``.
    bool times bool is a logical or of ands, in any ``out_dtype``; convert to int8 to count.
    ``matmul.plan(a, b, ...)`` takes the same arguments and returns the plan: kernel, config, predicted time.

    Parameters
    ----------
    a : array, shape (..., m, k) or (k,)
        First operand, of NumPy, PyTorch, CuPy, JAX or another library that supports DLPack; any strides. On a GPU:
        float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8, int32, complex64 or complex128; on the
        host also every other number of NumPy.
    b : array, shape (..., k, n) or (k,)
        Second operand, of the same library and on the same device. Batch dimensions are broadcast.
    out : array, shape (..., m, n), optional
        Array for the result; it must not share memory with `a` or `b`. As in NumPy (casting ``'same_kind'``), its
        floats may be narrower than the operands': float64 is rounded into a float32 `out`. Floats into integers are
        refused.
    out_dtype : dtype or str, optional
        Element type of the result; the default is the promoted type of `a` and `b`. It does not change the
        accumulators, which are float32 for floats of up to 32 bits, float64, or int32, and are rounded once: to
        accumulate float32 arrays in float64, convert one with ``astype`` first. 8-bit floats saturate. Integers wrap,
        into an `out` or `out_dtype` of another integer type too: an int8 sum of -1 is 255 in uint8. int64 times uint64,
        for which NumPy has no common integer, is float64 by default, as in NumPy; written as integers it is exact
        modulo 2**64, or the size of that type.
    precision : {'ieee', 'tf32', 'bf16x6', 'ozaki', 'ozaki-14', 'ozaki-15', 'ozaki-16', 'float8'}, optional
        Arithmetic that a kernel may use where it is faster; the default is ``'ieee'``. docs/precision.md has the error
        bounds. ``'tf32'``: float32 inputs are rounded to TF32. ``'bf16x6'``: float32 by six bfloat16 GEMMs, as accurate
        for magnitudes from 2**-110 to 2**48; infinities become NaN. ``'ozaki'``: float32, float64 and complex types by
        emulation, where a test on the GPU proves the error bound of ``'ieee'``, else as ``'ieee'``;
        ``matmul.plan(...).decision()`` says which. ``'ozaki-14'`` to ``'ozaki-16'``: float64 by Ozaki scheme II with
        that many moduli, without the test: numbers much smaller than others of their row of `a` or column of `b` have
        fewer bits, and infinities become NaN. ``'float8'``: 8-bit floats are accumulated over 128 elements of K with 13
        fraction bits.
    stream : int or stream, optional
        Stream for arrays on a GPU; by default the current one of the arrays' library. Inputs must be ready on it.
    executor : {'gpu', 'cpu', 'vgpu'}, optional
        Executor of host arrays; ``'vgpu'`` is the virtual GPU, which runs the GPU's kernels on the CPU. The
        default is the fastest by measured rates, shown by ``matmul.plan``. Arrays on a GPU stay there.

    Returns
    -------
    array, shape (..., m, n)
        `out`, or a new array of the library and on the device of the operands. A 1-D operand's dimension is left out.
        On a GPU the call is asynchronous.

    Raises
    ------
    ShapeError
        If the shapes do not match, or an operand has no dimension.
    DTypeError
        If an element type is not supported, or there is no common one.
    OverlapError
        If `out` shares memory with an operand.
    ArgumentError
        If an argument has an invalid value, or libraries or devices differ.
    HostMemoryError
        If the result does not fit into the host's memory.

    Examples
    --------
    >>> import numpy as np, gemmule as gm
    >>> gm.matmul(np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([[1., 2.],
           [3., 4.]])
    """
    if unknown:
        raise unknown_argument(matmul, unknown, gemm)
    if type(a) is type(b) is ndarray and out is out_dtype is precision is stream is executor is None:
        dtype = a.dtype
        try:
            # Small matrices need no decision; to look one up takes as long as to multiply 16 x 16.
            if (dtype is _FLOAT64 or dtype is _FLOAT32) and dtype is b.dtype and a.ndim == b.ndim == 2:
                m, k = a.shape
                terms, n = b.shape
                # A vector that is strided has other sums, and so has a longer K of strided matrices, which a plan cuts.
                # The sides are compared first: products of integers take a tenth of what is left of a call.
                if (
                    1 < k == terms
                    and m > 1 < n
                    and ((m <= _SIDE >= n and k <= _SIDE) or _is_small(m, n, k))
                    and _executor() is None
                ):
                    try:
                        return run_without_errors(_dot, a, b)
                    except RuntimeError:
                        return WITHOUT_ERRORS.run(_dot, a, b)
            # Different types are not cached.
            multiply = _multiply_of((_executor(), dtype, b.dtype, a.shape, b.shape, a.strides, b.strides))
            if multiply is not None:
                try:
                    return run_without_errors(multiply, a, b)
                except RuntimeError:
                    return WITHOUT_ERRORS.run(multiply, a, b)
        except MemoryError:
            # A plan frees cached memory, or its error names what does not fit.
            pass
    at = None
    if _replays and out_dtype is precision is executor is None:
        at = (id(a), id(b), id(out))
        replay = _find(at)
        if replay is not None:
            result = replay(a, b, out) if stream is None else replay(a, b, out, None, None, stream_handle(stream))
            if result is not None:
                return result
    return product(ProductArguments("matmul", a, b, None, 1, 0, out, out_dtype, precision, stream, executor), at)


@plans.attached(plans.gemm)
def gemm(
    a: Any,
    b: Any,
    /,
    c: Any = None,
    *,
    alpha: Any = 1.0,
    beta: Any = None,
    bias: Any = None,
    epilogue: Callable[..., Any] | str | None = None,
    epilogue_args: Mapping[str, Any] | None = None,
    gated: Any = None,
    absmax: Any = None,
    conj_a: bool = False,
    conj_b: bool = False,
    out: Any = None,
    out_dtype: Any = None,
    precision: str | None = None,
    stream: Any = None,
    executor: str | None = None,
    **unknown: Never,
) -> Any:
    """Compute ``alpha * a @ b + beta * c``, by the rules of BLAS, with a bias and a function of each element.

    int8 times int8 is int32; `matmul`, whose result is int8, wraps.

    With ``beta=0``, `c` is not read, so that its NaNs do not spread; with ``alpha=0``, `a` and `b` are not. `beta`
    defaults to 0, and a `c` that nothing would read is refused then.

    Parameters
    ----------
    a, b : array
        Operands, as of `matmul`.
    c : array, shape of the result, optional
        Matrix to add, of any strides and a type that the result or the accumulators hold; required if `beta` is not 0.
        Without `beta`, `epilogue` must have a parameter ``c``.
    alpha, beta : number
        Scalars, rounded to the accumulator's type; integers where the result is. The defaults are 1 and 0. 0-d
        arrays and tensors count as numbers, if they are not on a GPU, where reading them would synchronise.
    bias : array, optional
        Floats that broadcast to the result: of shape (n,) or (1, n) one for each column, of shape (m, 1) one for each
        row. It is added before `epilogue`, unless that is a function with a parameter ``bias``.
    epilogue : function or str, optional
        ``'relu'``, ``'gelu'``, ``'gelu_tanh'``, ``'silu'``, or a gated activation: ``'swiglu'``, ``'geglu'``,
        ``'geglu_tanh'``, ``'reglu'``.
        Function of each element, applied before rounding. It is traced with symbolic values and compiled into the
        kernel: its first parameter is ``alpha * a @ b + beta * c``; parameters named ``bias`` and ``c`` are these
        arrays (then `beta` must be 0), all others are in `epilogue_args`.
    epilogue_args : mapping of str to array or number, optional
        Further inputs of the function: arrays of floats that broadcast to the result, or numbers. Other values of
        these numbers do not recompile the kernel.
    gated : {'halves', 'pairs'} or array, optional
        Gated epilogue: with a `b` of shape (..., k, 2 * n), column j of the n of the result is a function of two
        columns of the product, the gate and the other. ``'halves'``: those are j and n + j; ``'pairs'``: 2 * j and
        2 * j + 1. Or `b` is (..., k, n), for the gates, and this is the matrix for the others, of its shape and type.
        The function has two parameters for them, ``lambda gate, up: gm.epilogue.silu(gate) * up``; `bias` has 2 * n
        values. The named forms imply ``'halves'``. `beta` must be 0.
    absmax : array of one float32, optional
        Overwritten with the largest absolute value of the result before it is rounded to its type: NaN if one is, 0 of
        an empty result. Not for float64.
    conj_a, conj_b : bool, optional
        Whether to multiply by the complex conjugate of `a`, or of `b`, which a GPU's kernels read in place: with
        ``a.T``, BLAS's ``transa="C"``. PyTorch's lazily conjugated tensors need no flag.
    out : array, optional
        Array for the result; it may be `c` itself, and must not share memory with `a` or `b`.
    out_dtype : dtype or str, optional
        Element type of the result. The default is the promoted type, and int32 for int8 times int8. Integers wrap, and
        int64 times uint64 is float64, as of `matmul`.
    precision, stream, executor
        As of `matmul`.

    Returns
    -------
    array
        As of `matmul`.

    Raises
    ------
    ShapeError, DTypeError, OverlapError, ArgumentError
        As of `matmul`.

    Examples
    --------
    >>> import numpy as np, gemmule as gm
    >>> gm.gemm(np.eye(2), np.eye(2), np.ones((2, 2)), alpha=3.0, beta=1.0)
    array([[4., 1.],
           [1., 4.]])
    >>> gm.gemm(np.eye(2), np.eye(2), bias=np.array([-2.0, 2.0]), epilogue=lambda acc: gm.epilogue.relu(acc))
    array([[0., 2.],
           [0., 3.]])
    >>> gm.gemm(np.eye(2), np.array([[1.0, -1.0, 3.0, 4.0], [2.0, 2.0, 5.0, 6.0]]), epilogue="reglu")
    array([[ 3.,  0.],
           [10., 12.]])
    """
    if unknown:
        raise unknown_argument(gemm, unknown)
    at: tuple[Any, ...] | None = None
    if beta is None and c is None:
        beta = 0.0
    if (
        _replays
        and out_dtype is precision is executor is None
        and epilogue_args is gated is absmax is None
        # Equal numbers of these types have the same meaning.
        and (type(alpha) is float or type(alpha) is int)
        and (type(beta) is float or type(beta) is int)
        and (epilogue is None or type(epilogue) is str)
        and not (conj_a or conj_b)
    ):
        at = (id(a), id(b), id(out), alpha, beta, epilogue)
        if not c is bias is None:
            at = (*at, id(c), id(bias))
        replay = _find(at)
        if replay is not None:
            result = replay(a, b, out, c, bias, None if stream is None else stream_handle(stream))
            if result is not None:
                return result
    return product(
        ProductArguments(
            "gemm", a, b, c, alpha, beta, out, out_dtype, precision, stream, executor, bias, epilogue, epilogue_args,
            gated, absmax, conj_a, conj_b,
        ),
        at,
    )  # fmt: skip


@plans.attached(plans.transpose)
def transpose(
    x: Any,
    /,
    axes: Sequence[int] | None = None,
    *,
    out: Any = None,
    stream: Any = None,
    executor: str | None = None,
    **unknown: Never,
) -> Any:
    """Return an array with its axes permuted, as a new C-contiguous array, not a view.

    Parameters
    ----------
    x : array
        Source, of any library that `matmul` takes; any strides. On a GPU, elements of 1, 2, 4, 8 or 16 bytes.
    axes : sequence of int, optional
        Permutation of the axes: axis i of the result is axis ``axes[i]`` of `x`; reversed by default.
    out : array, optional
        Array for the result, any strides. It shares no memory with `x`, or is `x` itself: two axes of equal length
        can then change places, on a GPU if one of the two is contiguous.
    stream : int or stream, optional
        As of `matmul`.
    executor : {'gpu', 'cpu', 'vgpu'}, optional
        Executor: by default that of the array's device. ``'vgpu'`` takes host arrays to the virtual GPU.

    Returns
    -------
    array
        `out`, or a new array of the library and on the device of `x`.

    Raises
    ------
    ArgumentError, ShapeError, DTypeError, OverlapError
        If `axes` or `out` do not fit.

    Examples
    --------
    >>> import numpy as np, gemmule as gm
    >>> gm.transpose(np.arange(6).reshape(2, 3))
    array([[0, 3],
           [1, 4],
           [2, 5]])
    """
    if unknown:
        raise unknown_argument(transpose, unknown)
    return transposed(x, axes, axes_as_given(axes), out, stream, executor)


@plans.attached(plans.matrix_transpose)
def matrix_transpose(
    x: Any, /, *, out: Any = None, stream: Any = None, executor: str | None = None, **unknown: Never
) -> Any:
    """Exchange the last two dimensions of an array, as a new C-contiguous array.

    Parameters
    ----------
    x : array, shape (..., m, n)
        Source, as of `transpose`.
    out : array, shape (..., n, m), optional
        Array for the result.
    stream, executor
        As of `transpose`.

    Returns
    -------
    array, shape (..., n, m)
        `out`, or a new array.

    Raises
    ------
    ShapeError
        If `x` has fewer than two dimensions.

    Examples
    --------
    >>> import numpy as np, gemmule as gm
    >>> gm.matrix_transpose(np.array([[1, 2, 3]]))
    array([[1],
           [2],
           [3]])
    """
    if unknown:
        raise unknown_argument(matrix_transpose, unknown)
    return transposed(x, LAST_TWO, last_two_exchanged, out, stream, executor)
