"""Which executor computes the tiles of a large product."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gemmule.core.dtype import Precision
from gemmule.executor.tiles import TileExecutor
from gemmule.outofcore.search import TINY_BUDGET

from .executors import host_arrays_executor, wanted_executor


@contextlib.contextmanager
def chosen_executor(
    name: str | None, precision: Precision, dtypes: tuple[str, str, str], c_dtype: str | None, memory: int
) -> Iterator[tuple[TileExecutor, int]]:
    """Open the executor called `name`; None takes the GPU where there is one that can.

    Parameters
    ----------
    name : str or None
        ``gpu``, ``cpu``, ``vgpu`` or None.
    precision : Precision
        What float32 products may be rounded to.
    dtypes : tuple of str
        Types of A, B and the result.
    c_dtype : str or None
        Type of the matrix to add.
    memory : int
        The caller's limit in bytes.

    Yields
    ------
    executor, memory
        The executor, and the limit, lowered to what fits into the GPU.

    Raises
    ------
    UnsupportedError
        If the executor that was asked for is not to be had here, or cannot take the problem.
    """
    # A file is always worth the way to a GPU: what it costs is reading it.
    chosen, _ = host_arrays_executor(wanted_executor(name), None, dtypes, c_dtype)
    if chosen == "gpu":
        from gemmule.dispatch.select import choose
        from gemmule.runtime.memory import usable_memory
        from gemmule.runtime.tiles import GpuTileExecutor

        with GpuTileExecutor(choose, 0, precision) as gpu:
            yield gpu, min(memory, usable_memory(0))
    elif chosen == "vgpu":
        from gemmule.dispatch.select import choose
        from gemmule.vgpu.tiles import VirtualTileExecutor

        yield VirtualTileExecutor(choose, precision), memory
    else:
        from gemmule.host.tiles import HostTileExecutor

        yield HostTileExecutor(tiny=memory < TINY_BUDGET), memory
