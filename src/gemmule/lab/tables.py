"""Tables of the documentation: what the kernels take, and what committed records say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemmule.core.arch import Arch
from gemmule.core.dtype import DTYPES, DType, accumulator
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import why_no_gemm

_ARCHS = ("sm_80", "sm_89", "sm_90a", "sm_100a")


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]
    return "\n".join(lines)


def kernel_table() -> str:
    """Return the registry as a table, in the order in which kernels are tried."""
    rows = [
        [f"`{spec.name}`", spec.operation, spec.summary, ", ".join(map(str, spec.archs)), str(spec.default)]
        for spec in REGISTRY
    ]
    return markdown(["kernel", "operation", "takes", "compiled for", "default config"], rows)


def dtype_table() -> str:
    """Return, for every input type on a GPU, its accumulator, the outputs and the architectures."""
    rows = []
    for dtype in DTYPES:

        def runs(out: DType, arch: str, dtype: DType = dtype) -> bool:
            return why_no_gemm((dtype.name, dtype.name, out.name), None, Arch.parse(arch)) is None

        outputs = [out for out in DTYPES if runs(out, "sm_90a")]
        archs = [arch for arch in _ARCHS if runs(dtype, arch)]
        rows.append([str(dtype), str(accumulator(dtype, dtype)), ", ".join(map(str, outputs)), f"{archs[0]} and newer"])
    return markdown(["inputs", "summed in", "outputs", "runs on"], rows)


def check_rows(records: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the checks of a record file, by file of tests."""
    totals: dict[str, list[int]] = {}
    for record in records:
        if record["record"] == "check":
            counts = totals.setdefault(record["what"].split("::")[0], [0, 0, 0])
            for place, name in enumerate(("passed", "failed", "skipped")):
                counts[place] += record.get(name, 0)
    rows = [[what, *map(str, counts)] for what, counts in totals.items()]
    return ["checks", "passed", "failed", "skipped"], rows


def check_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the checks of a record file by file of tests."""
    return markdown(*check_rows(records))


def host_to_gpu_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the times of host arrays on the host and through the GPU."""
    rows = [
        [
            str(r["m"]),
            f"{2 * r['m'] * r['n'] * r['k']:.2e}",
            f"{r['host_ms']:.2f}",
            f"{r['gpu_ms']:.2f}",
            f"{r['host_over_gpu']:.2f}",
        ]
        for r in records
        if r["record"] == "host_to_gpu"
    ]
    return markdown(["M = N = K", "operations", "host, ms", "through the GPU, ms", "host / GPU"], rows)


def stream_table(records: Sequence[Mapping[str, Any]]) -> str:
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


def device_stream_rows(records: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of products that passed through a GPU, cuBLASXt's among them."""
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
    return header, rows


def _device_memory(record: Mapping[str, Any]) -> str:
    """Return the memory of each device, and how many there are, if several."""
    devices = record.get("devices", 1)
    return f"{devices} x {record['budgets']['device']}" if devices > 1 else str(record["budgets"]["device"])


def device_stream_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return products that passed through a GPU."""
    return markdown(*device_stream_rows(records))


def experiment_line(records: Sequence[Mapping[str, Any]]) -> str:
    """Return where and when a record file was made, in a sentence."""
    block = records[0]
    packages = ", ".join(f"{name} {version}" for name, version in block["packages"].items())
    where = (
        f"{block['gpu']}, driver {block['driver']}" if "gpu" in block else f"{block['system']}, {block['cpus']} CPUs"
    )
    commit = block.get("commit", "unknown")
    return f"{where}, Python {block['python']}, {packages}; commit {commit}, {block['date']} UTC."
