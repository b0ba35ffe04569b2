"""The public function for matrices that do not fit into memory, and the plan of its calls."""

from __future__ import annotations

import functools
import inspect
import numbers
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, cast

from gemmule.api.validation.rules import default_beta, dtype_name, flag, number_in
from gemmule.core.errors import ArgumentError, WrongResultError, shown
from gemmule.core.name_suggestions import did_you_mean, similar_names
from gemmule.dispatch.former_names import STRATEGIES

if TYPE_CHECKING:
    from ..tiles.engine import Progress
    from ..tiles.report import Report
    from .plan import Plan
    from .request import Request

#: Arguments by how they are validated, but for those with a rule of their own; the first are by what opens or plans.
_PLAIN = ("a", "b", "out", "c", "memory", "precision", "executor", "device_memory", "pinned_memory")
_TEXTS = ("a_dtype", "b_dtype", "c_dtype", "scheduler", "strategy")
_FLAGS = ("transpose_a", "transpose_b", "conj_a", "conj_b", "resume", "force")
_TYPES = ("out_dtype", "compute_dtype")
#: Kinds of numbers, the narrowest first, with what makes Python's own of them.
_KINDS: list[tuple[type, Callable[[Any], Any]]] = [
    (numbers.Integral, int),
    (numbers.Real, float),
    (numbers.Complex, complex),
]

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

    def check_names(given: Mapping[str, Any]) -> None:
        for name in given.keys() - signature.parameters.keys():
            near = similar_names(name, signature.parameters)
            hint = did_you_mean(near) if near else "help(gemmule.outofcore.matmul) lists them"
            raise TypeError(f"matmul() has no argument {name!r}; {hint}")

    @functools.wraps(function)
    def call(*args: _Call.args, **kwargs: _Call.kwargs) -> Report:
        check_names(kwargs)
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

        check_names(kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return planned_request(_request(bound.arguments), lambda: call(*args, **kwargs))

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
    transpose_a: bool = False,
    transpose_b: bool = False,
    conj_a: bool = False,
    conj_b: bool = False,
    memory: int | str | None = None,
    out_dtype: Any = None,
    compute_dtype: Any = None,
    a_dtype: str | None = None,
    b_dtype: str | None = None,
    c_dtype: str | None = None,
    precision: str | None = None,
    executor: str | None = None,
    resume: bool = True,
    force: bool = False,
    chunks: int | tuple[int, int] | None = None,
    shards: int | tuple[int, int] | None = None,
    verify: bool = False,
    scheduler: str | None = None,
    device_memory: int | str | None = None,
    pinned_memory: int | str | None = None,
    strategy: str | None = None,
    devices: int | Sequence[int] | None = None,
    progress: Progress | None = None,
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
    transpose_a, transpose_b : bool
        Whether to multiply the transpose of `a` and of `b`, whose shapes are then (k, m) and (n, k).
    conj_a, conj_b : bool
        Whether to multiply the complex conjugate of `a` and of `b`: with a transpose, the adjoint. The host conjugates
        while it reads.
    memory : int or str, optional
        Limit for all buffers together: bytes, or text like ``"2GB"``. The default is half of the free memory.
    out_dtype : dtype or str, optional
        Element type of the result. The default is that of `out`, or the common type of the operands; int32 for int8.
    compute_dtype : dtype or str, optional
        Type that the operands are converted to while they are read, e.g. float32 for stored float16.
    a_dtype, b_dtype, c_dtype : str, optional
        Type of raw items, for types that a store cannot name: ``"bfloat16"``, ``"float8_e4m3fn"`` or ``"float8_e5m2"``.
    precision : {'ieee', 'tf32', 'bf16x6', 'ozaki', 'ozaki-14', 'ozaki-15', 'ozaki-16', 'float8'}, optional
        Arithmetic for float32 and float64 operands, or 8-bit floats, as in `gemmule.matmul`.
    executor : {'gpu', 'cpu', 'vgpu'}, optional
        Where to compute; by default a GPU that supports the types, if there is one.
    resume : bool
        Whether to resume the unfinished work of an interrupted process; otherwise it is deleted.
    force : bool
        Whether a file of that name may be replaced.
    chunks, shards : int or tuple of int, optional
        Rows and columns of the chunks, and of the shards, of a new Zarr array; one number stands for both.
    verify : bool
        Whether to check the result with random vectors before it appears.
    scheduler : str, optional
        Address of a Dask scheduler, e.g. ``"tcp://node:8786"``, whose workers compute; all of them must see the files,
        and `memory` holds for each.
    device_memory, pinned_memory : int or str, optional
        Limit for the buffers on a GPU, and for pinned memory that files and pageable arrays are staged in, which counts
        within `memory` too. On the host either of them selects the streaming engine of a GPU, with host memory as
        the device's, within `memory`.
    strategy : {'c-stationary', 'panels', 'resident-c', 'five-buffers'}, optional
        Matrix that stays on the GPU while the others are streamed; chosen by default.
    devices : int or sequence of int, optional
        GPUs of one kind that share the tiles, e.g. ``[0, 1]``; `device_memory` holds for each. By default the first.
    progress : callable, optional
        Called after every k-tile with the multiply-adds done and the total.

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
        If the result fails the check. It is kept unless an element is proved wrong; the message says so.

    Warns
    -----
    RuntimeWarning
        If some elements could not be checked, for instance where partial sums may overflow. The result is kept.

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

    # The arguments, by name.
    with StreamSession(_request(locals())) as session:
        session.open_result()
        report = session.run(None if progress is None else lambda done, total, *_: progress(done, total))
        verdict = session.conclude()
    if verdict is not None and not verdict.passed:
        raise WrongResultError(verdict.failure("out", f"seed={verdict.seed}"))
    if verdict is not None and verdict.caveat:
        warnings.warn(f"out: {verdict.caveat}", RuntimeWarning, stacklevel=3)
    return report


def _request(given: Mapping[str, Any]) -> Request:
    """Return the product that arguments of `matmul` describe, each of them checked."""
    # Not with the package: those who multiply arrays in memory do not wait for what streams files.
    from .request import Request

    validated_progress(given["progress"])
    checked: dict[str, Any] = {name: given[name] for name in _PLAIN}
    checked |= {name: name_or_none(name, given[name]) for name in _TEXTS}
    checked["strategy"] = STRATEGIES.get(checked["strategy"], checked["strategy"])
    checked |= {name: flag(name, given[name]) for name in _FLAGS}
    checked |= {name: None if given[name] is None else dtype_name(given[name], name) for name in _TYPES}
    return Request(
        **checked,
        alpha=scalar_number("alpha", given["alpha"]),
        beta=scalar_number("beta", default_beta(given["beta"], unread=given["c"] is not None)),
        checked=flag("verify", given["verify"]),
        chunks=extents("chunks", given["chunks"]),
        shards=extents("shards", given["shards"]),
        devices=ordinals(given["devices"]),
    )


def extents(name: str, given: Any) -> tuple[int, int] | None:
    """Return rows and columns of chunks or shards, of which one number stands for both.

    Raises
    ------
    ArgumentError
        If they are no two whole numbers from 1.
    """
    if given is None:
        return None
    pair = _whole_numbers(given)
    if len(pair) == 1:
        pair = (*pair, *pair)
    if len(pair) != 2 or min(pair) < 1:
        raise ArgumentError(f"{name}={shown(given)} are not rows and columns; give two whole numbers, as (1024, 512)")
    return pair[0], pair[1]


def ordinals(given: Any) -> tuple[int, ...] | None:
    """Return the numbers of GPUs, of which one may stand alone.

    Raises
    ------
    ArgumentError
        If they are no whole numbers.
    """
    if given is None:
        return None
    numbers_given = _whole_numbers(given)
    if not numbers_given:
        raise ArgumentError(
            f"devices={shown(given)} are no numbers of GPUs; give some, as [0, 1], or leave devices out"
        )
    return numbers_given


def scalar_number(name: str, value: Any) -> Any:
    """Return alpha or beta as Python's own number, which is written into journals and compares without rounding.

    Raises
    ------
    ArgumentError
        If it is no number, or out of the range of a float64.
    """
    value = number_in(name, value)
    for kind, number in _KINDS:
        if isinstance(value, kind):
            try:
                return number(value)
            except OverflowError:
                raise ArgumentError(f"{name} does not fit into a float64; scale the matrices instead") from None
    raise ArgumentError(
        f"{name} is a {type(value).__name__}, not a number; pass a number, or an array without dimensions"
    )


def name_or_none(name: str, given: Any) -> str | None:
    """Return what is to be a name.

    Raises
    ------
    ArgumentError
        If it is no text.
    """
    if given is not None and not isinstance(given, str):
        raise ArgumentError(f"{name}={shown(given)} is no text; give a name, or leave {name} out")
    return given


def validated_progress(progress: Any) -> Any:
    """Return the progress function.

    Raises
    ------
    ArgumentError
        If it cannot be called.
    """
    if progress is not None and not callable(progress):
        raise ArgumentError(f"progress={progress!r} cannot be called; give a function of two numbers: done and total")
    return progress


def _whole_numbers(given: Any) -> tuple[int, ...]:
    """Return a number, or several, as a tuple; an empty one for what is neither."""
    items = given if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    try:
        return tuple(map(operator.index, items))
    except (TypeError, NotImplementedError):
        # The latter of a memoryview of several dimensions.
        return ()
