"""The public function for products of 8-bit floats with scales: its checks, its plan, its call."""

from __future__ import annotations

import math
from typing import Any, Never

from gemmule.core.block_scales import BLOCK, SCALES
from gemmule.core.dtype import numpy_dtype
from gemmule.core.errors import ArgumentError, NoKernelError, ShapeError, UnsupportedError

from .calls.dispatcher import product
from .calls.grouped_calls import is_name
from .calls.scaled_calls import scaled_product
from .epilogues.scaling import Scaling
from .planning import functions as plans
from .planning.functions import plan_to_read
from .planning.plan import Plan
from .validation.product import ProductArguments
from .validation.rules import dtype_name, unknown_argument
from .validation.scales import as_read, check_factors, name_of

#: The kernel that takes scales by blocks.
_BLOCK_KERNEL = "hopper_gemm"
#: Block extents of scales that do not depend on K: of the whole matrix, and of each row or column.
_TENSOR, _LINE = "tensor", "line"


def _shape(x: Any, role: str) -> tuple[int, ...]:
    shape = getattr(x, "shape", None)
    if shape is None:
        raise ArgumentError(f"{role} is of type {type(x).__name__}, not an array; pass an array of float32")
    return tuple(shape)


def _form(role: str, scale: Any, lines: int, k: int) -> str | int:
    """Return the form of scales: for everything, each line, or blocks of 128 of K and so many lines."""
    shape = _shape(scale, role)
    if math.prod(shape) == 1 and len(shape) <= 2:
        return _TENSOR
    k_blocks = -(-k // BLOCK)
    oriented = shape if role == SCALES[0] else shape[::-1]
    shapes = (-(-lines // BLOCK), k_blocks), (lines, k_blocks), (lines, 1)
    forms: tuple[str | int, ...] = (BLOCK, 1, _LINE)
    by_shape: dict[tuple[int, ...], str | int] = dict(zip(shapes, forms, strict=True))
    found = by_shape.get(oriented)
    if found is None:
        uses = "blocks of 128 x 128", "blocks of 128 of k", f"each {'row of a' if role == SCALES[0] else 'column of b'}"
        # Up to 128 of k, or with one line, shapes coincide: the last is taken, as above.
        use_of = {x if role == SCALES[0] else x[::-1]: use for x, use in zip(shapes, uses, strict=True)}
        *others, last = (f"{x} for {use}" for x, use in reversed(use_of.items()))
        given = f"{', '.join(others)}, or {last}" if others else f"or {last}"
        raise ShapeError(f"{role} has shape {shape}; give one element, {given}")
    return found


def _arguments(
    a: Any, b: Any, scale_a: Any, scale_b: Any, *, bias: Any, scale_result: Any, **options: Any
) -> ProductArguments:
    """Hold the arguments against each other; return those of the product that computes it."""
    if options["out"] is None and options["out_dtype"] is None:
        options["out_dtype"] = "bfloat16"
    check_factors(a=a, b=b)
    for role, x in (("a", a), ("b", b)):
        if len(x.shape) != 2:
            raise ShapeError(f"{role} has shape {tuple(x.shape)}; scaled products are of matrices: reshape it")
    (m, k), (inner, n) = a.shape, b.shape
    if k != inner:
        raise ShapeError(f"a has {k} columns and b {inner} rows; they must be equal")
    forms = [_form(role, x, lines, k) for role, x, lines in zip(SCALES, (scale_a, scale_b), (m, n), strict=True)]
    by_blocks = any(isinstance(form, int) for form in forms)
    blocks = tuple(1 if form in (_LINE, 1) else BLOCK for form in forms) if by_blocks else None
    given = [as_read(role, x) for role, x in zip(SCALES, (scale_a, scale_b), strict=True)]
    scaled = bool(m and n and k)
    arrays = dict(zip(SCALES, given, strict=True)) if scaled else {}
    if scale_result is not None:
        if math.prod(_shape(scale_result, "scale_result")) != 1 or name_of(scale_result) != "float32":
            raise ShapeError(
                f"scale_result is {name_of(scale_result)} of shape {tuple(scale_result.shape)}; give one element of "
                "float32"
            )
        arrays["scale_result"] = scale_result
    if bias is not None and _shape(bias, "bias") not in ((n,), (1, n)):
        raise ShapeError(f"bias has shape {_shape(bias, 'bias')}; give one value for each column, ({n},)")
    scaling = Scaling(blocks if scaled else None, scaled, bias is not None, scale_result is not None)  # type: ignore[arg-type]
    return ProductArguments(
        "gemm", a, b, alpha=1.0, beta=0.0, bias=bias, precision="float8", epilogue=scaling, epilogue_args=arrays,
        **options,
    )  # fmt: skip


def _plan(*operands: Any, chip: str | None, **options: Any) -> Plan:
    given = _arguments(*operands, **options)
    try:
        return plan_to_read(given, chip=chip)
    except NoKernelError as error:
        raise _unsupported(error, given) from None


def _unsupported(error: NoKernelError, given: ProductArguments) -> UnsupportedError:
    """Return the error of a product that no kernel takes: with scales by blocks the rule of the kernel of these."""
    if given.epilogue.blocks is None:
        return error
    name = dtype_name(given.out_dtype, "out_dtype") if given.out is None else name_of(given.out)
    columns = given.b.shape[1]
    row_bytes = columns * numpy_dtype(name).itemsize
    if any(reason.startswith("wgmma is") for _, reason in error.refused):
        return UnsupportedError(
            "scales by blocks need a Hopper GPU, and this is none; give scales of rows and columns, or of everything"
        )
    rows = f"it has {columns} of {name}, {row_bytes} bytes"
    # The kernel may refuse strides of A first, though these could be repacked if D's could.
    reason = f" ({_BLOCK_KERNEL}: {dict(error.refused).get(_BLOCK_KERNEL, 'not registered')})"
    return UnsupportedError(
        f"scales by blocks need rows of the result of whole 16 bytes; {rows}: give scales of rows "
        "and columns, or pad b and scale_b with columns and slice the result" + ("" if row_bytes % 16 else reason)
    )


@plans.planned_by(_plan)
def scaled_gemm(
    a: Any,
    b: Any,
    /,
    scale_a: Any,
    scale_b: Any,
    *,
    bias: Any = None,
    scale_result: Any = None,
    absmax: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    stream: Any = None,
    executor: str | None = None,
    **unknown: Never,
) -> Any:
    """Multiply matrices of 8-bit floats, each with scales: ``(scale_a * a) @ (scale_b * b) + bias``.

    The shapes of the scales say what they are for; both operands may differ in that.

    Tensor cores accumulate 128 elements of K, as with ``precision="float8"`` of `matmul`; these sums are scaled and
    added in float32.

    Parameters
    ----------
    a : array of float8_e4m3fn or float8_e5m2, shape (m, k)
        First operand. Row-major operands are fastest; others are transposed first.
    b : array of float8_e4m3fn or float8_e5m2, shape (k, n)
        Second operand, fastest column-major, as the transpose of weights (n, k).
    scale_a : array of float32 or float8_e8m0fnu
        Scales of `a`: of one element; of shape (m, 1), one for each row; (m, ceil(k / 128)), for each 128 of a row; or
        (ceil(m / 128), ceil(k / 128)), for blocks of 128 x 128. Any strides; float8_e8m0fnu is converted first.
    scale_b : array of float32 or float8_e8m0fnu
        Scales of `b`: of one element, of shape (1, n), (ceil(k / 128), n) or (ceil(k / 128), ceil(n / 128)).
    bias : array, shape (n,), optional
        Floats that are added to each row.
    scale_result : array of float32, one element, optional
        Factor of the sum, bias included, before it is rounded: for results of 8 bits.
    absmax : array of one float32, optional
        Overwritten with the largest absolute value of the result before it is rounded.
    out : array, shape (m, n), optional
        Array for the result.
    out_dtype : dtype or str, optional
        Element type of the result: bfloat16 by default, float16, float32, float8_e4m3fn or float8_e5m2. 8-bit results
        saturate.
    stream, executor
        As of `matmul`.

    Returns
    -------
    array, shape (m, n)
        `out`, or a new array.

    Raises
    ------
    ShapeError, DTypeError, OverlapError, ArgumentError
        If the arguments do not fit together.
    UnsupportedError
        If the GPU, a type or a layout does not suit: scales by blocks need a Hopper GPU, and rows of the result of
        whole 16 bytes.

    Examples
    --------
    >>> import ml_dtypes, numpy as np, gemmule as gm
    >>> a, b = (np.ones(shape, ml_dtypes.float8_e4m3fn) for shape in ((2, 16), (16, 3)))
    >>> rows, columns = np.array([[1.0], [2.0]], np.float32), np.array([[1.0, 0.5, 0.25]], np.float32)
    >>> gm.scaled_gemm(a, b, rows, columns, out_dtype="float32")
    array([[16.,  8.,  4.],
           [32., 16.,  8.]], dtype=float32)
    """
    if unknown:
        raise unknown_argument(scaled_gemm, unknown)
    options = {"absmax": absmax, "out": out, "out_dtype": out_dtype, "stream": stream, "executor": executor}
    given = None

    def arguments() -> ProductArguments:
        nonlocal given
        given = _arguments(a, b, scale_a, scale_b, bias=bias, scale_result=scale_result, **options)
        return given

    try:
        if absmax is stream is executor is None and is_name(out_dtype):
            arrays = (a, b, *[x for x in (scale_a, scale_b, scale_result, bias) if x is not None])
            key = "scaled_gemm", out_dtype, scale_result is None, bias is None
            return scaled_product(arrays, out, key, arguments)
        return product(arguments())
    except NoKernelError as error:
        assert given is not None
        raise _unsupported(error, given) from None
