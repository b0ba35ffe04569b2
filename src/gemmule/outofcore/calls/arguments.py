"""Arguments of products of large matrices: their names and how each is checked."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from gemmule.api.validation.rules import default_beta, dtype_name, flag, number_in
from gemmule.core.errors import ArgumentError, shown
from gemmule.dispatch.former_names import STRATEGIES

if TYPE_CHECKING:
    from ..tiles.engine import Progress
    from .request import Request

#: Kinds of numbers, the narrowest first, with what makes Python's own of them.
_KINDS: list[tuple[type, Callable[[Any], Any]]] = [
    (numbers.Integral, int),
    (numbers.Real, float),
    (numbers.Complex, complex),
]


class Options(TypedDict, total=False):
    """Further arguments of `matmul`, by keyword.

    Attributes
    ----------
    transpose_a, transpose_b : bool
        Whether to multiply the transpose of `a` and of `b`, whose shapes are then (k, m) and (n, k).
    conj_a, conj_b : bool
        Whether to multiply the complex conjugate of `a` and of `b`: with a transpose, the adjoint. The host conjugates
        while it reads.
    out_dtype : dtype or str
        Element type of the result. The default is that of `out`, or the common type of the operands; int32 for int8.
    compute_dtype : dtype or str
        Type that the operands are converted to while they are read, e.g. float32 for stored float16.
    a_dtype, b_dtype, c_dtype : str
        Type of raw items, for types that a store cannot name: ``"bfloat16"``, ``"float8_e4m3fn"`` or ``"float8_e5m2"``.
    precision : {'ieee', 'tf32', 'bf16x6', 'ozaki', 'ozaki-14', 'ozaki-15', 'ozaki-16', 'float8'}
        Arithmetic for float32 and float64 operands, or 8-bit floats, as in `gemmule.matmul`.
    executor : {'gpu', 'cpu', 'vgpu'}
        Executor; by default a GPU that supports the types, if there is one.
    resume : bool
        Whether to resume the unfinished work of an interrupted process; otherwise it is deleted.
    force : bool
        Whether a file of that name may be replaced.
    chunks, shards : int or tuple of int
        Rows and columns of the chunks, and of the shards, of a new Zarr array; one number stands for both.
    verify : bool
        Whether to check the result with random vectors before it appears.
    scheduler : str
        Address of a Dask scheduler, e.g. ``"tcp://node:8786"``, whose workers compute; all of them must see the files,
        and `memory` holds for each.
    device_memory, pinned_memory : int or str
        Limit for the buffers on a GPU, and for pinned memory that files and pageable arrays are staged in, which counts
        within `memory` too. With ``executor="cpu"`` either of them selects the streaming engine of a GPU, with host
        memory as the device's, within `memory`; without a GPU they are an error otherwise.
    strategy : {'c-stationary', 'panels', 'resident-c', 'five-buffers'}
        Matrix that stays on the GPU while the others are streamed; chosen by default.
    devices : int or sequence of int
        GPUs of one kind that share the tiles, e.g. ``[0, 1]``; `device_memory` holds for each. By default the first.
    progress : callable
        Called after every k-tile with the multiply-adds done and the total.
    """

    transpose_a: bool
    transpose_b: bool
    conj_a: bool
    conj_b: bool
    out_dtype: Any
    compute_dtype: Any
    a_dtype: str | None
    b_dtype: str | None
    c_dtype: str | None
    precision: str | None
    executor: str | None
    resume: bool
    force: bool
    chunks: int | tuple[int, int] | None
    shards: int | tuple[int, int] | None
    verify: bool
    scheduler: str | None
    device_memory: int | str | None
    pinned_memory: int | str | None
    strategy: str | None
    devices: int | Sequence[int] | None
    progress: Progress | None


def request_of(given: Mapping[str, Any]) -> Request:
    """Return the product that arguments of `matmul` describe, each of them checked.

    Raises
    ------
    ArgumentError, DTypeError
        If one of them is none of its kind.
    """
    # Not with the package: those who multiply arrays in memory do not wait for what streams files.
    from .request import Request

    checked = {name: _CHECKS[name](name, value) if name in _CHECKS else value for name, value in given.items()}
    checked["beta"] = scalar_number("beta", default_beta(given["beta"], unread=given["c"] is not None))
    checked.pop("progress", None)
    return Request(**checked)


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


def ordinals(name: str, given: Any) -> tuple[int, ...] | None:
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
        raise ArgumentError(f"{name}={shown(given)} are no numbers of GPUs; give some, as [0, 1], or leave {name} out")
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
        f"{name} is of type {type(value).__name__}, not a number; pass a number, or an array without dimensions"
    )


def name_or_none(name: str, given: Any) -> str | None:
    """Return a name, checked.

    Raises
    ------
    ArgumentError
        If it is no text.
    """
    if given is not None and not isinstance(given, str):
        raise ArgumentError(f"{name}={shown(given)} is not text; give a name, or leave {name} out")
    return given


def progress_or_none(name: str, given: Any) -> Any:
    """Return the progress function.

    Raises
    ------
    ArgumentError
        If it cannot be called.
    """
    if given is not None and not callable(given):
        raise ArgumentError(f"{name}={given!r} cannot be called; give a function of two numbers: done and total")
    return given


def type_or_none(name: str, given: Any) -> str | None:
    """Return the name of an element type.

    Raises
    ------
    DTypeError
        If it is none.
    """
    return None if given is None else dtype_name(given, name)


def _whole_numbers(given: Any) -> tuple[int, ...]:
    """Return a number, or several, as a tuple; an empty one for what is neither, booleans among them."""
    try:
        items = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
        return () if any(isinstance(item, bool) for item in items) else tuple(map(operator.index, items))
    except (TypeError, NotImplementedError):
        # The latter of a memoryview of several dimensions.
        return ()


def _strategy(name: str, given: Any) -> str | None:
    text = name_or_none(name, given)
    return None if text is None else STRATEGIES.get(text, text)


#: Checks of arguments by name, except those checked when opening or planning.
_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "alpha": scalar_number,
    **dict.fromkeys(("transpose_a", "transpose_b", "conj_a", "conj_b", "resume", "force", "verify"), flag),
    **dict.fromkeys(("out_dtype", "compute_dtype"), type_or_none),
    **dict.fromkeys(("a_dtype", "b_dtype", "c_dtype", "scheduler"), name_or_none),
    **dict.fromkeys(("chunks", "shards"), extents),
    "devices": ordinals,
    "strategy": _strategy,
    "progress": progress_or_none,
}
