"""Grouped products: validation, plan, and execution on the host, a GPU or the virtual one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gemmule.core.block_scales import SCALES
from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import Precision, dtype_named, numpy_dtype
from gemmule.core.epilogue import MATRIX, Epilogue
from gemmule.core.epilogue import SECOND as OPERAND
from gemmule.core.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError
from gemmule.core.grouped_problem import AXES, MATRICES, OFFSETS, GroupedProblem
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.dispatch.select import generation
from gemmule.runtime.arrays import ArrayView, check_output
from gemmule.runtime.device import Device, device_count, get_device
from gemmule.runtime.replay import queue_of_parts
from gemmule.runtime.stream import stream_handle

from .calls.call_cache import CALLS, DeviceCall
from .epilogues.ending import Ending, ending_of
from .epilogues.gated import GATE_BIAS, SECOND, UP_BIAS, storage_of, with_halves
from .epilogues.scaling import Scaling
from .planning import functions as plans
from .planning.choice import NO_GPU, check_device_arrays, not_on_gpu, wanted_executor
from .planning.device_products import grouped_queue
from .planning.plan import Plan
from .planning.products import memory_for_sums, plan_product
from .planning.vgpu_products import as_device_view, copy_again, copy_back
from .scaled import FLOAT8, as_read, name_of, not_float8, scaled_gemm
from .validation.operands import Operands, gather
from .validation.product import ProductArguments, host_array
from .validation.rules import check_output_kind, dtype_name, promoted

_MOST_ALIGNED = 256
#: Bytes of the shortest rows that TMA loads; the roles of the factors that have a matrix for each group of rows.
_ROW_BYTES, _FACTORS_B = 16, ("b", SECOND)
#: The divided dimension by the number of dimensions of A and B.
_AXIS_OF = {(2, 3): "m", (3, 2): "n", (2, 2): "k"}
#: What the groups divide.
_DIVIDED = {"m": "the rows of a", "n": "the columns of b", "k": "the columns of a"}


@dataclass(frozen=True)
class _Call:
    """The arguments of `grouped_gemm` as the caller gives them."""

    a: Any
    b: Any
    offsets: Any
    bias: Any
    epilogue: Any
    out: Any
    out_dtype: Any
    precision: Any
    stream: Any
    executor: Any
    scale_a: Any = None
    scale_b: Any = None
    matrices: Any = None

    @property
    def divider(self) -> tuple[str, Any]:
        """Role and array of what divides the work: the groups' ends, or the rows' matrices."""
        return (OFFSETS, self.offsets) if self.matrices is None else (MATRICES, self.matrices)

    @property
    def scales(self) -> dict[str, Any]:
        """The scales by role, if there are any."""
        return {} if self.scale_a is None else dict(zip(SCALES, (self.scale_a, self.scale_b), strict=True))


@dataclass(frozen=True)
class GroupedProduct:
    """A grouped product whose arguments have passed validation."""

    operands: Operands  #: The arrays.
    axis: str  #: The dimension that the offsets divide: ``m``, ``n`` or ``k``; ``row`` where rows name their matrices.
    #: m, n, k, groups: As of `GroupedProblem`.
    m: int
    n: int
    k: int
    groups: int
    out_dtype: str  #: Element type of the result.
    out: Any  #: Array or None. The caller's output.
    views: Mapping[str, ArrayView]  #: The arrays by role; of a gated form `b` and the bias are cut in two.
    ending: Ending | None  #: What is done to the product before it is rounded.
    epilogue: Any  #: Str, callable or None. The same as the caller names it.
    precision: Precision  #: Of 8-bit floats.

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of the result."""
        return (self.groups, self.m, self.n) if self.axis == "k" else (self.m, self.n)

    @property
    def divider(self) -> str:
        """Role of what divides the work."""
        return MATRICES if self.axis == "row" else OFFSETS

    @property
    def multiplies(self) -> bool:
        """Whether there is anything to compute; else the result has no elements, or is zero."""
        finished = self.ending is not None
        return all((self.m, self.n)) and (self.adds_up or (finished and (self.axis == "row" or self.groups > 0)))

    @property
    def adds_up(self) -> bool:
        """Whether there are matrices that are multiplied, with elements along K."""
        return self.k > 0 and self.groups > 0

    def new_output(self, stream: int | None = None) -> tuple[ArrayView, Callable[[], Any]]:
        """Return the output's memory, and what gives the caller's array."""
        if self.out is not None:
            return self.operands.views["out"], lambda: self.out
        new = self.operands.new(self.result, self.out_dtype, stream)
        return new.view, new.finish

    @property
    def roles(self) -> dict[str, str]:
        """The role of each operand of a launch, but the result."""
        own = {name: name for name in ("a", "b", self.divider)}
        if self.ending is None:
            return own
        second = {OPERAND: SECOND} if self.ending.gated else {}
        return own | {f"{MATRIX}{place}": role for place, role in enumerate(self.ending.roles)} | second

    def of_zeros(self) -> GroupedProduct:
        """Return a product that adds up nothing as one of zeros, which kernels take; on a GPU without their memory."""
        a, b = self.views["a"], self.views["b"]
        depth = _ROW_BYTES // a.itemsize
        # Where rows name matrices and there are none, each row is multiplied by zeros all the same.
        groups = max(self.groups, 1)
        rows, lines = (self.m, depth), (groups, self.n, depth)
        host_a, host_b = (
            None if x.host is None else np.zeros(shape, x.host.dtype) for x, shape in ((a, rows), (b, lines))
        )
        a = dataclasses.replace(a, shape=rows, host=host_a, address=0, strides=(depth, 1))
        b = dataclasses.replace(
            b, shape=(groups, depth, self.n), address=0, strides=(self.n * depth, 1, depth),
            host=None if host_b is None else host_b.swapaxes(-1, -2),
        )  # fmt: skip
        return dataclasses.replace(
            self, k=depth, groups=groups, views=dict(self.views) | {"a": a} | dict.fromkeys(_FACTORS_B, b)
        )

    def problem(self, views: Mapping[str, ArrayView]) -> GroupedProblem:
        """Return the problem for arrays as they lie in memory."""
        a, b = _matrix(views["a"]), _matrix(views["b"])
        batch = (self.groups,) if AXES[self.axis] == "d" else ()
        d = _matrix(views["out"]) if "out" in views else contiguous(dtype_named(self.out_dtype), self.m, self.n, batch)
        epilogue = None
        if self.ending is not None:
            second = _matrix(views[SECOND]) if self.ending.gated else None
            inputs = tuple(_input(role, views[role], self.m, self.n) for role in self.ending.roles)
            epilogue = Epilogue(self.ending.expression, inputs, self.ending.numbers, second)
        return GroupedProblem(self.axis, self.m, self.n, self.k, self.groups, a, b, d, epilogue, self.precision)


def _input(role: str, view: ArrayView, m: int, n: int) -> StridedMatrix:
    """Return an epilogue's input as a matrix for each group: of scales of A the same, of others with equal rows."""
    strides = tuple(0 if extent == 1 else step for extent, step in zip(view.shape, view.strides, strict=True))
    if role == SCALES[0] or math.prod(view.shape) == 1:
        group, (row, col) = 0, (strides[0], 0)
    else:
        group, row, col = strides[0], 0, strides[-1]
    return StridedMatrix(dtype_named(view.dtype_name), m, n, row, col, (group,), _alignment(view))


def _alignment(view: ArrayView) -> int:
    return min((view.address & -view.address) or _MOST_ALIGNED, _MOST_ALIGNED)


def _matrix(view: ArrayView) -> StridedMatrix:
    (rows, cols), (row_stride, col_stride) = view.shape[-2:], view.strides[-2:]
    dtype = dtype_named(view.dtype_name)
    return StridedMatrix(dtype, rows, cols, row_stride, col_stride, view.strides[:-2], _alignment(view))


def _checked(call: _Call) -> GroupedProduct:
    """Hold the arguments against each other."""
    out, out_dtype, precision = call.out, call.out_dtype, Precision.parse(call.precision)
    scales = call.scales
    storage = storage_of(call.epilogue, None)
    ending, _ = ending_of(call.epilogue, call.bias, None, scales or None, gated=storage is not None)
    biased = {} if call.bias is None else {"bias": call.bias}
    role, numbers = call.divider
    operands = gather({"a": call.a, "b": call.b, role: numbers, **biased, **scales, "out": out}, call.stream)
    views: Mapping[str, ArrayView] = operands.views
    if ending is not None:
        views = _with_bias_of_groups(ending, views, storage)
    first, second = views["a"], views["b"]
    axis = _AXIS_OF.get((len(first.shape), len(second.shape)))
    if axis is None:
        raise ShapeError(f"a has shape {first.shape} and b {second.shape}; each must have 2 or 3 dimensions")
    if first.shape[-1] != second.shape[-2]:
        raise ShapeError(
            f"a has {first.shape[-1]} columns and b {second.shape[-2]} rows; the last dimension of a and the one "
            "before the last of b must be equal"
        )
    _check_numbers(role, views[role], operands.library.name)
    groups = views[role].shape[0]
    if role == MATRICES:
        axis, groups = "row", _matrices_of_rows(first, second, groups)
    for name, view in (("a", first), ("b", second)):
        if len(view.shape) == 3 and view.shape[0] != groups:
            raise ShapeError(
                f"offsets has {groups} ends and {name} {view.shape[0]} matrices; each group has one of each"
            )
    inputs = (first.dtype_name, second.dtype_name)
    wanted = promoted(*inputs) if out_dtype is None else dtype_name(out_dtype, "out_dtype")
    if out is not None:
        if out_dtype is not None and wanted != views["out"].dtype_name:
            raise DTypeError(f"out_dtype={wanted} differs from the dtype of out, {views['out'].dtype_name}; pass one")
        wanted = views["out"].dtype_name
    check_output_kind(inputs, wanted)
    if precision not in (Precision.IEEE, Precision.FLOAT8) or (
        precision is Precision.FLOAT8 and not all(dtype_named(name).is_float8 for name in inputs)
    ):
        names = " x ".join(dict.fromkeys(inputs))
        other = ", or pass 'float8'" if all(dtype_named(name).is_float8 for name in inputs) else ""
        raise DTypeError(f"precision={precision.value!r} is not for grouped products of {names}; leave it out{other}")
    product = GroupedProduct(
        operands, axis, first.shape[-2], second.shape[-1], first.shape[-1], groups, wanted, out, views, ending,
        call.epilogue, precision,
    )  # fmt: skip
    if out is not None:
        if views["out"].shape != product.result:
            raise ShapeError(f"out has shape {views['out'].shape}, the product has {product.result}; give that shape")
        check_output(views["out"], {role: view for role, view in operands.views.items() if role != "out"})
    return product


def _check_numbers(role: str, view: ArrayView, library: str) -> None:
    """Refuse offsets, or numbers of matrices, that are not one dimension of int32."""
    if view.dtype_name != "int32" or len(view.shape) != 1:
        converted = ""
        if len(view.shape) == 1:
            converted = f", {f'{role}.int()' if library == 'torch' else f'{role}.astype(numpy.int32)'}"
        meaning = "the groups' ends" if role == OFFSETS else "the number of each row's matrix"
        raise DTypeError(
            f"{role} is {view.dtype_name} of shape {view.shape}; give {meaning} as one dimension of int32{converted}"
        )
    if view.host is None and view.shape[0] > 1 and view.strides[0] != 1:
        raise ArgumentError(f"{role} has a stride of {view.strides[0]} elements; pass a contiguous copy")


def _matrices_of_rows(a: ArrayView, b: ArrayView, numbers: int) -> int:
    """Return how many matrices b has, for rows of a that each name one."""
    if (len(a.shape), len(b.shape)) != (2, 3):
        raise ShapeError(f"a has shape {a.shape} and b {b.shape}; matrices are for rows, a of 2 and b of 3 dimensions")
    if numbers != a.shape[0]:
        raise ShapeError(f"matrices has {numbers} numbers and a {a.shape[0]} rows; give one for each row")
    return b.shape[0]


def _scaled(call: _Call) -> _Call:
    """Return a call with scales as one with what they do as its epilogue.

    Raises
    ------
    ArgumentError, DTypeError, ShapeError
        If operands, scales and the other arguments do not fit together.
    """
    if call.scale_a is None or call.scale_b is None:
        raise ArgumentError("one of scale_a and scale_b is missing; pass both: one element of 1.0 scales nothing")
    if call.epilogue is not None:
        raise ArgumentError(f"epilogue={call.epilogue!r} is none of scaled products; apply it to the result")
    if call.precision not in (None, Precision.FLOAT8.value):
        raise ArgumentError(f"precision={call.precision!r} is none of scaled products; leave it away")
    for role, x in (("a", call.a), ("b", call.b)):
        if name_of(x) not in FLOAT8:
            raise not_float8(role, x)
    (rows, _), (groups, _, cols) = _shapes_of_rows(call)
    shapes: dict[str, list[tuple[int, ...]]] = {SCALES[0]: [(rows, 1)], SCALES[1]: [(groups, 1, cols), (groups, 1, 1)]}
    for role, x in call.scales.items():
        shape = tuple(getattr(x, "shape", ()))
        if shape not in shapes[role] and math.prod(shape) != 1:
            one = "row of a" if role == SCALES[0] else "column of each matrix of b"
            raise ShapeError(f"{role} has shape {shape}; give one element, or {shapes[role][0]}, one for each {one}")
    scales = {role: as_read(role, x) for role, x in call.scales.items()}
    scales = {role: x if x.shape else x.reshape(1) for role, x in scales.items()}
    wanted = "bfloat16" if call.out is None and call.out_dtype is None else call.out_dtype
    scaling = Scaling(None, True, call.bias is not None, False)
    return dataclasses.replace(
        call, epilogue=scaling, precision=Precision.FLOAT8.value, out_dtype=wanted, **scales
    )  # fmt: skip


def _shapes_of_rows(call: _Call) -> tuple[tuple[int, ...], tuple[int, ...]]:
    a, b = (tuple(getattr(x, "shape", ())) for x in (call.a, call.b))
    if (len(a), len(b)) != (2, 3):
        raise ShapeError(f"a has shape {a} and b {b}; scales are for groups of rows, a of 2 and b of 3 dimensions")
    return a, b


def _with_bias_of_groups(ending: Ending, views: Mapping[str, ArrayView], storage: str | None) -> dict[str, ArrayView]:
    """Return the arrays, those of a gated form cut in two, if there is an epilogue for them.

    Raises
    ------
    ArgumentError
        If the offsets do not divide rows.
    ShapeError
        If the bias has not one row for each group.
    """
    a, b = views["a"], views["b"]
    if (len(a.shape), len(b.shape)) != (2, 3):
        raise ArgumentError(
            f"a has shape {a.shape} and b {b.shape}; a bias or an epilogue is for groups of rows, a of 2 and b of 3 "
            "dimensions"
        )
    if "bias" in views and views["bias"].shape != (shape := (b.shape[0], b.shape[-1])):
        raise ShapeError(f"bias has shape {views['bias'].shape}; it must be {shape}, a value for each group and column")
    cut = with_halves(views, storage) if storage is not None else dict(views)
    of_a_group = {
        role: dataclasses.replace(cut[role], shape=(1, 1) if role == SCALES[0] else (1, cut[role].shape[-1]))
        for role in ending.roles
    }
    ending.check(of_a_group, (a.shape[0], cut["b"].shape[-1]), (a.dtype_name, b.dtype_name), 0)
    return cut


def check_ends(ends: Any, product: GroupedProduct) -> None:
    """Refuse offsets that do not divide the dimension of a product, where the host sees them.

    Raises
    ------
    ArgumentError
        If they decrease, begin below 0, or go past the end.
    """
    before, extent = 0, getattr(product, product.axis)
    for group, end in enumerate(ends.tolist()):
        if not before <= end <= extent:
            least = "the end before it" if group else "where the first group begins"
            rule = f"at least {before}, {least}" if end < before else f"at most {extent}, {_DIVIDED[product.axis]}"
            raise ArgumentError(
                f"offsets[{group}] is {end}; it must be {rule}: of groups' sizes, the ends are "
                "numpy.cumsum(sizes, dtype=numpy.int32)"
            )
        before = end


def _plan(
    a: Any,
    b: Any,
    /,
    offsets: Any = None,
    *,
    bias: Any = None,
    epilogue: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    precision: str | None = None,
    stream: Any = None,
    executor: str | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
    matrices: Any = None,
) -> Plan:
    """Say what a call of `grouped_gemm` would run, and why; nothing is computed until `Plan.execute`.

    The parameters are those of `grouped_gemm`.

    Returns
    -------
    Plan
        As of ``matmul.plan``.

    Raises
    ------
    ShapeError, DTypeError, OverlapError, ArgumentError, UnsupportedError
        As of `grouped_gemm`.
    """
    return _plan_of(
        _Call(a, b, offsets, bias, epilogue, out, out_dtype, precision, stream, executor, scale_a, scale_b, matrices)
    )


def _plan_of(call: _Call) -> Plan:
    a, b = call.a, call.b
    if call.matrices is not None:
        if given := [name for name in ("offsets", "bias", "scale_a", "scale_b") if getattr(call, name) is not None]:
            raise ArgumentError(f"matrices and {' and '.join(given)} are given; with matrices leave out the others")
    elif call.offsets is None:
        if any(x is not None for x in (call.bias, call.epilogue, call.scale_a, call.scale_b)):
            raise ArgumentError("a bias, an epilogue or scales need offsets; use gemm for a batch of products")
        shapes = {name: tuple(getattr(array, "shape", ())) for name, array in (("a", a), ("b", b))}
        if any(len(shape) != 3 for shape in shapes.values()):
            raise ArgumentError(
                f"a has shape {shapes['a']} and b {shapes['b']}, and offsets is None; pass the groups' ends, "
                "or a and b of three dimensions"
            )
        return plan_product(
            ProductArguments(
                "matmul", a, b, None, 1, 0, call.out, call.out_dtype, call.precision, call.stream, call.executor
            )
        )
    wanted = wanted_executor(call.executor)
    product = _checked(call if call.scale_a is None and call.scale_b is None else _scaled(call))
    if product.operands.device is not None:
        plan = _on_device(product, wanted)
    else:
        if product.divider == OFFSETS:
            check_ends(host_array(product.operands.views[OFFSETS]), product)
        plan = _on_virtual_gpu(product) if wanted == "vgpu" else _on_host(product, wanted)
    return plan.with_refresh(product.operands.views.values(), product.operands.work_stream)


def _planned(product: GroupedProduct, run: Callable[[], Any], **fields: Any) -> Plan:
    views = product.operands.views
    result = math.prod(product.result) * numpy_dtype(product.out_dtype).itemsize
    bytes_min = result + sum(math.prod(x.shape) * x.itemsize for role, x in views.items() if role != "out")
    gated = product.ending is not None and product.ending.gated
    flop = 2 * product.m * product.n * product.k * (2 if gated else 1)
    return Plan(
        operation="grouped_gemm", refused=(), flop=flop, bytes_min=bytes_min, bound_s=None, run=run,
        **({"problem": None, "config": {}} | fields),
    )  # fmt: skip


def _on_host(product: GroupedProduct, executor: str | None) -> Plan:
    if executor == "gpu":
        if not device_count():
            raise not_on_gpu(NO_GPU)
        raise UnsupportedError(
            "executor='gpu' cannot take this: grouped products of host arrays run on the host; copy them to a GPU first"
        )
    views = product.operands.views
    a, b, numbers = (host_array(views[role]) for role in ("a", "b", product.divider))
    bias = host_array(views["bias"]) if "bias" in views else None
    scale_a, scale_b = (host_array(views[role]) if role in views else None for role in SCALES)

    def multiply(part: slice, group: int, target: Any, factor: Any) -> None:
        from gemmule.host.gemm import gemm

        if product.ending is None:
            gemm(a[part], factor, target[part])
            return
        of_group = None if bias is None else bias[group]
        if scale_a is not None and scale_b is not None:
            rows = scale_a[part] if scale_a.size > 1 else scale_a
            cols = scale_b[group] if scale_b.size > 1 else scale_b.reshape(1, 1)
            scaled_gemm(a[part], factor, rows, cols, bias=of_group, out=target[part], executor="cpu")
            return
        call = ProductArguments(
            "gemm", a[part], factor, out=target[part], executor="cpu", bias=of_group, epilogue=product.epilogue
        )
        plan_product(call).execute()

    def multiply_rows(target: Any) -> None:
        zeros = np.zeros(b.shape[1:], b.dtype)
        for row, number in enumerate(numbers.tolist()):
            there = 0 <= number < product.groups
            multiply(slice(row, row + 1), number, target, b[number] if there else zeros)

    def run() -> Any:
        from gemmule.host.gemm import gemm

        view, finish = product.new_output()
        target = host_array(view)
        if product.divider == MATRICES:
            with memory_for_sums(product.result):
                multiply_rows(target)
            return finish()
        check_ends(numbers, product)
        with memory_for_sums(product.result):
            start = 0
            for group, end in enumerate(numbers.tolist()):
                part = slice(start, end)
                if product.axis == "m":
                    multiply(part, group, target, b[group])
                elif product.axis == "n":
                    gemm(a[group], b[:, part], target[:, part])
                else:
                    gemm(a[:, part], b[part], target[group])
                start = end
            if product.axis != "k":
                target[(slice(start, None),) if product.axis == "m" else (slice(None), slice(start, None))] = 0
        return finish()

    from gemmule.host import blas

    reason = "executor='cpu' is set" if executor == "cpu" else "the arrays are in host memory"
    return _planned(product, run, executor="cpu", device=blas.describe(), kernel="blas", reason=reason)


def _on_virtual_gpu(product: GroupedProduct) -> Plan:
    from gemmule.dispatch.grouped import choose_grouped
    from gemmule.vgpu.arch import device_name, virtual_arch

    if not product.multiplies:
        return _zeroed_on_virtual_gpu(product, device_name())
    product = product if product.adds_up else product.of_zeros()
    given = product.views
    seen = {role: as_device_view(view) for role, view in given.items()}
    # The kernel reads numbers one behind another.
    numbers = seen[product.divider]
    seen[product.divider] = dataclasses.replace(numbers, host=np.ascontiguousarray(numbers.host), strides=(1,))
    # As for launches, of a problem only its batch and its operands are read.
    problem: Any = product.problem(seen)
    choice = choose_grouped(problem, virtual_arch())

    def run() -> Any:
        from gemmule.vgpu.execute import run_kernel

        for role, view in seen.items():
            copy_again(view, given[role])
        target, finish = product.new_output()
        out = seen.get("out") or as_device_view(target)
        arrays = {name: host_array(seen[role]) for name, role in product.roles.items()}
        run_kernel(problem, choice, arrays | {"d": host_array(out)})
        copy_back(out, target)
        return finish()

    return _planned(
        product, run, executor="vgpu", device=device_name(), kernel=choice.spec.name, config=choice.config.as_dict(),
        reason="executor='vgpu' is set", problem=problem, choice=choice,
    )  # fmt: skip


def _zeroed_on_virtual_gpu(product: GroupedProduct, device: str) -> Plan:
    def run() -> Any:
        out, finish = product.new_output()
        host_array(out)[...] = 0
        return finish()

    reason = "executor='vgpu' is set"
    return _planned(product, run, executor="vgpu", device=device, kernel="memset", reason=reason)


def _on_device(product: GroupedProduct, executor: str | None) -> Plan:
    # Specs of kernels are loaded where one is chosen.
    from gemmule.dispatch.grouped import choose_grouped

    operands = product.operands
    reason = check_device_arrays(executor)
    assert operands.device is not None
    device, views = get_device(operands.device), product.views
    if not product.multiplies:
        return _zeroed(product, device, reason)
    if not product.adds_up:
        return _of_zeros(product.of_zeros(), device, reason)
    problem = product.problem(views)
    choice = choose_grouped(problem, device.arch, multiprocessors=device.multiprocessors, chip=device.name)

    def run() -> Any:
        stream = operands.work_stream()
        assert stream is not None
        out, finish = product.new_output(stream)
        queue = grouped_queue(problem, device.ordinal, generation())
        queue((*(views[role].address for role in product.roles.values()), out.address), stream)
        operands.keep_until_done(stream, out)
        return finish()

    return _planned(
        product, run, executor="gpu", device=device.name, kernel=choice.spec.name, config=choice.config.as_dict(),
        reason=reason, problem=problem, choice=choice, chosen_by=choice.chosen_by, predicted_us=choice.predicted_us,
        places={name: (role, views[role].address) for name, role in product.roles.items()},
    )  # fmt: skip


def _of_zeros(product: GroupedProduct, device: Device, reason: str) -> Plan:
    """Return the plan of an epilogue of nothing: of a product of zeros, which all factors share."""
    from gemmule.dispatch.grouped import choose_grouped

    operands, views = product.operands, product.views
    problem = product.problem(views)
    choice = choose_grouped(problem, device.arch, multiprocessors=device.multiprocessors, chip=device.name)

    def run() -> Any:
        from gemmule.runtime.memory import clear

        stream = operands.work_stream()
        assert stream is not None
        out, finish = product.new_output(stream)
        factor = views["a"]
        zeros = operands.new((max(product.m, product.groups * product.n), product.k), factor.dtype_name, stream).view
        clear(zeros.address, math.prod(zeros.shape) * zeros.itemsize, device.ordinal, stream)
        of_nothing = dict.fromkeys(("a", *_FACTORS_B), zeros.address)
        addresses = (of_nothing.get(role, views[role].address) for role in product.roles.values())
        grouped_queue(problem, device.ordinal, generation())((*addresses, out.address), stream)
        operands.keep_until_done(stream, out, zeros)
        return finish()

    # Without a problem: a call that is found again would take the factors' addresses from its arrays.
    return _planned(
        product, run, executor="gpu", device=device.name, kernel=choice.spec.name, config=choice.config.as_dict(),
        reason=reason,
    )  # fmt: skip


def _zeroed(product: GroupedProduct, device: Device, reason: str) -> Plan:
    """Return the plan of a product without elements, or without anything to add up: its result is zero."""
    operands = product.operands

    def run() -> Any:
        from gemmule.runtime.memory import clear

        stream = operands.work_stream()
        assert stream is not None
        out, finish = product.new_output(stream)
        rows = product.m * (product.groups if product.axis == "k" else 1)
        if rows * product.n:
            if out.strides != tuple(np.cumprod((1, *reversed(product.result[1:])))[::-1].tolist()):
                raise ArgumentError("out is not contiguous, and there is nothing to multiply; pass a contiguous out")
            clear(out.address, rows * product.n * out.itemsize, device.ordinal, stream)
        operands.keep_until_done(stream, out)
        return finish()

    return _planned(product, run, executor="gpu", device=device.name, kernel="memset", reason=reason)


@plans.attached(_plan)
def grouped_gemm(
    a: Any,
    b: Any,
    /,
    offsets: Any = None,
    *,
    bias: Any = None,
    epilogue: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    precision: str | None = None,
    stream: Any = None,
    executor: str | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
    matrices: Any = None,
) -> Any:
    """Multiply the groups that lie one after another in a matrix, each with a matrix of its own.

    `offsets` is read on the device: nothing waits for it. The number of dimensions says what is divided:

    - a (m, k), b (groups, k, n): groups of rows, as of the tokens of each expert. The result is (m, n).
    - a (groups, m, k), b (k, n): groups of columns. The result is (m, n).
    - a (m, k), b (k, n): groups of k, as for the gradients of weights. The result is (groups, m, n).
    - a (groups, m, k), b (groups, k, n), without offsets: `matmul`.

    What is beyond the last offset belongs to no group, and is zero in a result of groups of rows or columns; a group
    without k is zero. Offsets on a GPU are not checked: past the end they are cut off; where they decrease, the
    result is undefined, and nothing beyond an operand is read or written.

    Parameters
    ----------
    a, b : array
        Operands, as of `matmul`. On a GPU: float32, contiguous along a dimension; on a Hopper one also float16,
        bfloat16 or, contiguous along k, 8-bit floats, with rows or columns of whole 16 bytes, where the divided
        dimension is not the contiguous one of `a` or `b`.
    offsets : array of int32, shape (groups,), optional
        Where each group ends, without a leading 0, on the device of the operands: not decreasing, up to the extent of
        what is divided.
    bias : array, shape (groups, n), optional
        What is added to the rows of each group, of groups of rows only; 2 n columns for a gated epilogue.
    epilogue : str or callable, optional
        Epilogue, as in `gemm`, of groups of rows only: a name such as ``'relu'``, a function of the
        product, or a gated form such as ``'swiglu'`` (on a GPU not of float32), for which `b` has the columns of the
        gates, then those of up.
    out : array, optional
        Where the result goes, row-major; it shares no memory with the operands.
    out_dtype : dtype or str, optional
        Element type of the result: by default that of the operands, and bfloat16 with scales. On a GPU it may be
        float32, and of float32 operands float16 or bfloat16; of 8-bit floats it is of 16 or 32 bits there, so that
        without scales it must be given.
    precision : {'ieee', 'float8'}, optional
        ``'float8'`` for 8-bit floats on a GPU, as of `matmul`.
    stream, executor
        As of `matmul`; host arrays are multiplied on the host or the virtual GPU.
    scale_a, scale_b : array of float32 or float8_e8m0fnu, optional
        Scales of groups of rows of 8-bit floats, both or none: of one element, or one for each row of `a`, of shape
        (m, 1), and for each column of each matrix of `b`, (groups, 1, n), or each matrix, (groups, 1, 1). The result
        is ``(scale_a * a) @ (scale_b * b) + bias`` of each group, bfloat16 by default, without an epilogue;
        float8_e8m0fnu is converted first.
    matrices : array of int32, shape (m,), optional
        Instead of offsets, for few rows: the matrix of `b` that each row of `a` is multiplied by, read on the device;
        by zeros, where a number is none of a matrix. There is no bias and no scale then, and no float32 on a GPU.

    Returns
    -------
    array
        `out`, or a new array.

    Raises
    ------
    ShapeError, DTypeError, OverlapError, ArgumentError
        As of `matmul`, and if offsets on the host decrease or go past the end.
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
    role, numbers = (OFFSETS, offsets) if matrices is None else (MATRICES, matrices)
    options = ("grouped_gemm", role, out_dtype, epilogue, precision)
    inputs = tuple([x for x in (a, b, numbers, bias, scale_a, scale_b) if x is not None])
    shapes: tuple[Any, ...] = ()
    # What may have no hash, or is no part of the key, is looked at first.
    if executor is scale_a is scale_b is None and (offsets is None or matrices is None) and all(map(_is_name, options)):
        shapes = _shapes(options, inputs, out)
        if (replay := CALLS.by_shapes.get(shapes)) is not None:
            # The offsets, or numbers of matrices, have the place of C.
            result = replay(a, b, out, numbers, bias, None if stream is None else stream_handle(stream))
            if result is not None:
                return result
    call = _Call(a, b, offsets, bias, epilogue, out, out_dtype, precision, stream, executor, scale_a, scale_b, matrices)
    library: Any = CALLS.library(type(a))
    if library is None or library is library.host or not _can_be_cached(call):
        return _plan_of(call).execute()
    guarded = library.guards_kinds and bool(shapes)
    described = library.describe(a, b, (numbers, bias, scale_a, scale_b, out), options)
    # Arrays in host memory have no stream.
    if described is None or described[2] is None:
        return _plan_of(call).execute()
    found = CALLS.by_description.get(described[0])
    if isinstance(found, DeviceCall):
        result = found.run(library, described, inputs, out, stream)
        if result is not None:
            if guarded and (stream is None or stream_handle(stream) == described[2]):
                keys = (options, *map(id, (*inputs, out))), shapes
                CALLS.add_replay(library, found, keys, inputs, out, described[1], result)
            return result
    began = generation()
    plan = _plan_of(call)
    result = plan.execute()
    problem: Any = plan.problem
    if problem is not None:
        queue = queue_of_parts(grouped_queue(problem, library.device(a), began), _begins(plan, library, inputs))
        CALLS.add(library, described[0], queue, inputs, result, began)
    return result


def _shapes(options: tuple[Any, ...], inputs: tuple[Any, ...], out: Any) -> tuple[Any, ...]:
    """Return what a call is found by among replays, of which a guard checks the rest."""
    try:
        return options, inputs[0].dtype, out is None, *[x.shape for x in inputs]
    except (AttributeError, RuntimeError):
        # Something is no array, or has no shape: a nested tensor.
        return ()


def _begins(plan: Plan, library: Any, inputs: tuple[Any, ...]) -> tuple[tuple[int, int], ...]:
    """Return for each operand of a launch the array of the call, and how far behind its first element it begins."""
    places = {"a": 0, "b": 1, OFFSETS: 2, MATRICES: 2, SECOND: 1, "bias": 3, GATE_BIAS: 3, UP_BIAS: 3}
    places |= {role: len(inputs) - len(SCALES) + place for place, role in enumerate(SCALES)}
    addresses = [library.address(x) for x in inputs]
    begins = [(places[role], address - addresses[places[role]]) for role, address in plan.places.values()]
    return (*begins, (len(inputs), 0))


def _is_name(option: Any) -> bool:
    """Return whether an option is left out, a string or one of PyTorch's types."""
    return option is None or type(option) is str or getattr(type(option), "__module__", "") == "torch"


def _can_be_cached(call: _Call) -> bool:
    """Return whether a call with arrays on a GPU may be found by its description."""
    plain = call.executor is None and all(map(_is_name, (call.out_dtype, call.precision, call.epilogue)))
    # Other scales are converted, to arrays that the call does not have.
    read = all(name_of(x) == "float32" for x in call.scales.values())
    # Both, or a bias beside numbers of matrices, are refused by the plan.
    one = (call.offsets is None) != (call.matrices is None) and (call.matrices is None or call.bias is None)
    return one and plain and read
