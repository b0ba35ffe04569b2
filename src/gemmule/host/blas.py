"""The BLAS library that NumPy calls: the kernels that it picked for this CPU, and its threads.

Both decide the last bits of a product. OpenBLAS cuts a product into one part per thread, and sums the elements at the
edges of a part in another order than those inside.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..core.errors import ArgumentError
from .block_product import blas_threads

#: Prefixes and suffixes of OpenBLAS's function names, in NumPy's wheels and elsewhere.
_AFFIXES = (
    ("scipy_openblas_", "64_"), ("scipy_openblas_", ""), ("openblas_", "64_"), ("openblas_", "_64"), ("openblas_", "")
)  # fmt: skip


@functools.cache
def _function(name: str) -> Any:
    """Return a function of the OpenBLAS that NumPy is linked with; None for another BLAS."""
    extension = importlib.import_module("numpy._core._multiarray_umath").__file__
    if extension is None:
        return None
    # The extension is loaded already, and its symbols are looked for in what it is linked with, too.
    library = ctypes.CDLL(extension)
    found = (getattr(library, before + name + after, None) for before, after in _AFFIXES)
    return next((function for function in found if function is not None), None)


def describe() -> str:
    """Return name and version of the BLAS, the CPU of its kernels where it reports one, and NumPy's version."""
    config: Any = np.show_config(mode="dicts")
    blas = (config or {}).get("Build Dependencies", {}).get("blas", {})
    name = " ".join(str(blas[key]) for key in ("name", "version") if blas.get(key)) or "unknown BLAS"
    core = _function("get_corename")
    if core is not None:
        core.restype = ctypes.c_char_p
        name = f"{name} for {core().decode()}"
    return f"{name}, through NumPy {np.__version__}"


def thread_count() -> int:
    """Return how many threads BLAS uses now; for a library other than OpenBLAS, what the environment allows."""
    count = _function("get_num_threads")
    return blas_threads() if count is None else int(count())


@contextlib.contextmanager
def threads_set(count: int | None) -> Iterator[None]:
    """Let BLAS use `count` threads inside the block, in the whole process; None changes nothing.

    Raises
    ------
    ArgumentError
        If it uses another number, and is no OpenBLAS, whose number can be set.
    """
    before = thread_count()
    if count is None or count == before:
        yield
        return
    change = _function("set_num_threads")
    if change is None:
        raise ArgumentError(
            f"the unfinished work was computed with {count} BLAS threads, and {describe()} uses {before} here; the "
            f"bits would differ from tile to tile; set OMP_NUM_THREADS={count}, or start afresh with resume=False"
        )
    change(count)
    try:
        if thread_count() != count:
            raise ArgumentError(
                f"the unfinished work was computed with {count} BLAS threads, and {describe()} has {thread_count()} at "
                "most; the bits would differ from tile to tile; start afresh with resume=False"
            )
        yield
    finally:
        change(before)
