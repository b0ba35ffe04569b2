"""The table of what calls cost on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import markdown

#: For each path what it is, and the path of the same record that it stands beside.
_PATHS: dict[str, tuple[str, str | None]] = {
    "torch_mm_out": ("`torch.mm(a, b, out=c)`", None),
    "matmul_out": ("`gm.matmul(a, b, out=c)`", "torch_mm_out"),
    "gemm_out": ("`gm.gemm(a, b, alpha=2.0, out=c)`", "torch_mm_out"),
    "part_nothing": ("the loop around all of these", "torch_mm_out"),
    "part_found": ("of `gm.matmul(a, b, out=c)`, all but finding the product", "torch_mm_out"),
    "part_find": ("finding it by the tensors", "torch_mm_out"),
    "part_guard": ("PyTorch's guard", "torch_mm_out"),
    "part_addresses": ("three addresses", "torch_mm_out"),
    "part_stream": ("the stream", "torch_mm_out"),
    "part_launch": ("the driver's launch", "torch_mm_out"),
    "part_launch_otherwise": ("a launch in order where that one overlaps, and the other way round", "torch_mm_out"),
    "torch_mm": ("`torch.mm(a, b)`", None),
    "matmul": ("`gm.matmul(a, b)`", "torch_mm"),
    "torch_detach": ("`a.detach()`, which makes a new tensor object", None),
    "torch_mm_out_new": ("`torch.mm(a.detach(), b, out=c)`", None),
    "matmul_out_new": ("`gm.matmul(a.detach(), b, out=c)`", "torch_mm_out_new"),
    "torch_mm_new": ("`torch.mm(a.detach(), b)`", None),
    "matmul_new": ("`gm.matmul(a.detach(), b)`", "torch_mm_new"),
    "torch_addmm_relu": ("`torch.relu_(torch.addmm(bias, a, b, out=c))`", None),
    "gemm_relu": ('`gm.gemm(a, b, bias=bias, epilogue="relu", out=c)`', "torch_addmm_relu"),
    "gemm_function": (
        "`gm.gemm(a, b, bias=bias, epilogue=lambda acc: gm.epilogue.maximum(acc, 0), out=c)`",
        "torch_addmm_relu",
    ),
    "matmul_stream": ("`gm.matmul(a, b, out=c, stream=torch.cuda.current_stream())`", "torch_mm_out"),
    "matmul_other_stream": ("`gm.matmul(a, b, out=c, stream=another)`", "torch_mm_out"),
    "matmul_new_other_stream": ("`gm.matmul(a, b, stream=another)`", "torch_mm"),
    "torch_transpose": ("`c.copy_(a.t())`", None),
    "transpose": ("`gm.transpose(a, out=c)`", "torch_transpose"),
    "cupy_matmul_out": ("`cupy.matmul(a, b, out=c)`", None),
    "matmul_out_cupy": ("`gm.matmul(a, b, out=c)`, CuPy's arrays", "cupy_matmul_out"),
    "matmul_cupy": ("`gm.matmul(a, b)`, CuPy's arrays", "cupy_matmul_out"),
    "matmul_other_stream_cupy": ("`gm.matmul(a, b, out=c, stream=another)`, CuPy's arrays", "cupy_matmul_out"),
    "numpy_host": ("`numpy.matmul(a, b)`", None),
    "matmul_numpy_host": ("`gm.matmul(a, b)`, NumPy's arrays", "numpy_host"),
    "torch_host": ("`torch.matmul(a, b)` on the host", None),
    "matmul_torch_host": ("`gm.matmul(a, b)`, PyTorch's tensors on the host", "torch_host"),
    "first_call": ("first call of a process, kernel in the cache on disk", None),
    "second_call": ("second call of a process", None),
    "first_call_pack": ("first call of a process, kernel in a pack, no compiler installed", None),
    "first_call_random": ("first call of a process until its result is there, gemmule-kernels-sm90, no compiler", None),
    "import_pack": ("`import gemmule`, `GEMMULE_PACK` set", None),
    "import": ("`import gemmule`", None),
    "import_after_torch": ("`import gemmule` after PyTorch, before these calls", None),
}


def overhead_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return what calls cost on the host, each beside the call of the other library in the same run."""
    found = {_key(r): r for r in records if r["record"] == "overhead"}
    rows = []
    for (path, *problem), record in found.items():
        what, beside = _PATHS[path]
        other = found.get((beside, *problem))
        rows.append(
            [
                what,
                _product(record),
                f"{record['host_us'] / 1e3:.1f} ms" if record["host_us"] >= 1e3 else f"{record['host_us']:.2f} us",
                f"{record['host_us'] / other['host_us']:.2f}" if other else "",
            ]
        )
    return markdown(["call", "product", "host time", "of the other library's"], rows)


def _product(record: Mapping[str, Any]) -> str:
    if "problems" in record:
        return f"{len(record['problems'])} random ones; {record['slower_than_300_ms']} over 300 ms"
    if "m" not in record:
        return ""
    batch = "".join(f"{extent} of " for extent in record.get("batch", []))
    return f"{batch}{record['m']} x {record['n']} x {record['k']} {record['dtype']}"


def _key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return (record["path"], *(record.get(name) for name in ("dtype", "m", "n", "k")), *record.get("batch", []))
