"""The GPU that a command measures on, and the yardstick beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..core.chips import Chip
from ..core.errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    from ..lab.device import Yardstick
    from ..runtime.bench import BenchGpu


@contextlib.contextmanager
def open_gpu(*, yardstick: bool) -> Iterator[tuple[BenchGpu, Yardstick | None]]:
    """Open the first GPU, and cuBLASLt on it where it is wanted.

    Raises
    ------
    UnsupportedError
        If there is no GPU, or no cuBLASLt though it is wanted.
    """
    from ..runtime.bench import bench_gpu
    from ..runtime.device import device_count

    if device_count() == 0:
        raise UnsupportedError(
            "no NVIDIA GPU is to be had here, and kernels are timed on nothing else; what works here: `gemmule bench "
            "show FILE` for figures recorded elsewhere (benchmarks/results in the sources), `gemmule compare M N K` "
            "for the CPU's time and a chip's limits, `gemmule info`, and products of host arrays and files"
        )
    with contextlib.ExitStack() as stack:
        gpu = stack.enter_context(bench_gpu())
        yield gpu, stack.enter_context(gpu.cublaslt()) if yardstick else None


def known_chip(name: str) -> Chip | None:
    """Return the facts of the chip of that name; None where the table lacks it."""
    from ..core.chips import chip_named

    try:
        return chip_named(name)
    except ArgumentError:
        return None
