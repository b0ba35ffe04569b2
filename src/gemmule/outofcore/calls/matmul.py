"""The public function for matrices that do not fit into memory, and the plan of its calls."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Unpack, cast

from gemmule.core.errors import WrongResultError
from gemmule.core.name_suggestions import did_you_mean, similar_names

from .arguments import Options, request_of

if TYPE_CHECKING:
    from ..tiles.report import Report
    from .plan import Plan

_Call = ParamSpec("_Call")


class StreamingFunction(Protocol[_Call]):
    """A function of large matrices, with a plan of its calls."""

    @property
    def plan(self) -> Callable[_Call, Plan]:
        """The function that plans a call of the same arguments."""

    def __call__(self, *args: _Call.args, **kwargs: _Call.kwargs) -> Report:
        """Call the function."""


def planned(function: Callable[_Call, Report]) -> StreamingFunction[_Call]:
    """Return the function with its `plan`, and with a suggestion for the misspelled name of an argument."""
    signature = inspect.signature(function)
    known = {*signature.parameters, *Options.__annotations__} - {"options"}

    def check_names(called: str, given: Mapping[str, Any]) -> None:
        for name in given.keys() - known:
            near = similar_names(name, known)
            hint = did_you_mean(near) if near else f"help(gemmule.{called}) lists them"
            raise TypeError(f"{called}() has no argument {name!r}; {hint}")

    @functools.wraps(function)
    def call(*args: _Call.args, **kwargs: _Call.kwargs) -> Report:
        check_names("outofcore.matmul", kwargs)
        return function(*args, **kwargs)

    def plan(*args: _Call.args, **kwargs: _Call.kwargs) -> Plan:
        """Plan a call of `matmul` with the same arguments; nothing is computed until `Plan.execute`.

        An existing result may stay. Of a large product through a GPU the disk is timed if that was not done for 30
        days: 384 MiB are written to a file without a name.

        Returns
        -------
        Plan
            Tiles, buffers, traffic and, through a GPU, the expected time.

        Raises
        ------
        GemmuleError
            As of `matmul`.
        """
        from .plan import planned_request

        check_names("outofcore.matmul.plan", kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments | bound.arguments.pop("options")
        return planned_request(request_of(given), lambda: call(*args, **kwargs))

    plan.__qualname__ = "matmul.plan"
    plan.__signature__ = signature.replace(return_annotation="Plan")  # type: ignore[attr-defined]
    vars(call)["plan"] = plan
    return cast("StreamingFunction[_Call]", call)


@planned
def matmul(
    a: Any,
    b: Any,
    out: Any,
    *,
    c: Any = None,
    alpha: Any = 1,
    beta: Any = None,
    memory: int | str | None = None,
    **options: Unpack[Options],
) -> Report:
    """Write ``alpha * a @ b + beta * c`` to `out`, tile by tile: matrices that need not fit into memory.

    ``matmul.plan(a, b, out, ...)`` takes the same arguments, and returns the plan and the predicted time.

    Parameters
    ----------
    a : str, path or array, shape (m, k)
        First operand: a .npy file, a Zarr array (``"store.zarr"``, ``"store.zarr::x"``) or an HDF5 dataset
        (``"data.h5::/group/x"``); or a NumPy array, memory-mapped ones included, a zarr.Array or an h5py.Dataset.
    b : str, path or array, shape (k, n)
        Second operand.
    out : str, path or array, shape (m, n)
        A new .npy file or Zarr array, which appears under its name only when it is complete. Or an existing NumPy array
        or zarr.Array, which is written in place and not resumed.
    c : str, path or array, shape (m, n), optional
        Matrix to add; required if `beta` is not 0; an error if `beta` is omitted.
    alpha, beta : number
        Scalars; integers where the result is of an integer type. The defaults are 1 and 0.
    memory : int or str, optional
        Limit for all buffers together: bytes, or text like ``"2GB"``. The default is half of the free memory.
    **options : Options
        Options of reading, writing, executor and plan.

    Returns
    -------
    Report
        Executor, tiles, time, rate and traffic.

    Raises
    ------
    ShapeError, DTypeError, OverlapError, ArgumentError
        If the matrices or arguments do not fit together, `out` may not be written, or an input was changed since the
        unfinished work began.
    FileFormatError
        If a file's content does not match its header or format.
    FileAccessError
        If the system cannot open, read or write a file; also a FileNotFoundError or PermissionError where it applies.
    MemoryLimitError
        If `memory` is too small; the message names the smallest sufficient limit.
    UnsupportedError
        If a package is not installed, or an executor not available.
    WrongResultError
        If the result fails the check. It is deleted only if an element is proved wrong; the message says so.

    Warns
    -----
    RuntimeWarning
        If some elements could not be checked, for instance where partial sums may overflow. The result stays.

    Examples
    --------
    >>> import numpy as np, gemmule as gm
    >>> out = np.empty((2, 2))
    >>> report = gm.outofcore.matmul(np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]]), out, executor="cpu")
    >>> out
    array([[1., 2.],
           [3., 4.]])
    """
    from .session import StreamSession

    given = {"a": a, "b": b, "out": out, "c": c, "alpha": alpha, "beta": beta, "memory": memory, **options}
    progress = options.get("progress")
    with StreamSession(request_of(given)) as session:
        session.open_result()
        report = session.run(None if progress is None else lambda done, total, *_: progress(done, total))
        verdict = session.conclude()
    if verdict is not None and not verdict.passed:
        raise WrongResultError(verdict.failure("out", f"seed={verdict.seed}"))
    if verdict is not None and verdict.caveat:
        warnings.warn(f"out: {verdict.caveat}", RuntimeWarning, stacklevel=3)
    return dataclasses.replace(report, verified=verdict)
