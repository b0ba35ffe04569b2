"""cuBLASXt, the peer of streamed products: row-major matrices in host memory, one GPU, a chosen block size."""

from __future__ import annotations

import ctypes
import sys
import threading
import time

import numpy as np

from gemmule.runtime.device import current
from gemmule.runtime.driver import call

_KINDS = {"float64": ("D", ctypes.c_double), "float32": ("S", ctypes.c_float)}
#: As cublas.h has them.
_NOT_TRANSPOSED, _LOWER = 0, 0
#: Seconds between two looks at the memory that is left.
_INTERVAL = 0.01


def supported(dtype: np.dtype) -> bool:
    """Whether cuBLASXt has products of a type."""
    return dtype.name in _KINDS


class CublasXt:
    """A handle of cuBLASXt; a context manager.

    Parameters
    ----------
    block : int
        Side of the blocks that it cuts matrices into.
    pinning : bool
        Whether it is to pin pageable matrices while it works.
    """

    def __init__(self, block: int, *, pinning: bool = False) -> None:
        try:
            self._library = ctypes.CDLL("libcublas.so.13")
        except OSError:
            from cuda.pathfinder import load_nvidia_dynamic_lib

            self._library = ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
        self._handle = ctypes.c_void_p()
        self._call("cublasXtCreate", ctypes.byref(self._handle))
        self._call("cublasXtDeviceSelect", self._handle, 1, (ctypes.c_int * 1)(0))
        self._call("cublasXtSetBlockDim", self._handle, block)
        if pinning:
            self._call("cublasXtSetPinningMemMode", self._handle, 1)

    def __enter__(self) -> CublasXt:
        return self

    def __exit__(self, *exc: object) -> None:
        self._call("cublasXtDestroy", self._handle)

    def gemm(self, a: np.ndarray, b: np.ndarray, out: np.ndarray, beta: float = 0.0) -> float:
        """Compute ``out = a @ b + beta * out``; return the seconds."""
        letter, scalar = _KINDS[out.dtype.name]
        (m, n), k = out.shape, a.shape[1]
        # Column-major, so that the product is that of the transposes.
        return self._call(
            f"cublasXt{letter}gemm", self._handle, _NOT_TRANSPOSED, _NOT_TRANSPOSED, *map(ctypes.c_size_t, (n, m, k)),
            ctypes.byref(scalar(1)), *_matrix(b), *_matrix(a), ctypes.byref(scalar(beta)), *_matrix(out),
        )  # fmt: skip

    def gram(self, x: np.ndarray, out: np.ndarray) -> float:
        """Compute ``x.T @ x`` on and above the diagonal of `out`; return the seconds."""
        letter, scalar = _KINDS[out.dtype.name]
        return self._call(
            f"cublasXt{letter}syrk", self._handle, _LOWER, _NOT_TRANSPOSED, *map(ctypes.c_size_t, x.shape[::-1]),
            ctypes.byref(scalar(1)), *_matrix(x), ctypes.byref(scalar(0)), *_matrix(out),
        )  # fmt: skip

    def _call(self, name: str, *arguments: object) -> float:
        function = getattr(self._library, name)
        start = time.perf_counter()
        status = function(*arguments)
        seconds = time.perf_counter() - start
        if status:
            sys.exit(f"{name} returned {status}")
        return seconds


def _matrix(array: np.ndarray) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
    return ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.shape[1])


def cublasxt(a: np.ndarray, b: np.ndarray, out: np.ndarray, block: int) -> float | None:
    """Return the seconds of cuBLASXt's product of row-major matrices, None for other types."""
    if not supported(out.dtype):
        return None
    with CublasXt(block) as library:
        return library.gemm(a, b, out)


class MemoryTaken:
    """The most device memory that was taken while a block ran, beyond what was taken before; a context manager."""

    def __enter__(self) -> MemoryTaken:
        self._over = threading.Event()
        self._before = self._least = _free()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._over.wait(_INTERVAL):
            self._least = min(self._least, _free())

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def nbytes(self) -> int:
        """Bytes of it."""
        return self._before - self._least


def _free() -> int:
    with current(0):
        return int(call("cuMemGetInfo")[0])
