"""Tables of transposes of extreme shapes and of permutations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import markdown

_COLUMNS = (("faster_copy_ratio", "a copy"), ("torch_ratio", "PyTorch"), ("cupy_ratio", "CuPy"))


def transpose_shapes_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return what calls reach of the faster copy of as many bytes, PyTorch's and CuPy's, of files of several GPUs."""
    gpus: list[str] = []
    found: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for one in records:
        if one["record"] == "experiment":
            gpus.append(str(one["gpu"]).removeprefix("NVIDIA ").removesuffix(" 80GB HBM3"))
        elif one["record"] == "transpose" and one["chosen_by"] == "dispatch":
            case = tuple(one["shape"]), tuple(one["axes"]), one["itemsize"], one.get("offset", 0), one.get("name", "")
            found.setdefault(case, {})[gpus[-1]] = one
    rows = []
    for (shape, axes, itemsize, offset, name), of in found.items():
        cells = [f"{of[gpu][field]:.2f}" if field in of.get(gpu, ()) else "" for gpu in gpus for field, _ in _COLUMNS]
        permuted = "" if axes == (1, 0) else f", axes {', '.join(map(str, axes))}"
        begins = f", from element {offset}" if offset else ""
        named = f"{name}: " if name else ""
        rows.append([f"{named}{' x '.join(map(str, shape))}{permuted}{begins}", str(itemsize), *cells])
    header = [f"{gpu}: of {other}" for gpu in gpus for _, other in _COLUMNS]
    return markdown(["shape", "bytes", *header], rows)
