"""Tables of grouped products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import markdown

_KINDS = {"forward": "forward", "grad_input": "gradient of the input", "grad_weight": "gradient of the weights",
          "scaled": "forward, scaled float8, of `torch._scaled_grouped_mm`",
          "rows": "rows that name matrices, of `torch._grouped_mm`"}  # fmt: skip


def grouped_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the times of grouped products beside another implementation's, of record files of several GPUs."""
    rows, gpu = [], ""
    for one in records:
        if one["record"] == "experiment":
            gpu = str(one["gpu"]).removeprefix("NVIDIA ").removesuffix(" 80GB HBM3")
        if one["record"] != "grouped":
            continue
        kind = _KINDS[one["kind"]] + (", float32, of `torch.mm`" if one["dtype"] == "float32" else "")
        sizes = f"{one['rows']} x {one['n']} x {one['k']}"
        groups = f"{one['groups']} {'' if one['kind'] == 'rows' else 'even' if one['even'] else 'random'}".strip()
        rows.append([gpu, kind, groups, sizes, f"{one['us']:.0f}", f"{one['tflops']:.0f}", f"{one['ratio']:.2f}"])
    return markdown(["GPU", "product", "groups", "rows x N x K", "us", "TFLOP/s", "of `torch._grouped_mm`"], rows)
