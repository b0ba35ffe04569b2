"""Tables of streamed products of several shapes beside cuBLASXt, and of the links from every NUMA node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import markdown

Record = Mapping[str, Any]
_WHAT = {"gemm": "A B", "added": "A B + C", "gram": "A^T A"}


def stream_shapes_table(records: Sequence[Record]) -> str:
    """Return products beside cuBLASXt with any block, and with blocks that take no more of the GPU's memory.

    The last columns have what no order of work can do without: products at the rate in core, or bytes over a link.
    """
    rows = []
    for r in records:
        if r["record"] != "stream" or "peers" not in r:
            continue
        timed = [peer for peer in r["peers"] if "wall_s" in peer]
        any_block = min(timed, key=_wall, default=None)
        memory = r["budgets"]["device_bytes"]
        within = min((peer for peer in timed if peer["device_bytes"] <= memory), key=_wall, default=None)
        part, least = max(r["least_s"].items(), key=lambda one: float(one[1]))
        rows.append(
            [
                f"{_WHAT[r['operation']]}, {r['m']} x {r['n']} x {r['k']} {r['dtype']}{_precision(r)}",
                r["source"],
                f"{r['wall_s']:.3f}",
                f"{r['predicted_s']:.3f}",
                _peer(any_block) if any_block else "",
                f"{_wall(any_block) / r['wall_s']:.3f}" if any_block else "",
                _peer(within) if within else "",
                f"{_wall(within) / r['wall_s']:.3f}" if within else "",
                f"{least:.3f} ({part})",
                f"{_wall(any_block) / least:.3f}" if any_block else "",
                f"{least / r['wall_s']:.3f}",
            ]
        )
    budgets = {r["budgets"]["device"] for r in records if "peers" in r}
    header = [
        "product", "operands", f"gemmule in {', '.join(sorted(budgets))}, s", "expected, s",
        "cuBLASXt, s (block, its GPU memory)", "cuBLASXt / gemmule", "cuBLASXt within that memory, s", "over gemmule",
        "least possible, s (by what)", "cuBLASXt / least", "least / gemmule",
    ]  # fmt: skip
    return markdown(header, rows)


def _precision(record: Record) -> str:
    precision = record.get("precision", "ieee")
    return f" as {precision}" if precision != "ieee" else ""


def _wall(peer: Record) -> float:
    """Return its fastest run, the one that chose the block among them."""
    return float(min(peer["wall_s"], peer["first_s"]))


def _peer(peer: Record) -> str:
    pinning = ", pins itself" if peer["pinning"] else ""
    return f"{_wall(peer):.3f} ({peer['block']}, {peer['device_bytes'] / 2**30:.1f} GiB{pinning})"


def numa_links_table(records: Sequence[Record]) -> str:
    """Return copies between GPUs and pinned memory on every node that this process may run on."""
    rows = [
        [
            str(r["gpu"]),
            f"{r['node']} of {r['nodes']}"
            + ("" if r["memory_node"] in (None, r["node"]) else f" ({r['memory_node']})"),
            "yes" if r["near"] else "not told",
            f"{r['alone']['h2d'] / 1e9:.1f}, {r['alone']['d2h'] / 1e9:.1f}",
            f"{r['together']['h2d'] / 1e9:.1f}, {r['together']['d2h'] / 1e9:.1f}",
            f"{r['host_copies'] / 1e9:.1f}",
        ]
        for r in records
        if r["record"] == "numa"
    ]
    header = [
        "GPU", "node", "the GPU's node is known", "GB/s to the GPU, and back", "both at once",
        "copies within the host, GB/s",
    ]  # fmt: skip
    return markdown(header, rows)
