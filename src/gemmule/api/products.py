"""Planning a product: check the arrays, choose executor and kernel."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gemmule.core.dtype import DType, Precision, dtype_named, numpy_dtype
from gemmule.core.errors import ArgumentError, DTypeError, ShapeError
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.core.stacking import stacked
from gemmule.dispatch.registry import VIRTUAL
from gemmule.dispatch.select import choose, contiguous_gemm
from gemmule.runtime.arrays import ArrayView, check_output
from gemmule.runtime.device import get_device

from .absolute_maximum import ROLE as ABSMAX
from .absolute_maximum import check_absmax
from .candidates import choose_compiling, run_first_that_compiles
from .epilogues import Ending, ending_of, with_ending
from .executors import check_device_arrays, host_arrays_executor, wanted_executor
from .gated import SECOND, storage_of, with_halves
from .operands import Operands, gather, least_seconds
from .plan import Plan
from .promotion import check_output_kind, dtype_name, is_integer, promoted
from .scalars import scalar
from .shapes import ProductShape, batch_strides, product_shape, with_axis
from .virtual import as_device_view, copy_back


@dataclasses.dataclass(frozen=True)
class Product:
    """A product as the caller wants it, checked.

    Attributes
    ----------
    operation : str
        ``matmul`` or ``gemm``.
    operands : Operands
        The arrays; in the views, 1-D operands have got their second dimension.
    shape : ProductShape
        Shapes.
    out_dtype : str
        Element type of the result.
    alpha, beta : number
        Scalars.
    precision : Precision
        What a float32 product may be rounded to.
    out : array or None
        The caller's output.
    ending : Ending or None
        What is done to the product before it is rounded.
    """

    operation: str
    operands: Operands
    shape: ProductShape
    out_dtype: str
    alpha: Any
    beta: Any
    precision: Precision
    out: Any
    ending: Ending | None = None

    def view(self, role: str) -> ArrayView:
        """Return the memory of an operand."""
        return self.operands.views[role]

    def new_output(self, stream: int | None = None) -> tuple[ArrayView, Callable[[], Any]]:
        """Return the output's memory as a batch of matrices, and what gives the caller's array."""
        if self.out is not None:
            return self.view("out"), lambda: self.out
        operands = self.operands
        new = operands.library.empty(self.shape.result, self.out_dtype, operands.like, stream)
        return self.as_matrices(new.view), new.finish

    def as_matrices(self, view: ArrayView) -> ArrayView:
        """Return a result's memory with the dimensions that 1-D operands leave out."""
        if self.shape.drop_row:
            view = with_axis(view, len(self.shape.batch))
        return with_axis(view, -1) if self.shape.drop_col else view


def plan_product(
    operation: str,
    a: Any,
    b: Any,
    *,
    c: Any = None,
    alpha: Any = 1,
    beta: Any = 0,
    out: Any = None,
    out_dtype: Any = None,
    precision: Any = None,
    stream: Any = None,
    executor: str | None = None,
    bias: Any = None,
    epilogue: Any = None,
    epilogue_args: Mapping[str, Any] | None = None,
    gated: Any = None,
    absmax: Any = None,
    traced: tuple[Ending | None, Mapping[str, Any]] | None = None,
) -> Plan:
    """Check a product and say what would run. The parameters are those of `gemm` and `matmul`.

    `traced` is what `ending_of` has made of the epilogue already.
    """
    executor = wanted_executor(executor)
    storage = storage_of(epilogue, gated)
    ending, arrays = traced or ending_of(
        epilogue, bias, c, epilogue_args, gated=storage is not None, absmax=absmax is not None
    )
    inputs = dict(arrays)
    if absmax is not None:
        inputs[ABSMAX] = absmax
    if gated is not None and not isinstance(gated, str):
        inputs[SECOND] = gated
    operands = gather({"a": a, "b": b, "c": c, "out": out, **inputs}, stream)
    if storage is not None:
        operands = dataclasses.replace(operands, views=with_halves(operands.views, storage))
    product = _checked(operation, operands, alpha, beta, out, out_dtype, precision, ending)
    return _plan_host(product, executor) if product.operands.device is None else _plan_device(product, executor)


def _checked(
    operation: str,
    operands: Operands,
    alpha: Any,
    beta: Any,
    out: Any,
    out_dtype: Any,
    precision: Any,
    ending: Ending | None = None,
) -> Product:
    views = dict(operands.views)
    a, b = views["a"], views["b"]
    shape = product_shape(a.shape, b.shape)
    inputs = (a.dtype_name, b.dtype_name)
    dtype = _result_dtype(operation, inputs, views.get("out"), out_dtype)
    if (parsed := Precision.parse(precision)) is Precision.TF32 and set(inputs) != {"float32"}:
        raise DTypeError(f"precision='tf32' is for float32 products, not {' x '.join(inputs)}; leave it away")
    kind = {"integer": is_integer(dtype), "complex_allowed": numpy_dtype(dtype).kind == "c"}
    alpha, beta = scalar("alpha", alpha, **kind), scalar("beta", beta, **kind)
    if beta != 0 and "c" not in views:
        raise ArgumentError(f"beta={beta} needs a matrix c; pass c, or beta=0")
    reads_c = beta != 0
    if ending is not None:
        ending.check(views, shape.result, inputs, beta)
        reads_c = reads_c or ending.expression.names_c
        if ABSMAX in views:
            check_absmax(views, inputs)
    views["a"] = with_axis(a, 0) if shape.drop_row else a
    views["b"] = with_axis(b, -1) if shape.drop_col else b
    product = Product(operation, operands, shape, dtype, alpha, beta, parsed, out, ending)
    # Arrays that are one and the same show it as they were given.
    given = dict(views)
    for role in ("c", "out"):
        if role in views:
            if views[role].shape != shape.result:
                raise ShapeError(
                    f"{role} has shape {views[role].shape}, the product has {shape.result}; they must be equal"
                )
            views[role] = product.as_matrices(views[role])
    if "out" in views:
        aside = {"out", ABSMAX} if reads_c else {"out", ABSMAX, "c"}
        read = {role: view for role, view in given.items() if role not in aside}
        check_output(given["out"], read, may_be_same=("c", *(ending.roles if ending else ())))
    if not reads_c:
        views.pop("c", None)
    return dataclasses.replace(product, operands=dataclasses.replace(operands, views=views))


def _result_dtype(operation: str, inputs: tuple[str, str], out: ArrayView | None, out_dtype: Any) -> str:
    wanted = None if out_dtype is None else dtype_name(out_dtype)
    if out is not None:
        if wanted is not None and wanted != out.dtype_name:
            raise DTypeError(f"out_dtype={wanted} differs from the dtype of out, {out.dtype_name}; pass one of the two")
        wanted = out.dtype_name
    if wanted is None:
        wanted = "int32" if operation == "gemm" and inputs == ("int8", "int8") else promoted(*inputs)
    check_output_kind(inputs, wanted)
    return wanted


def _device_matrix(view: ArrayView, dtype: DType, batch: tuple[int, ...]) -> StridedMatrix:
    rows, cols = view.shape[-2:]
    alignment = (view.address & -view.address) or 256
    row_stride, col_stride = view.strides[-2:]
    return StridedMatrix(dtype, rows, cols, row_stride, col_stride, batch_strides(view, batch), min(alignment, 256))


_OPERANDS = ("a", "b", "c")


def _problem_in_place(product: Product, views: Mapping[str, ArrayView]) -> tuple[GemmProblem, dict[str, str]]:
    """Return the product of matrices as they lie in a device's memory, and the role of each operand that is read."""
    shape = product.shape
    matrices = {
        role: _device_matrix(views[role], dtype_named(views[role].dtype_name), shape.batch)
        for role in (*_OPERANDS, "out")
        if role in views
    }
    problem = GemmProblem(
        m=shape.m,
        n=shape.n,
        k=shape.k,
        batch=shape.batch,
        a=matrices["a"],
        b=matrices["b"],
        c=matrices.get("c"),
        d=matrices.get("out") or contiguous(dtype_named(product.out_dtype), shape.m, shape.n, shape.batch),
        alpha=product.alpha,
        beta=product.beta,
        precision=product.precision,
    )
    roles = {role: role for role in _OPERANDS if role in views}
    if product.ending is not None:
        problem, further = with_ending(problem, product.ending, views, shape)
        roles |= further
    return stacked(problem), roles


def _plan_device(product: Product, executor: str | None) -> Plan:
    operands = product.operands
    reason = check_device_arrays(executor)
    assert operands.device is not None
    ordinal = operands.device
    device = get_device(ordinal)
    problem, roles = _problem_in_place(product, operands.views)
    choice = choose_compiling(problem, device)

    def run() -> Any:
        from gemmule.runtime.execute import run_kernel

        stream = operands.work_stream()
        assert stream is not None
        out, finish = product.new_output(stream)
        pointers = {name: product.view(role).address for name, role in roles.items()}
        given = pointers | {"d": out.address}
        if ABSMAX in operands.views:
            from gemmule.runtime.memory import clear

            absmax = product.view(ABSMAX)
            given[ABSMAX] = absmax.address
            clear(absmax.address, absmax.itemsize, ordinal, stream)
        run_first_that_compiles(
            problem, choice, device, lambda chosen: run_kernel(problem, chosen, given, ordinal, stream)
        )
        operands.keep_until_done(stream, out)
        return finish()

    planned = _plan(product, "gpu", device.name, choice, reason, problem, run)
    places = {name: (role, product.view(role).address) for name, role in roles.items()}
    return dataclasses.replace(planned, places=places)


def _plan_host(product: Product, executor: str | None) -> Plan:
    shape, views = product.shape, product.operands.views
    dtypes = (product.view("a").dtype_name, product.view("b").dtype_name, product.out_dtype)
    c_dtype = product.view("c").dtype_name if "c" in views else None
    name, reason = host_arrays_executor(executor, 2 * shape.m * shape.n * shape.k, dtypes, c_dtype)
    c = product.view("c").host if "c" in views else None
    a, b = _host(product.view("a")), _host(product.view("b"))
    ending = product.ending

    if name == "vgpu":
        return _plan_virtual(product, reason)

    if name == "host":
        from gemmule.host.gemm import gemm
        from gemmule.host.tiles import HostTileExecutor

        def run_on_host() -> Any:
            out, finish = product.new_output()
            if ending is None:
                gemm(a, b, _host(out), alpha=product.alpha, beta=product.beta, c=c)
            else:

                def multiply(factor: Any, total: Any) -> None:
                    gemm(a, factor, total, alpha=product.alpha, beta=product.beta, c=None if product.beta == 0 else c)

                _finish_on_host(product, multiply, _host(out))
            return finish()

        return _plan(product, name, HostTileExecutor().describe(), None, reason, None, run_on_host)

    problem = contiguous_gemm(
        shape.m,
        shape.n,
        shape.k,
        dtypes,
        c_dtype=c_dtype,
        batch=shape.batch,
        alpha=product.alpha,
        beta=product.beta,
        precision=product.precision,
    )
    device = get_device(0)

    def run_on_gpu() -> Any:
        from .staged import multiply_on_gpu

        out, finish = product.new_output()
        if ending is None:
            multiply_on_gpu(a, b, _host(out), product.alpha, product.beta, c, product.precision)
        else:
            # Host arrays are streamed; what a product of tiles becomes is known when all of K has been added.
            def multiply(factor: Any, total: Any) -> None:
                added = None if product.beta == 0 else c
                multiply_on_gpu(a, factor, total, product.alpha, product.beta, added, product.precision)

            _finish_on_host(product, multiply, _host(out))
        return finish()

    from gemmule.runtime.memory import usable_memory

    from .staged import streaming_plan

    planned = _plan(
        product,
        name,
        device.name,
        choose(problem, device.arch, multiprocessors=device.multiprocessors, chip=device.name),
        reason,
        problem,
        run_on_gpu,
    )
    seconds = least_seconds(problem, device.name, from_host=False)
    return dataclasses.replace(planned, streaming=streaming_plan(problem, usable_memory(0), seconds))


def _plan_virtual(product: Product, reason: str) -> Plan:
    from gemmule.vgpu.arch import device_name, virtual_arch

    views = {role: as_device_view(view) for role, view in product.operands.views.items()}
    problem, roles = _problem_in_place(product, views)
    choice = choose(problem, virtual_arch(), VIRTUAL)

    def run() -> Any:
        from gemmule.vgpu.execute import run_kernel

        given, finish = product.new_output()
        out = views.get("out") or as_device_view(given)
        arrays = {name: _host(views[role]) for name, role in roles.items()} | {"d": _host(out)}
        if ABSMAX in views:
            arrays[ABSMAX] = _host(views[ABSMAX])
            arrays[ABSMAX][...] = 0
        run_kernel(problem, choice, arrays)
        copy_back(out, given)
        if ABSMAX in views:
            copy_back(views[ABSMAX], product.view(ABSMAX))
        return finish()

    return _plan(product, "vgpu", device_name(), choice, reason, problem, run)


def _finish_on_host(
    product: Product, multiply: Callable[[Any, Any], None], out: np.ndarray[Any, np.dtype[Any]]
) -> None:
    """Write the epilogue of sums, each of which ``multiply(b, total)`` computes."""
    from gemmule.host.epilogue import apply, new_sum

    ending, result = product.ending, product.shape.result
    assert ending is not None
    factors = [_host(product.view(role)) for role in ("b", *((SECOND,) if ending.expression.gated else ()))]
    totals = []
    for factor in factors:
        totals.append(new_sum(_host(product.view("a")), factor, out))
        multiply(factor, totals[-1])
    c = _host(product.view("c")) if ending.expression.names_c else None
    # Inputs are broadcast to what the caller gets, which has no dimension of a 1-D operand.
    matrices = [np.broadcast_to(_host(product.view(role)), result).reshape(out.shape) for role in ending.roles]
    largest = apply(out, totals, ending.expression, c, matrices, ending.numbers, keeps=ending.absmax)
    if ending.absmax:
        _host(product.view(ABSMAX))[...] = largest


def _host(view: ArrayView) -> np.ndarray[Any, np.dtype[Any]]:
    assert view.host is not None
    return view.host


def _plan(
    product: Product,
    executor: str,
    device: str,
    choice: Choice | None,
    reason: str,
    problem: GemmProblem | None,
    run: Callable[[], Any],
) -> Plan:
    shape = product.shape
    factors = 2 if product.ending is not None and product.ending.expression.gated else 1
    on_host = product.operands.device is None
    result_bytes = math.prod(shape.result) * numpy_dtype(product.out_dtype).itemsize
    inputs = (view for role, view in product.operands.views.items() if role != "out")
    bytes_min = result_bytes + sum(math.prod(view.shape) * view.itemsize for view in inputs)
    then = choice.following(problem) if executor == "gpu" and choice and problem else None
    return Plan(
        operation=product.operation,
        executor=executor,
        device=device,
        kernel=choice.spec.name if executor != "host" and choice else "blas",
        config=choice.config.as_dict() if executor != "host" and choice else {},
        reason=reason,
        refused=choice.refused if choice else (),
        problem=problem,
        flop=2 * shape.m * shape.n * factors * shape.k * math.prod(shape.batch),
        bytes_min=problem.bytes_min if problem else bytes_min,
        bound_s=least_seconds(problem, device, from_host=on_host) if executor == "gpu" and problem else None,
        run=run,
        then=f"{then.spec.name} [{then.config}]" if then else "",
        chosen_by=choice.chosen_by if executor != "host" and choice else "",
        chosen_from=choice.source if executor != "host" and choice else "",
        predicted_us=choice.predicted_us if executor == "gpu" and choice else None,
        epilogue=product.ending.text if product.ending is not None else "",
        choice=choice,
    )
