"""Forms of Hopper's instructions: small kernels, each of which uses one of them, on random data."""

from __future__ import annotations

import dataclasses
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

# Their PTX is that of the virtual GPU's own tests, `support.ptx`.
TESTS = str(Path(__file__).parents[3] / "tests")
if TESTS not in sys.path:
    sys.path.append(TESTS)

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]
#: The body of a kernel, its operands, and how it is launched, as `support.ptx.hopper.prepared` takes it.
Prepared = tuple[str, Arrays, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Form:
    """One form of an instruction.

    Attributes
    ----------
    group : str
        What it belongs to, such as ``load``.
    name : str
        What tells it from others of the group.
    prepare : callable
        Gives the kernel and its operands, from random numbers.
    """

    group: str
    name: str
    prepare: Callable[[np.random.RandomState], Prepared]

    @property
    def seed(self) -> int:
        """Seed of its random numbers, its own and always the same."""
        return zlib.crc32(f"{self.group} {self.name}".encode())

    def prepared(self) -> Prepared:
        """Return the kernel and its operands; NumPy promises that these random numbers never change."""
        return self.prepare(np.random.RandomState(self.seed))


def random_bits(random: np.random.RandomState, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return an array of any bits."""
    whole = random.randint(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize)).astype(np.uint8)
    return whole.view(dtype)
