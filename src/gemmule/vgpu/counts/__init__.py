"""Counts: what the hardware would do for a kernel, by instruction and source line."""

from .counter import Counter
from .tally import Counts, InstructionCounts

__all__ = ["Counter", "Counts", "InstructionCounts"]
