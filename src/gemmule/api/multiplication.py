"""The public function for products that do not fit."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gemmule.core.errors import WrongResultError

from .multiply_arguments import extents, factor, name_or_none, ordinals, told
from .promotion import dtype_name
from .scalars import said_beta

if TYPE_CHECKING:
    from gemmule.outofcore.tiles.engine import Progress, Report


def multiply(
    a: Any,
    b: Any,
    out: Any,
    *,
    c: Any = None,
    alpha: Any = 1,
    beta: Any = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
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

    Parameters
    ----------
    a : str, path or array, shape (m, k)
        First factor: a .npy file, a Zarr array (``"store.zarr"``, ``"store.zarr::x"``) or an HDF5 dataset
        (``"data.h5::/group/x"``); or a NumPy array, memory-mapped ones included, a zarr.Array or an h5py.Dataset.
    b : str, path or array, shape (k, n)
        Second factor.
    out : str, path or array, shape (m, n)
        A .npy file or Zarr array that is made, and appears under its name only when it is complete. Or a NumPy array or
        zarr.Array that is there; it is written as it goes, and is not resumed.
    c : str, path or array, shape (m, n), optional
        Matrix to add; needed if `beta` is not 0, and refused if that is not said.
    alpha, beta : number
        Scalars; integers where the result is of an integer type. The defaults are 1 and 0.
    transpose_a, transpose_b : bool
        Whether to multiply the transpose of `a` and of `b`, whose shapes are then (k, m) and (n, k).
    memory : int or str, optional
        Limit for all buffers together: bytes, or text like ``"2GB"``. The default is half of what is free.
    out_dtype : dtype or str, optional
        Element type of the result. The default is that of `out`, or the common type of the factors; int32 for int8.
    compute_dtype : dtype or str, optional
        Type that the factors are converted to while they are read, e.g. float32 for stored float16.
    a_dtype, b_dtype, c_dtype : str, optional
        Type of raw items, which a store cannot name: ``"bfloat16"``, ``"float8_e4m3fn"`` or ``"float8_e5m2"``.
    precision : {'ieee', 'tf32', 'bf16x6', 'int8x14', 'int8x15', 'int8x16', 'float8'}, optional
        How float32 or float64 factors, or 8-bit floats, may be multiplied, as of `matmul`.
    executor : {'gpu', 'host', 'vgpu'}, optional
        Where to compute; by default the GPU if there is one that can.
    resume : bool
        Whether to go on with the unfinished work of a process that was stopped; otherwise it is deleted.
    force : bool
        Whether a file of that name may be replaced.
    chunks, shards : int or tuple of int, optional
        Rows and columns of the chunks, and of the shards, of a Zarr array that is made; one number stands for both.
    verify : bool
        Whether to check the result with random vectors before it appears.
    scheduler : str, optional
        Address of a Dask scheduler, e.g. ``"tcp://node:8786"``, whose workers compute; all of them must see the files,
        and `memory` holds for each.
    device_memory, pinned_memory : int or str, optional
        Limit for the buffers on a GPU, and for pinned memory that files and pageable arrays are staged in, which counts
        within `memory` too. On the host, giving one has the product computed as on a GPU, with host memory as the
        device's, within `memory`.
    strategy : {'c-stationary', 'panels', 'resident-c', 'paper'}, optional
        What stays on the GPU while the rest passes by; chosen by default.
    devices : int or sequence of int, optional
        GPUs of one kind that share the tiles, e.g. ``[0, 1]``; `device_memory` holds for each. By default the first.
    progress : callable, optional
        Told after every slice: multiplications done, multiplications in all.

    Returns
    -------
    Report
        What it took.

    Raises
    ------
    ShapeError, DTypeError, OverlapError, ArgumentError
        If the matrices or arguments do not fit together, `out` may not be written, or an input was changed since the
        unfinished work began.
    FileFormatError
        If a file is not what it promises.
    FileAccessError
        If the system does not open, read or write a file: also a FileNotFoundError or PermissionError where it is one.
    MemoryLimitError
        If `memory` is too small; the message says what would do.
    UnsupportedError
        If a package or executor is not to be had.
    WrongResultError
        If the result does not pass the check. It is kept unless an element is proved wrong; the message says so.

    Warns
    -----
    RuntimeWarning
        If the check could judge some elements in no way, for instance where partial sums may overflow. The result is
        kept.

    Examples
    --------
    >>> import numpy as np, gemmule as gm
    >>> out = np.empty((2, 2))
    >>> report = gm.multiply(np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]]), out, executor="host")
    >>> out
    array([[1., 2.],
           [3., 4.]])
    """
    # Not with the package: those who multiply arrays in memory do not wait for what streams files.
    from .streaming.request import Request
    from .streaming.session import StreamSession

    told(progress)
    request = Request(
        a, b, out, c, factor("alpha", alpha), factor("beta", said_beta(beta, unread=c is not None)),
        transpose_a, transpose_b, memory,
        None if out_dtype is None else dtype_name(out_dtype, "out_dtype"),
        None if compute_dtype is None else dtype_name(compute_dtype, "compute_dtype"),
        name_or_none("a_dtype", a_dtype), name_or_none("b_dtype", b_dtype), name_or_none("c_dtype", c_dtype),
        precision, executor, resume, force, extents("chunks", chunks), extents("shards", shards), verify,
        name_or_none("scheduler", scheduler), device_memory, pinned_memory, name_or_none("strategy", strategy),
        devices=ordinals(devices),
    )  # fmt: skip
    with StreamSession(request) as session:
        session.open_result()
        report = session.run(None if progress is None else lambda done, total, *_: progress(done, total))
        verdict = session.conclude()
    if verdict is not None and not verdict.passed:
        raise WrongResultError(verdict.failure("out", f"seed={verdict.seed}"))
    if verdict is not None and verdict.caveat:
        warnings.warn(f"out: {verdict.caveat}", RuntimeWarning, stacklevel=2)
    return report
