"""Processors of a GPU's NUMA node: threads that stage its matrices run there, and first touch places pages there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def processors_near(pci_bus_id: str, system: Path = Path("/sys")) -> frozenset[int]:
    """Return the processors of the NUMA node that a GPU is attached to.

    Parameters
    ----------
    pci_bus_id : str
        PCI bus id of the GPU, in the driver's format.
    system : Path
        The kernel's description of the machine.

    Returns
    -------
    frozenset of int
        Their numbers; none where there is one node only, or the kernel does not know the GPU's.
    """
    domain, _, rest = pci_bus_id.lower().partition(":")
    try:
        node = int((system / f"bus/pci/devices/{domain[-4:]}:{rest}/numa_node").read_text())
        nodes = list((system / "devices/system/node").glob("node[0-9]*"))
        if node < 0 or len(nodes) < 2:
            return frozenset()
        return _listed((system / f"devices/system/node/node{node}/cpulist").read_text())
    except (OSError, ValueError):
        # Another kernel, or a container that does not show it, or not all of it.
        return frozenset()


def _listed(text: str) -> frozenset[int]:
    """Return the numbers of a list such as ``0-3,8``."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


@contextlib.contextmanager
def bound_to(processors: frozenset[int]) -> Iterator[None]:
    """Run this thread, and those that it starts meanwhile, on some processors, as far as it may run there at all."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    wanted = before & processors
    if not wanted or wanted == before:
        yield
        return
    # It is faster there, and right anywhere: where a container forbids it, threads stay where they are.
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, wanted)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)
