"""The configs of the kernel that encodes float64 as int8 residues."""

from __future__ import annotations

import dataclasses

from gemmule.core.spec import Config
from gemmule.kernels.emulation.ozaki_products.config import SLICE

#: Threads of a CTA; elements of a k-tile that one of them converts; MN-major lines that a CTA converts together.
THREADS, RUN, LINES = 256, 4, 32
#: Elements from one line to the next in shared memory: an odd number, so that columns lie in different banks.
PITCH = SLICE + 1


@dataclasses.dataclass(frozen=True)
class ResiduesConfig(Config):
    """How lines are converted.

    Attributes
    ----------
    runs : int
        K-tiles of K-major lines that a warp converts.
    """

    runs: int = 2
