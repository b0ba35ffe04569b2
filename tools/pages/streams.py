"""Tables of streamed products, and of what was measured around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import markdown

Record = Mapping[str, Any]


def streamed_files_table(records: Sequence[Record]) -> str:
    """Return products from files to a file through a GPU, beside the disk alone."""
    rows = [
        [
            f"{r['m']} x {r['n']} x {r['k']} {r['dtype']}",
            f"{r['wall_s']:.2f}",
            f"{r['stream_s']:.2f}",
            f"{r['predicted_s']:.2f}",
            f"{r['disk']['read_s']:.2f}",
            f"{r['disk']['write_s']:.2f}",
            f"{r['disk']['both_s']:.2f}",
            f"{r['compute_s']:.2f}",
            f"{r['bound_share']:.3f}",
        ]
        for r in records
        if r["record"] == "stream" and "disk" in r
    ]
    header = [
        "product", "call, s", "streaming, s", "expected, s", "disk alone: reads, s", "writes, s", "both at once, s",
        "products, s", "best of the bottleneck over streaming",
    ]  # fmt: skip
    return markdown(header, rows)


def stream_peers_table(records: Sequence[Record]) -> str:
    """Return products on one GPU beside cuBLASXt with its best block, and beside the most that kernels allow."""
    rows = []
    timed = [r for r in records if r["record"] == "stream" and "tflops" in r]
    for own in timed:
        if "incore_tflops" not in own or own["devices"] != 1 or own["strategy"] == "five-buffers":
            continue
        peers = [r for r in timed if r["strategy"] == "cublasXt" and _product(r) == _product(own)]
        if not peers:
            continue
        peer = min(peers, key=lambda r: r["wall_s"])
        best = 2e-12 * own["m"] * own["n"] * own["k"] / own["incore_tflops"]
        rows.append(
            [
                f"{own['m']} x {own['n']} x {own['k']} {own['dtype']}",
                own["source"],
                f"{own['wall_s']:.3f}",
                f"{peer['wall_s']:.3f} ({peer['block']})",
                f"{peer['wall_s'] / own['wall_s']:.3f}",
                f"{best:.3f}",
                f"{peer['wall_s'] / best:.3f}",
            ]
        )
    header = [
        "product", "operands", "gemmule, s", "cuBLASXt, s (block)", "cuBLASXt / gemmule",
        "products at the rate in core, s", "cuBLASXt / that",
    ]  # fmt: skip
    return markdown(header, rows)


def _product(record: Record) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("m", "n", "k", "dtype", "source"))


def stream_ways_table(records: Sequence[Record]) -> str:
    """Return products of pageable matrices by threads and pinned buffers, and where their time went."""
    rows = [
        [
            f"{r['m']} x {r['n']} x {r['k']} {r['dtype']}",
            str(r["threads"]),
            r["budgets"]["pinned"],
            r["buffer"],
            f"{r['wall_s']:.3f}",
            f"{100 * r['exposed_copy_share']:.1f} %",
            f"{r['parts']['pin']['any_s']:.3f}",
            f"{r['parts']['read']['bytes'] / r['parts']['read']['any_s'] / 1e9:.1f}",
            f"{r['parts']['read']['together_s'] / r['parts']['read']['any_s']:.1f}",
            f"{r['copied'] / 1e9:.1f}",
        ]
        for r in records
        if r["record"] == "stream" and "parts" in r
    ]
    header = [
        "product", "threads", "pinned", "buffer", "s", "nothing computed", "pinning, s",
        "read while threads read, GB/s", "threads at it", "the same threads before, GB/s",
    ]  # fmt: skip
    return markdown(header, rows)


def mapped_table(records: Sequence[Record]) -> str:
    """Return how fast tiles were written into memory maps, page by page and in runs to the file, by their lines."""
    rows = [
        [
            "whole rows" if r["whole_rows"] else f"{r['line_bytes'] / 1024:.0f} KiB",
            "written before, in no cache" if r["written_before"] else "just made",
            str(r["threads"]),
            f"{r['nbytes'] / r['seconds']['pages'] / 1e9:.2f}",
            f"{r['nbytes'] / r['seconds']['runs'] / 1e9:.2f}",
            f"{r['seconds']['pages'] / r['seconds']['runs']:.2f}",
        ]
        for r in records
        if r["record"] == "mapped"
    ]
    header = ["line of a tile", "file", "threads", "page by page, GB/s", "to the file, GB/s", "ratio"]
    return markdown(header, rows)


def stream_lines_table(records: Sequence[Record]) -> str:
    """Return how fast lines that lie apart are copied to a GPU, by their length."""
    rows = [
        [f"{int(width) / 1024:.0f} KiB", f"{rate / 1e9:.1f}"]
        for r in records
        if r["record"] == "stream" and "bytes_per_s" in r
        for width, rate in r["bytes_per_s"].items()
    ]
    return markdown(["line", "GB/s"], rows)


def stream_conditions_table(records: Sequence[Record]) -> str:
    """Return clocks and watts of streamed products, and of the products in core before and after them."""
    rows = []
    for r in records:
        if r["record"] != "stream" or "incore" not in r:
            continue
        before, after = r["incore"]
        rows.append(
            [
                f"{r['m']} x {r['n']} x {r['k']} {r['dtype']}",
                r["strategy"],
                str(r["devices"]),
                _in_core(before),
                _in_core(after),
                ", ".join(f"{one['clock_mhz']:.0f} MHz, {one['power_w']:.0f} W" for one in r["sensors"][-1]),
                f"{100 * (r['wall_s'] / r['predicted_s'] - 1):+.1f} %",
                f"{r['speedup']:.3f}" if "speedup" in r else "",
            ]
        )
    header = [
        "product", "strategy", "GPUs", "in core before, TFLOP/s", "after", "last run", "measured over expected",
        "one GPU's time over this",
    ]  # fmt: skip
    return markdown(header, rows)


def _in_core(measured: Mapping[str, float]) -> str:
    return f"{measured['tflops']:.1f} ({measured['clock_mhz']:.0f} MHz, {measured['power_w']:.0f} W)"


def stream_table(records: Sequence[Record]) -> str:
    """Return streamed products beside the same product in memory."""
    rows = [
        [
            f"{r['m']} x {r['n']} x {r['k']} {r['dtype']}",
            str(r["budgets"]["memory"]),
            f"{r['peak_rss_bytes'] / 2**20:.0f} MiB",
            f"{r['wall_s']:.2f}",
            f"{r['incore_s']:.2f}",
            f"{r['ratio']:.2f}",
            f"{r['run_ratio']:.2f}" if "run_ratio" in r else "",
        ]
        for r in records
        if r["record"] == "stream" and "ratio" in r
    ]
    header = ["product", "--memory", "peak resident", "command, s", "in memory, s", "ratio", "without start-up"]
    return markdown(header, rows)


def device_stream_table(records: Sequence[Record]) -> str:
    """Return products that passed through a GPU, cuBLASXt's among them."""
    header = [
        "product", "GPU memory", "operands", "strategy", "s", "expected", "TFLOP/s", "of the rate in core",
        "of the bottleneck", "nothing computed", "to the GPU",
    ]  # fmt: skip
    rows = []
    for r in records:
        if r["record"] != "stream" or "tflops" not in r:
            continue
        own = "predicted_s" in r
        name = r["strategy"] if own else f"{r['strategy']}, blocks of {r['block']}"
        rows.append(
            [
                f"{r['m']} x {r['n']} x {r['k']} {r['dtype']}",
                _device_memory(r) if own else "",
                r["source"],
                name,
                f"{r['wall_s']:.3f}",
                f"{r['predicted_s']:.3f}" if own else "",
                f"{r['tflops']:.1f}",
                f"{r['incore_rate_share']:.3f}" if own else "",
                f"{r['bound_share']:.3f} ({r['bottleneck']})" if own else "",
                f"{100 * r['exposed_copy_share']:.1f} %" if own else "",
                f"{r['bytes']['h2d'] / 1e9:.1f} GB" if own else "",
            ]
        )
    return markdown(header, rows)


def _device_memory(record: Record) -> str:
    """Return the memory of each device, and how many there are, if several."""
    devices = record.get("devices", 1)
    return f"{devices} x {record['budgets']['device']}" if devices > 1 else str(record["budgets"]["device"])


def host_arrays_table(records: Sequence[Record]) -> str:
    """Return the times of host arrays by `gm.matmul`, PyTorch's round trip and NumPy."""

    def ms(value: float | None) -> str:
        return "" if value is None else f"{value:.3g}"

    rows = [
        [
            r["dtype"], str(r["m"]), r["executor"], ms(r["gm_ms"]), ms(r.get("round_trip_ms")), ms(r.get("numpy_ms")),
            f"{r['ratio']:.2f}",
        ]
        for r in records
        if r["record"] == "host_arrays"
    ]  # fmt: skip
    header = [
        "type",
        "M = N = K",
        "executor",
        "gm.matmul, ms",
        "PyTorch's round trip, ms",
        "NumPy, ms",
        "best of these / gm",
    ]
    return markdown(header, rows)
