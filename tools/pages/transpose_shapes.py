"""Tables of transposes of extreme shapes and of permutations."""

from __future__ import annotations

import statistics
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


def transpose_layouts_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return what calls reach on drawn layouts, by their names, before and now: of two files with the same cases."""
    files: list[dict[tuple[Any, ...], Mapping[str, Any]]] = []
    for one in records:
        if one["record"] == "experiment":
            files.append({})
        elif one["record"] == "transpose" and one["chosen_by"] == "dispatch":
            files[-1][tuple(one["shape"]), tuple(one["axes"]), one["itemsize"], one["seed"]] = one
    before, now = files
    # A draw has a seed of its own.
    seeds = {one["seed"] for one in now.values() if "name" in one}
    layouts: dict[str, list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for case, one in now.items():
        if one["seed"] in seeds and case in before:
            layouts.setdefault(one.get("name", "random axes"), []).append((before[case], one))
    rows = []
    every = [pair for pairs in layouts.values() for pair in pairs]
    for name, pairs in (*sorted(layouts.items()), ("all", every)):
        shares = [[one["faster_copy_ratio"] for one in side] for side in zip(*pairs, strict=True)]
        cells = [f"{statistics.median(side):.2f} ({min(side):.2f})" for side in shares]
        cells.append(f"{statistics.median(old['median_us'] / new['median_us'] for old, new in pairs):.2f}")
        cells += [f"{min(new[f'{other}_ratio'] for _, new in pairs):.2f}" for other in ("torch", "cupy")]
        rows.append([name, str(len(pairs)), *cells])
    header = ["layout", "cases", "of a copy before (least)", "now (least)", "faster", "least of PyTorch", "of CuPy"]
    return markdown(header, rows)
