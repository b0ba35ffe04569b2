"""A product that passes through a GPU, as benchmarks name it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from gemmule.core.dtype import accumulator, dtype_named
from gemmule.outofcore.device.engine.multi_gpu import choose_plan_for
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.tiles.memory_budget import parse_bytes
from gemmule.outofcore.tiles.plan import Operand, Product


@dataclasses.dataclass(frozen=True)
class Cell:
    """A product: its type, its extents m, n and k, and the memory of each GPU that it may take."""

    dtype: str
    shape: tuple[int, int, int]
    device_memory: str

    @classmethod
    def parse(cls, text: str) -> Cell:
        """Return the product of ``type:extents:memory``, where one extent stands for all three."""
        dtype, extents, memory = text.split(":")
        m, n, k = (list(map(int, extents.split(","))) * 3)[:3]
        return cls(dtype, (m, n, k), memory)

    @property
    def numpy(self) -> np.dtype:
        """The type as NumPy has it."""
        return dtype_named(self.dtype).numpy()

    @property
    def sums(self) -> np.dtype:
        """The type that slices are summed in."""
        return accumulator(dtype_named(self.dtype), dtype_named(self.dtype)).numpy()

    @property
    def nbytes(self) -> int:
        """Bytes of all three matrices."""
        m, n, k = self.shape
        return (m * k + k * n + m * n) * self.numpy.itemsize

    @property
    def flop(self) -> int:
        """Multiplications and additions."""
        return 2 * math.prod(self.shape)

    def matrices(self, pool: np.ndarray) -> list[np.ndarray]:
        """Return A, B and the result in a pool of memory."""
        m, n, k = self.shape
        found, start = [], 0
        for rows, cols in ((m, k), (k, n), (m, n)):
            size = rows * cols * self.numpy.itemsize
            found.append(pool[start : start + size].view(self.numpy).reshape(rows, cols))
            start += size
        return found

    def plan(self, devices: int, rates: Rates, strategy: str | None = None):
        """Return what the planner chooses."""
        operand = Operand(self.numpy)
        product = Product(*self.shape, operand, operand, operand)
        memory = parse_bytes(self.device_memory)
        return choose_plan_for(devices, product, self.sums, memory, rates, strategy=strategy)
