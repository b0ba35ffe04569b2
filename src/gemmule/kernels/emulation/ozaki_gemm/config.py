"""The configs of the kernel that finds the scales of Ozaki scheme II."""

from __future__ import annotations

import dataclasses

from gemmule.core.spec import Config

#: Threads of a CTA, and MN-major lines that it measures side by side.
THREADS, ACROSS = 256, 16


@dataclasses.dataclass(frozen=True)
class ScalesConfig(Config):
    """How lines are measured.

    Attributes
    ----------
    ahead : int
        Elements that a thread loads at once.
    """

    ahead: int = 8
