"""Tables of scaled products, and of quantisation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .markdown import markdown

#: What has a scale, by the kinds of products.
_KINDS = {"tensor": "all", "row": "row by column", "block": "1 x 128 by 128 x 128", "block1": "1 x 128 by 1 x 128"}
#: What kinds of quantisation begin with.
_QUANTIZE = "quantize_"


def scaled_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the times of scaled products beside PyTorch's, each of the first record file of its GPU that has it."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for gpu, one in _of_gpus(records):
        if one["kind"] not in _KINDS:
            continue
        sizes = f"{one['m']} x {one['n']} x {one['k']}"
        ratio = f"{one['ratio']:.2f}" if "ratio" in one else ""
        cell = gpu, _KINDS[one["kind"]], sizes
        rows.setdefault(cell, [*cell, f"{one['us']:.1f}", f"{one['tflops']:.0f}", ratio])
    return markdown(["GPU", "scales", "M x N x K", "us", "TFLOP/s", "of `torch._scaled_mm`"], [*rows.values()])


def quantized_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the times of quantisation beside those of a copy, of record files of several GPUs."""
    rows = []
    for gpu, one in _of_gpus(records):
        if not one["kind"].startswith(_QUANTIZE):
            continue
        by, sizes = one["kind"].removeprefix(_QUANTIZE), f"{one['m']} x {one['k']}"
        rows.append([gpu, by, sizes, f"{one['us']:.1f}", f"{one['tbytes']:.2f}", f"{one['ratio']:.2f}"])
    return markdown(["GPU", "scales by", "M x K", "us", "TB/s", "of a copy of as many bytes"], rows)


def _of_gpus(records: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the `scaled` records, each with its GPU."""
    gpu = ""
    for one in records:
        if one["record"] == "experiment":
            gpu = str(one["gpu"]).removeprefix("NVIDIA ").removesuffix(" 80GB HBM3")
        if one["record"] == "scaled":
            yield gpu, one
