"""Plans of the public functions: what a call with the same arguments would run."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from gemmule.runtime.driver import driver_is_missing

from ..validation.product import ProductArguments
from ..validation.rules import unknown_argument
from .choice import NO_GPU, TOO_FEW_FLOP
from .plan import Plan
from .products import plan_product
from .transposes import axes_as_given, last_two_exchanged, plan_transpose

_Call = ParamSpec("_Call")
_Planning = ParamSpec("_Planning")
_Result_co = TypeVar("_Result_co", covariant=True)


class PlannedFunction(Protocol[_Call, _Planning, _Result_co]):
    """A function with a plan of its calls."""

    @property
    def plan(self) -> Callable[_Planning, Plan]:
        """The function that plans a call; nothing is computed until `Plan.execute`."""

    def __call__(self, *args: _Call.args, **kwargs: _Call.kwargs) -> _Result_co:
        """Call the function."""


def attached(
    plan: Callable[_Planning, Plan],
) -> Callable[[Callable[_Call, _Result_co]], PlannedFunction[_Call, _Planning, _Result_co]]:
    """Return a decorator that makes `plan` an attribute of a function, which stays a plain one: calls cost no more."""

    def attach(function: Callable[_Call, _Result_co]) -> PlannedFunction[_Call, _Planning, _Result_co]:
        vars(function)["__signature__"] = _without_unknown(function)
        known = inspect.signature(plan).parameters

        @functools.wraps(plan)
        def planned(*args: _Planning.args, **kwargs: _Planning.kwargs) -> Plan:
            if unknown := [name for name in kwargs if name not in known]:
                raise unknown_argument(planned, unknown)
            return plan(*args, **kwargs)

        for one in (plan, planned):
            one.__name__, one.__qualname__ = "plan", f"{function.__name__}.plan"
        vars(function)["plan"] = planned
        return cast("PlannedFunction[_Call, _Planning, _Result_co]", function)

    return attach


def _without_unknown(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function that takes unknown names for the sake of the error, without these."""
    signature = inspect.signature(function)
    return signature.replace(parameters=[x for x in signature.parameters.values() if x.kind is not x.VAR_KEYWORD])


def plan_to_read(given: ProductArguments, kernel: str | None = None, chip: str | None = None) -> Plan:
    """Return the plan of a product; where there is no driver that is the reason, which calls of few FLOP do not ask."""
    plan = plan_product(given, kernel=kernel, chip=chip)
    return dataclasses.replace(plan, reason=NO_GPU) if plan.reason == TOO_FEW_FLOP and driver_is_missing() else plan


def planned_by(
    plan: Callable[..., Plan],
) -> Callable[[Callable[_Call, _Result_co]], PlannedFunction[_Call, ..., _Result_co]]:
    """Return a decorator that makes `plan` an attribute of a function; it is given every parameter, and ``chip``."""

    def attach(function: Callable[_Call, _Result_co]) -> PlannedFunction[_Call, ..., _Result_co]:
        @functools.wraps(function)
        def of_call(*args: Any, chip: str | None = None, **kwargs: Any) -> Plan:
            try:
                given = inspect.signature(function).bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{of_call.__qualname__}() {error}") from None
            given.apply_defaults()
            return plan(*given.args, **given.kwargs, chip=chip)

        # `inspect.signature` follows `__wrapped__`.
        signature = _without_unknown(function)
        further = inspect.Parameter("chip", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None")
        parameters = [*signature.parameters.values(), further]
        vars(of_call)["__signature__"] = signature.replace(parameters=parameters, return_annotation="Plan")
        annotations = {name: one for name, one in function.__annotations__.items() if name in signature.parameters}
        of_call.__annotations__ = annotations | {"chip": "str | None", "return": "Plan"}
        of_call.__doc__ = _DOC.format(function.__name__)
        return attached(of_call)(function)

    return attach


_DOC = """Say what a call of `{0}` would run, and why; nothing is computed until `Plan.execute`.

    The parameters are those of `{0}`, ``chip`` as of ``matmul.plan``.

    Returns
    -------
    Plan
        As of ``matmul.plan``.

    Raises
    ------
    ShapeError, DTypeError, OverlapError, ArgumentError, UnsupportedError
        As of `{0}`, and of ``matmul.plan``.
    """


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
    kernel: str | None = None,
    chip: str | None = None,
) -> Plan:
    """Say what a call of `matmul` would run, and why; nothing is computed until `Plan.execute`.

    Parameters
    ----------
    a, b, out, out_dtype, precision, stream, executor
        As of `matmul`.
    kernel : str, optional
        On the virtual GPU, ``executor='vgpu'``, and with `chip`: the kernel that is to run, instead of the one that is
        chosen. Its name may carry a config, by number or by fields, as in ``'g07_cp_async[1]'`` or
        ``'g05_conflict_free[tile_k=16]'``; of several, and without one, the one of least predicted time is chosen,
        without `chip` by the rates of an H200. Configs are taken as plans print them, too.
    chip : str, optional
        Plan for this GPU, such as ``'h100'``, which need not be there: kernel, config, predicted time. The arrays count
        as in its memory; they may also be tensors on PyTorch's device ``meta`` or ``jax.ShapeDtypeStruct``, without
        memory. Such a plan is for reading; with ``executor='vgpu'`` it runs what that GPU would run on the virtual one.
        The names are those of ``gemmule explain --chip``.

    Returns
    -------
    Plan
        Executor, kernel, config, reasons and the least time it can take.

    Raises
    ------
    ShapeError, DTypeError, OverlapError, ArgumentError
        As of `matmul`, and if the kernel is not known.
    UnsupportedError
        If no kernel, or not the one that is named, can take the problem.

    Examples
    --------
    >>> import numpy as np, gemmule as gm
    >>> p = gm.matmul.plan(np.ones((64, 64)), np.ones((64, 64)), executor="cpu")
    >>> p.executor, p.flop
    ('cpu', 524288)
    >>> gm.matmul.plan(np.ones((64, 64)), np.ones((64, 64)), chip="h100").device
    'H100 SXM 80 GB'
    """
    return plan_to_read(
        ProductArguments("matmul", a, b, None, 1, None, out, out_dtype, precision, stream, executor), kernel, chip
    )


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
    kernel: str | None = None,
    chip: str | None = None,
) -> Plan:
    """Say what a call of `gemm` would run, and why; nothing is computed until `Plan.execute`.

    The parameters are those of `gemm`, ``kernel`` and ``chip`` as of ``matmul.plan``.

    Returns
    -------
    Plan
        As of ``matmul.plan``.

    Raises
    ------
    ShapeError, DTypeError, OverlapError, ArgumentError, UnsupportedError
        As of ``matmul.plan``.

    Examples
    --------
    >>> import numpy as np, gemmule as gm
    >>> gm.gemm.plan(np.ones((2, 3)), np.ones((3, 4)), epilogue="relu", executor="cpu").epilogue
    'relu(acc)'
    """
    given = ProductArguments(
        "gemm", a, b, c, alpha, beta, out, out_dtype, precision, stream, executor, bias, epilogue, epilogue_args, gated,
        absmax, conj_a, conj_b,
    )  # fmt: skip
    return plan_to_read(given, kernel, chip)


def transpose(
    x: Any,
    /,
    axes: Sequence[int] | None = None,
    *,
    out: Any = None,
    stream: Any = None,
    executor: str | None = None,
    kernel: str | None = None,
    chip: str | None = None,
) -> Plan:
    """Say what a call of `transpose` would run, and why; nothing is computed until `Plan.execute`.

    The parameters are those of `transpose`, ``kernel`` and ``chip`` as of ``matmul.plan``.

    Returns
    -------
    Plan
        As of ``matmul.plan``.

    Raises
    ------
    ShapeError, DTypeError, OverlapError, ArgumentError, UnsupportedError
        As of `transpose`, and of ``matmul.plan``.
    """
    return plan_transpose(x, axes_as_given(axes), out=out, stream=stream, executor=executor, kernel=kernel, chip=chip)


def matrix_transpose(
    x: Any,
    /,
    *,
    out: Any = None,
    stream: Any = None,
    executor: str | None = None,
    kernel: str | None = None,
    chip: str | None = None,
) -> Plan:
    """Say what a call of `matrix_transpose` would run, and why; nothing is computed until `Plan.execute`.

    The parameters are those of `matrix_transpose`, ``kernel`` and ``chip`` as of ``matmul.plan``.

    Returns
    -------
    Plan
        As of ``matmul.plan``.

    Raises
    ------
    ShapeError, DTypeError, OverlapError, ArgumentError, UnsupportedError
        As of `matrix_transpose`, and of ``matmul.plan``.
    """
    return plan_transpose(x, last_two_exchanged, out=out, stream=stream, executor=executor, kernel=kernel, chip=chip)
