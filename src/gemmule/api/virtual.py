"""Host arrays on the virtual GPU: seen by the kernels as they lie in memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from gemmule.core.layout import element_alignment
from gemmule.runtime.arrays import ArrayView

Array = np.ndarray[Any, np.dtype[Any]]


def as_device_view(view: ArrayView) -> ArrayView:
    """Return a host array's memory with address and strides, as kernels see it.

    An array that kernels cannot read in place, of the other byte order or between elements, is copied.
    """
    assert view.host is not None
    from gemmule.vgpu.arrays import virtual_address

    host = view.host
    item = host.itemsize
    between = virtual_address(host) % element_alignment(item) or any(stride % item for stride in host.strides)
    if not host.dtype.isnative or between:
        host = np.array(host, host.dtype.newbyteorder("="), order="C")
    strides = tuple(stride // item for stride in host.strides)
    return dataclasses.replace(view, host=host, address=virtual_address(host), strides=strides)


def copy_again(seen: ArrayView, given: ArrayView) -> None:
    """Bring what the caller's array holds by now into what kernels see, where that is a copy."""
    assert given.host is not None
    assert seen.host is not None
    if seen.host is not given.host:
        seen.host[...] = given.host


def copy_back(seen: ArrayView, given: ArrayView) -> None:
    """Bring what a kernel wrote into the caller's array, where that was seen through a copy."""
    assert given.host is not None
    assert seen.host is not None
    if seen.host is not given.host:
        given.host[...] = seen.host
