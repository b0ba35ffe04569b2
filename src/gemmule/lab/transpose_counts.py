"""The virtual GPU's counts of a transpose, and the throughput that follows with a measured time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

Record = dict[str, Any]

#: Classes of instructions that load from global memory, with cp.async, and that store.
_KINDS = {"load": ("load global", "async copy"), "store": ("store global",)}


class Counted(Protocol):
    """Counts of a launch."""

    @property
    def hit_rates(self) -> Mapping[str, float]:
        """Hit rate of loads' sectors, for ``l1`` and ``l2``."""

    def total(self, name: str, *kinds: str) -> int:
        """Return the sum of a column over the instructions of some classes, or of all."""


def summary(counts: Counted, useful_bytes: int) -> Record:
    """Return the counts that a record keeps.

    Parameters
    ----------
    counts : Counts
        Counts of a launch.
    useful_bytes : int
        Bytes of the matrix: what had to be read, and to be written.
    """
    found: Record = {}
    for way, kinds in _KINDS.items():
        sectors, requests = (counts.total(name, *kinds) for name in ("sectors", "requests"))
        found[f"{way}_sectors_per_request"] = round(sectors / max(requests, 1), 3)
        # Bytes that pass between L1 and the threads for each byte that is moved.
        found[f"{way}_bytes_per_byte"] = round(32 * sectors / useful_bytes, 4)
    wavefronts = counts.total("wavefronts")
    conflicts = wavefronts - counts.total("ideal_wavefronts")
    return found | {
        "l1_hit_rate": round(counts.hit_rates.get("l1", 0.0), 4),
        "shared_wavefronts": wavefronts,
        "bank_conflict_share": round(conflicts / wavefronts, 4) if wavefronts else 0.0,
    }


def with_counts(record: Mapping[str, Any], counts: Record) -> Record:
    """Return a record with counts; where it has a time, with the throughput of loads and stores in GB/s too."""
    found = {**record, "counts": counts}
    if "gbps" in record:
        # Half of the effective bandwidth is reading.
        for way in ("load", "store"):
            found[f"{way}_gbps"] = round(record["gbps"] / 2 * counts[f"{way}_bytes_per_byte"], 1)
    return found
