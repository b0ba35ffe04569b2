"""A pipeline's timeline: which warps copy, multiply and write, k-tile by k-tile, and who waits for whom.

Made by `roles` from the events of a sample that the virtual GPU ran, by the rules of `steps`.
"""

from __future__ import annotations

import dataclasses

from .steps import Rules

#: Work of a warp, in the order of its description.
DOES = ("copies", "multiplies", "writes")
#: The same of several warps.
PLURAL = {"copies": "copy", "multiplies": "multiply", "writes": "write"}


@dataclasses.dataclass(frozen=True)
class Role:
    """Warps of a CTA that do the same."""

    cta: int
    warps: tuple[int, ...]
    does: tuple[str, ...]

    @property
    def name(self) -> str:
        """As in ``warps 4-7``."""
        first, last = self.warps[0], self.warps[-1]
        return f"warp {first}" if first == last else f"warps {first}-{last}"


@dataclasses.dataclass(frozen=True)
class Span:
    """Something that lasts."""

    #: ``copy``, from the request to the last byte; ``products``; ``write``, stores of threads; ``store``, of the copy
    #: engine; or ``wait``.
    what: str
    role: Role  #: Role that does or issued it.
    #: begin, end: In cycles.
    begin: float
    end: float
    cta: int  #: The CTA that it happens in: of a copy, one that gets the k-tile.
    k_tile: int | None = None  #: Number of the k-tile among those of the CTA that gets it.
    stage: int | None = None  #: Stage of shared memory.
    about: str = ""  #: Awaited event of a wait.


@dataclasses.dataclass(frozen=True)
class Wait:
    """Waits of a role for others."""

    role: Role  #: Waiting role.
    #: Awaited: ``slices``, ``free stages``, ``C``, ``its products``, ``its stores``, ``its turn`` (a barrier at which
    #: the arriving roles do not wait), ``a barrier`` or ``the cluster``.
    about: str
    by: tuple[Role, ...]  #: Arriving roles.
    times: int  #: Number of waits.
    cycles: float  #: Total duration, of the warp that waits longest.
    critical: int  #: Number of these waits on the critical path.


@dataclasses.dataclass(frozen=True)
class Timeline:
    """A pipeline in steps."""

    rules: Rules  #: Assumed durations.
    step: float  #: Cycles of a step: the products of one k-tile of a CTA, on the tensor cores.
    #: tiles, k_tiles, stages: Tiles that a CTA computes in the sample, k-tiles of each, and stages in shared memory.
    tiles: int
    k_tiles: int
    stages: int
    #: ctas, multiprocessors: CTAs of the sample, and what they run on.
    ctas: int
    multiprocessors: int
    persistent: bool  #: Whether a CTA computes several tiles, in the launch that is explained.
    roles: tuple[Role, ...]  #: Those of all CTAs.
    spans: tuple[Span, ...]  #: Events with their durations.
    waits: tuple[Wait, ...]  #: Waits of the first CTA, by role.
    path: dict[str, float]  #: Cycles of the longest chain of events, by what they pass with.
    #: Cycles in which the tensor cores of the first SM have nothing to do, by when: ``start``, ``tile``
    #: (where a further one begins), ``slice`` or ``end``; and by what they wait for.
    idle: dict[tuple[str, str], float]
    end: float  #: Cycles of the sample.
    copied: float  #: Bytes that TMA loads on the first CTA's SM for the products of a step.

    @property
    def copying(self) -> float:
        """Steps that the copies for the products of a step take, at the rate that is assumed."""
        return self.copied / self.rules.copy_bytes / self.step

    @property
    def busy(self) -> float:
        """Cycles in which the tensor cores of the first SM work."""
        return self.end - sum(self.idle.values())

    def in_flight(self) -> tuple[int, float]:
        """Return how many k-tiles of the first CTA are on their way: the most, and on average while it multiplies."""
        spans = [span for span in self.spans if span.cta == 0]
        copies = [span for span in spans if span.what == "copy"]
        products = [span for span in spans if span.what == "products"]
        most = max(sum(other.begin <= span.begin < other.end for other in copies) for span in copies)
        first, last = min(span.begin for span in products), max(span.end for span in products)
        shared = sum(max(0.0, min(span.end, last) - max(span.begin, first)) for span in copies)
        return most, shared / (last - first)
