"""The public function for quantisation: its checks, its plan, its call."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, Never

import numpy as np

from gemmule.core.chip import Chip
from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import dtype_named, numpy_dtype, opaque_dtype
from gemmule.core.errors import ArgumentError, DTypeError, ShapeError, shown
from gemmule.core.layout import StridedMatrix
from gemmule.core.name_suggestions import remedy_for
from gemmule.core.quantize_problem import BY, QuantizeProblem, scales_shape
from gemmule.dispatch.choices.choice_cache import generation
from gemmule.runtime.arrays import ArrayView
from gemmule.runtime.arrays.view import MOST_ALIGNED, HostArray
from gemmule.runtime.device import get_device

from .calls.quantize_calls import quantized
from .planning import functions as plans
from .planning.choice import check_device_arrays, choice_on, choice_on_chip, only_on_host, virtual_choice
from .planning.device_products import problem_queue
from .planning.named_chips import device_views, fields_for_chip, target_of
from .planning.plan import Execution, Plan, kernel_fields
from .planning.vgpu_products import as_device_view, copy_again
from .validation.operands import Operands, gather
from .validation.product import host_array
from .validation.rules import dtype_name, unknown_argument
from .validation.scales import FLOAT8, QUANTIZED

#: Types of scales, and what they are stored as.
_SCALES = {"float32": "float32", "float8_e8m0fnu": "uint8"}
#: Array libraries with scales by exponents.
_WITH_EXPONENTS = ("numpy", "torch", "jax")


@dataclass(frozen=True)
class _Quantization:
    """A call, checked."""

    operands: Operands
    by: str
    dtype: str
    scale_dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of x: rows and columns, with how many matrices in front for a stack."""
        return self.operands.views["x"].shape

    @property
    def scales_shape(self) -> tuple[int, int]:
        """Rows of the scales, those of all matrices, and columns."""
        rows, cols = scales_shape(self.by, *self.shape[-2:])
        return math.prod(self.shape[:-2]) * rows, cols

    def parts(self, x: ArrayView) -> tuple[int, int]:
        """Return how many launches quantise `x`, and the rows of each: a stack of evenly spaced rows is a matrix."""
        count, rows = math.prod(self.shape[:-2]), self.shape[-2]
        if self.by != "tensor" and (count == 1 or x.strides[0] == rows * x.strides[1]):
            return 1, count * rows
        return count, rows

    def outputs(self, stream: int | None = None) -> tuple[ArrayView, ArrayView, Callable[[], Any]]:
        """Return the memory of the results, the scales' transposed where they are by block, and what gives both."""
        rows, cols = self.scales_shape
        values = self.operands.new(self.shape, self.dtype, stream)
        scales = self.operands.new((cols, rows), _SCALES[self.scale_dtype], stream)

        def finish() -> tuple[Any, Any]:
            return values.finish(), self.as_given(scales.finish())

        return values.view, scales.view, finish

    def as_given(self, scales: Any) -> Any:
        """Return scales as the caller gets them: a row for each row, by block with the columns contiguous."""
        if self.scale_dtype != "float32":
            scales = _as_exponents(scales)
        # One column has the strides of a row-major matrix, which torch._scaled_mm requires.
        by_columns = scales if self.scales_shape[1] == 1 else scales.T
        return by_columns.reshape(*self.shape[:-2], *scales_shape(self.by, *self.shape[-2:]))

    def problem(self, x: ArrayView, values: ArrayView | None = None) -> QuantizeProblem:
        """Return the problem of each launch, of contiguous results."""
        (count, rows), cols = self.parts(x), self.shape[-1]
        row_stride, col_stride = x.strides[-2:]
        of_rows, of_cols = scales_shape(self.by, rows, cols)
        steps = (x.strides[0] * x.itemsize, rows * cols) if count > 1 else (0, 0)
        addresses = x.address, 0 if values is None else values.address
        of_x, of_q = (math.gcd(MOST_ALIGNED, *both) for both in zip(addresses, steps, strict=True))
        scales = opaque_dtype(1) if self.scale_dtype != "float32" else dtype_named("float32")
        return QuantizeProblem(
            self.by,
            StridedMatrix(dtype_named(x.dtype_name), rows, cols, row_stride, col_stride, (), of_x),
            StridedMatrix(dtype_named(self.dtype), rows, cols, cols, 1, (), of_q),
            StridedMatrix(scales, of_rows, of_cols, 1, self.scales_shape[0], (), scales.itemsize),
        )


def _matrices(
    parts: tuple[int, int], x: HostArray, values: HostArray, scales: HostArray
) -> Iterator[tuple[HostArray, HostArray, HostArray]]:
    """Yield x, the 8-bit floats and the scales of each launch, of the count and rows that `parts` returned."""
    count, rows = parts
    whole, rounded = (one.reshape(count, rows, x.shape[-1]) for one in (x, values))
    for index, of_rows in enumerate(np.split(scales, count) if count else ()):
        yield whole[index], rounded[index], of_rows


def _as_exponents(scales: Any) -> Any:
    """Return an array of bytes as one of float8_e8m0fnu."""
    if type(scales).__module__.startswith("torch"):
        import torch

        return scales.view(torch.float8_e8m0fnu)
    import ml_dtypes

    return scales.view(ml_dtypes.float8_e8m0fnu)


def _checked(x: Any, *, by: Any, dtype: Any, scale_dtype: Any, stream: Any, specs: bool) -> _Quantization:
    if not isinstance(by, str) or by not in BY:
        raise ArgumentError(f"by={shown(by)} is not known; {remedy_for(by, BY)}")
    wanted = dtype_name(dtype, "dtype")
    if wanted not in FLOAT8:
        raise DTypeError(f"dtype={wanted} is not an 8-bit float; choose {' or '.join(FLOAT8)}")
    of_scales = str(getattr(scale_dtype, "__name__", scale_dtype)).removeprefix("torch.")
    if of_scales not in _SCALES:
        raise DTypeError(f"scale_dtype={shown(scale_dtype)} is not known; choose {' or '.join(_SCALES)}")
    operands = gather({"x": x}, stream, specs=specs)
    view = operands.views["x"]
    if of_scales != "float32" and not specs and operands.library.name not in _WITH_EXPONENTS:
        raise DTypeError(f"{operands.library.name} has no {of_scales}; omit scale_dtype, for float32")
    if len(view.shape) not in (2, 3):
        raise ShapeError(f"x has shape {view.shape}; quantisation is of a matrix or a stack of matrices: reshape it")
    if view.dtype_name not in QUANTIZED:
        raise DTypeError(f"x is {view.dtype_name}; quantisation takes {', '.join(QUANTIZED)}: convert it")
    return _Quantization(operands, by, wanted, of_scales)


def _plan(x: Any, *, executor: str | None, chip: str | None = None, **options: Any) -> Plan:
    target = target_of(executor, chip)
    call = _checked(x, **options, specs=target.elsewhere is not None)
    if target.elsewhere is not None:
        return _for_chip(call, target.elsewhere)
    if call.operands.device is not None:
        plan = _on_device(call, target.executor)
    elif target.executor == "vgpu":
        plan = _on_virtual_gpu(call, target.chip)
    else:
        plan = _on_host(call, target.executor)
    return plan.with_refresh(call.operands.views.values(), call.operands.work_stream)


def _planned(call: _Quantization, run: Callable[[], Any], **fields: Any) -> Plan:
    if (us := fields.get("predicted_us")) is not None:
        # A kernel is chosen for one launch, and its time is that of one.
        fields["predicted_us"] = us * math.prod(call.shape[:-1]) / max(fields["problem"].x.rows, 1)
    elements = math.prod(call.shape)
    nbytes = elements * (call.operands.views["x"].itemsize + 1)
    nbytes += math.prod(call.scales_shape) * numpy_dtype(_SCALES[call.scale_dtype]).itemsize
    return Plan(operation="quantize", flop=0, bytes_min=nbytes, run=run, **fields)


def _on_host(call: _Quantization, executor: str | None) -> Plan:
    if executor == "gpu":
        raise only_on_host("host arrays are quantised")
    x = host_array(call.operands.views["x"])

    def run() -> Any:
        from gemmule.host.quantize import quantize

        values, scales, finish = call.outputs()
        parts = math.prod(call.shape[:-2]), call.shape[-2]
        for matrix, *results in _matrices(parts, x, host_array(values), host_array(scales).T):
            quantize(matrix, call.by, *results)
        return finish()

    reason = "executor='cpu' is set" if executor == "cpu" else "the array is in host memory"
    return _planned(call, run, executor="cpu", device="NumPy", kernel="numpy", reason=reason)


def _for_chip(call: _Quantization, chip: Chip) -> Plan:
    from gemmule.dispatch.quantize import choose_quantize

    problem = call.problem(device_views(call.operands.views)["x"])
    return _planned(call, **fields_for_chip(choice_on_chip(choose_quantize, problem, chip), problem, chip))


def _on_virtual_gpu(call: _Quantization, chip: Chip | None) -> Plan:
    from gemmule.dispatch.quantize import choose_quantize
    from gemmule.vgpu.arch import device_name

    given = call.operands.views["x"]
    seen = as_device_view(given)
    problem: Any = call.problem(seen)
    choice = virtual_choice(choose_quantize, problem, chip)

    def run() -> Any:
        from gemmule.vgpu.execute import run_kernel

        copy_again(seen, given)
        values, scales, finish = call.outputs()
        for matrices in _matrices(call.parts(seen), host_array(seen), host_array(values), host_array(scales).T):
            run_kernel(problem, choice, dict(zip(problem.operands(), matrices, strict=True)))
        return finish()

    reason = "executor='vgpu' is set"
    place = {"executor": "vgpu", "device": device_name(), "reason": reason, "chosen_from": choice.source}
    return _planned(call, run, **place, **kernel_fields(choice, problem))


def _on_device(call: _Quantization, executor: str | None) -> Plan:
    # Specs of kernels are loaded where one is chosen.
    from gemmule.dispatch.quantize import choose_quantize

    operands = call.operands
    reason = check_device_arrays(executor)
    assert operands.device is not None
    device, x = get_device(operands.device), operands.views["x"]
    problem = call.problem(x)
    choice = choice_on(choose_quantize, problem, device)
    execution = Execution()

    def run() -> Any:
        stream = operands.work_stream()
        assert stream is not None
        values, scales, finish = call.outputs(stream)
        if math.prod(call.scales_shape):
            queue = problem_queue(choose_quantize, call.problem(x, values), device.ordinal, generation())
            count, rows = call.parts(x)
            execution.queue = queue if count == 1 else None
            # Bytes from each matrix to the next; scales of all have one column behind another.
            steps = x.strides[0] * x.itemsize, rows * call.shape[-1], call.scales_shape[0] // count * scales.itemsize
            for index in range(count):
                places = zip((x, values, scales), steps, strict=True)
                queue(tuple(one.address + index * step for one, step in places), stream)
        operands.keep_until_done(stream, values, scales)
        return finish()

    fields = {"device": device.name, "reason": reason, "execution": execution, **kernel_fields(choice, problem)}
    return _planned(call, run, executor="gpu", **fields)


@plans.planned_by(_plan)
def quantize(
    x: Any,
    /,
    *,
    by: str = "row",
    dtype: Any = "float8_e4m3fn",
    scale_dtype: Any = "float32",
    stream: Any = None,
    executor: str | None = None,
    **unknown: Never,
) -> tuple[Any, Any]:
    """Round a matrix to 8-bit floats, with scales: ``x`` is about ``values * scales``. Of a stack, each matrix.

    The scale of a part is its largest magnitude over the largest number of `dtype`, and 2**-126 at least. Scales of
    ``float8_e8m0fnu`` are rounded up to powers of two. What shares a scale with an infinity or NaN is NaN in ``values *
    scales`` and in products: such a scale is infinite or NaN.

    Parameters
    ----------
    x : array of float32, float16 or bfloat16, shape (m, k) or (groups, m, k)
        The matrix, or a stack of them, as the weights of experts; any strides.
    by : {'row', 'tensor', 'block'}, optional
        Unit of a scale: each row, the whole matrix, or each 128 elements of a row.
    dtype : dtype or str, optional
        float8_e4m3fn or float8_e5m2.
    scale_dtype : dtype or str, optional
        float32 or float8_e8m0fnu.
    stream, executor
        As of `matmul`; host arrays are quantised on the host or the virtual GPU.

    Returns
    -------
    values : array of dtype, of the shape of x
        The 8-bit floats, row-major.
    scales : array of scale_dtype
        Of shape (m, 1), (1, 1) or (m, ceil(k / 128)), as `scaled_gemm` takes them for its first operand; those by block
        are column-major. ``(values.T, scales.T)`` are a second operand and its scales. Of a stack (groups, m, 1) and so
        on: ``values`` and ``scales`` with their last axes exchanged are weights and scales of `grouped_gemm`.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError
        If `x` is no matrix or stack of such floats, or an option is not known.
    UnsupportedError
        If the GPU has no 8-bit floats.

    Examples
    --------
    >>> import numpy as np, gemmule as gm
    >>> values, scales = gm.quantize(np.array([[1.0, -2.0], [0.0, 448.0]], np.float32))
    >>> values.astype(np.float32) * scales
    array([[   1.,   -2.],
           [   0.,  448.]], dtype=float32)
    """
    if unknown:
        raise unknown_argument(quantize, unknown)
    plan = functools.partial(
        _plan, x, by=by, dtype=dtype, scale_dtype=scale_dtype, stream=stream, executor=executor
    )  # fmt: skip
    if stream is not None or executor is not None:
        found: tuple[Any, Any] = plan().execute()
        return found
    return quantized(x, (by, dtype, scale_dtype), plan)
