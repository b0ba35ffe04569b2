"""The config of the CRT reconstruction of Ozaki scheme II, and what its kernel and its predecessors agree on."""

from __future__ import annotations

import dataclasses

from gemmule.core.spec import Config

#: Threads of a CTA, and columns that each of them reconstructs.
THREADS, RUN = 256, 4
#: The scale of a row or column with an element that is not finite.
NOT_FINITE = 2**20


@dataclasses.dataclass(frozen=True)
class ReconstructionConfig(Config):
    """Nothing to choose."""
