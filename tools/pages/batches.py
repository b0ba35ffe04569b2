"""Tables of batched products of small matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import markdown

Record = Mapping[str, Any]


def batches_table(records: Sequence[Record]) -> str:
    """Return what calls of batches take, beside cuBLASLt and PyTorch."""
    rows = [
        [one["dtype"], f"{one['batch'][0]} of {one['m']} x {one['n']} x {one['k']}", one["layout"],
         f"`{one['kernel']}`", f"{one['median_us']:.1f}", f"{one['ratio']:.2f}", f"{one['torch_ratio']:.2f}"]
        for one in records
        if one["record"] == "gemm" and one["chosen_by"] == "dispatch"
    ]  # fmt: skip
    return markdown(["type", "products", "layout", "kernel", "us", "of cuBLASLt's best of 8", "of `torch.bmm`"], rows)
