"""The table of what calls run in every type: a row for each kind, in order, and nothing where nothing was measured."""

from __future__ import annotations

from pathlib import Path

import glance

from pages.glance_cells import _KINDS, glance_table


def record(kind: str, edge: int, ratio: float | None, kernel: str = "a", tuned: bool = False) -> dict[str, object]:
    found = {"record": "gemm" if ratio is not None else "yardstick", "kind": kind, "m": edge, "n": edge, "k": edge}
    found |= {"kernel": kernel, "tuned": tuned, "layout": "nt"}
    return found | ({"ratio": ratio} if ratio is not None else {})


def test_kinds_are_rows_and_edges_columns() -> None:
    records = [
        {"record": "experiment"},
        record("float64", 4096, 0.994),
        record("float64", 8192, 1.004, tuned=True),
        record("float64", 1024, 0.9, "b"),
        record("float64", 2048, None),
        record("bfloat16", 4095, 4.306),
        record("bfloat16", 512, 1.25),
    ]
    assert glance_table(records).splitlines() == [
        "| M = N = K | layout | 512 | 1024 | 4095 | 4096 | 8192 |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| [bfloat16](../hopper/hopper_gemm.md) | nt | 1.25 |  | 4.31 |  |  |",
        "| [float64](../ladder/float64_gemm.md) | nt |  | 0.90 (b) |  | 0.99 | 1.00* |",
    ]


def test_every_kind_has_a_page() -> None:
    root = Path(__file__).parents[3]
    assert set(glance.KINDS) == set(_KINDS)
    assert all((root / "docs" / "notebook" / page).is_file() for _, page in _KINDS.values())
