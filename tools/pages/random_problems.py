"""Tables of random products: how many were held against a reference, and what an untuned choice reaches of a search."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gemmule.lab.styles import short

from .markdown import markdown

Record = Mapping[str, Any]
#: What the problems are counted by, with its heading.
_BY = {"dtype": "types", "kernel": "kernel", "epilogue": "epilogue"}
#: Products with the least shares that are listed.
_LISTED = 10


def random_problems_block(records: Sequence[Record]) -> str:
    """Return what was checked in all, by types, kernels and epilogues."""
    runs = [one for one in records if one["record"] == "random_problems"]
    lines = [
        f"Seed {one['seed']}, extents up to {one['most']}: {one['checked']} problems checked, {one['wrong']} wrong; "
        f"greatest error {one['worst_share']:.3f} of its bound; {one['kernels_compiled']} compiled kernels, "
        f"{one['seconds']} s."
        for one in runs
    ]
    for what, heading in _BY.items():
        counts: collections.Counter[str] = collections.Counter()
        for one in runs:
            counts.update(one["by"][what])
        rows = [[name, str(count)] for name, count in counts.most_common()]
        lines.append(markdown([heading, "problems"], rows))
    return "\n\n".join(lines)


def untuned_block(records: Sequence[Record]) -> str:
    """Return what the cost model's choice reaches of the best of a search, by type and layout, and the worst."""
    measured = [one for one in records if one["record"] == "untuned"]
    kinds: dict[str, list[Record]] = collections.defaultdict(list)
    for one in measured:
        kinds[f"{_type(one)} {one['layout']}"].append(one)
    kinds = dict(sorted(kinds.items(), key=lambda item: -len(item[1])))
    rows = [[name, *_figures(of_kind)] for name, of_kind in {**kinds, "all": measured}.items()]
    header = ["type and layout", "GEMMs", "geometric mean", "lowest", "below 0.9", "below 0.8"]
    worst = sorted(measured, key=lambda one: float(one["share"]))[:_LISTED]
    listed = [
        [f"{one['m']} x {one['n']} x {one['k']}", f"{_type(one)} {one['layout']}", f"{one['share']:.3f}",
         _config(one["kernel"], one["config"]), f"{one['median_us']:.1f}",
         _config(one["best_kernel"], one["best_config"]), f"{one['best_us']:.1f}"]
        for one in worst
    ]  # fmt: skip
    below = markdown(["M x N x K", "type and layout", "share", "taken", "us", "best", "us"], listed)
    return f"{markdown(header, rows)}\n\nThe {len(listed)} lowest shares:\n\n{below}"


def _type(record: Record) -> str:
    return "tf32" if record.get("precision") == "tf32" else str(record["dtype"])


def _figures(records: Sequence[Record]) -> list[str]:
    shares = [float(one["share"]) for one in records]
    under = [sum(share < limit for share in shares) for limit in (0.9, 0.8)]
    return [str(len(shares)), f"{statistics.geometric_mean(shares):.3f}", f"{min(shares):.3f}", *map(str, under)]


def _config(kernel: str, config: Mapping[str, int]) -> str:
    """Return a kernel's short name and the fields by which its configs are told apart at a glance."""
    tile = " x ".join(str(config[name]) for name in ("tile_m", "tile_n") if name in config)
    words = [short(kernel), tile]
    if (sharing := config.get("cluster_m", 1) * config.get("cluster_n", 1)) > 1:
        words.append(f"cluster {sharing}")
    if config.get("cluster_k", 1) > 1:
        words.append(f"K / {config['cluster_k']}")
    words += [name for name in ("swap_ab", "pingpong") if config.get(name)]
    return " ".join(word for word in words if word)
