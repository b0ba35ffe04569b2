"""Named ranges as nsys and ncu show them, through NVTX; without the package nvtx they do nothing."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from types import ModuleType

from gemmule.core.errors import UnsupportedError

from .device import current
from .driver import call
from .stopwatch import closing

#: NVTX domain of the ranges: ``ncu --nvtx --nvtx-include "gemmule@NAME/"`` finds them.
DOMAIN = "gemmule"


@functools.cache
def _nvtx() -> ModuleType | None:
    try:
        return importlib.import_module("nvtx")
    except ImportError:
        return None


@contextlib.contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """Give the block a name that other profilers show."""
    nvtx = _nvtx()
    if nvtx is None:
        yield
        return
    with nvtx.annotate(name, domain=DOMAIN):
        yield


class RangesOnly:
    """Ranges for a profiler that watches from outside; nothing is measured here."""

    @staticmethod
    def range(name: str) -> contextlib.AbstractContextManager[None]:
        """Give the block a name."""
        return nvtx_range(name)


@contextlib.contextmanager
def ranges_only(ordinal: int = 0) -> Iterator[RangesOnly]:
    """Show other profilers where the interesting part begins and ends (cuProfilerStart and cuProfilerStop).

    Raises
    ------
    UnsupportedError
        If the package nvtx is not installed: the ranges are all that this is for.
    """
    if _nvtx() is None:
        raise UnsupportedError(
            "--ranges-only names ranges through the package nvtx, which is not installed; "
            "pip install 'gemmule[profile]'"
        )
    with current(ordinal):
        call("cuProfilerStart")
        with closing(lambda: call("cuProfilerStop")):
            yield RangesOnly()
