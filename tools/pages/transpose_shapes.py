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
    """Return what calls reach on drawn layouts, by their names: of a file, or of an earlier one and it."""
    files: list[dict[tuple[Any, ...], Mapping[str, Any]]] = []
    for one in records:
        if one["record"] == "experiment":
            files.append({})
        elif one["record"] == "transpose" and one["chosen_by"] == "dispatch":
            files[-1][tuple(one["shape"]), tuple(one["axes"]), one["itemsize"], one["seed"]] = one
    # A draw has a seed of its own.
    seeds = {one["seed"] for one in files[-1].values() if "name" in one}
    layouts: dict[str, list[tuple[Mapping[str, Any], ...]]] = {}
    for case, one in files[-1].items():
        if one["seed"] in seeds and all(case in file for file in files):
            layouts.setdefault(one.get("name", "random axes"), []).append(tuple(file[case] for file in files))
    rows = []
    every = [cases for of_layout in layouts.values() for cases in of_layout]
    for name, found in (*sorted(layouts.items()), ("all", every)):
        shares = [[one["faster_copy_ratio"] for one in side] for side in zip(*found, strict=True)]
        cells = [f"{statistics.median(side):.2f} ({min(side):.2f})" for side in shares]
        if len(files) > 1:
            cells.append(f"{statistics.median(one[0]['median_us'] / one[-1]['median_us'] for one in found):.2f}")
        cells += [f"{min(one[-1][f'{other}_ratio'] for one in found):.2f}" for other in ("torch", "cupy")]
        rows.append([name, str(len(found)), *cells])
    now = ["of a copy before (least)", "now (least)", "faster"] if len(files) > 1 else ["of a copy (least)"]
    return markdown(["layout", "cases", *now, "least of PyTorch", "of CuPy"], rows)
