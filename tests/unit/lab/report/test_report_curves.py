"""Curves of reports: labels beside them, and how they look."""

from __future__ import annotations

import itertools

import pytest

from gemmule.lab.drawing.canvas import _apart
from gemmule.lab.styles import short, styles


def test_labels_keep_apart_and_in_order():
    places = _apart([0.5, 0.5, 0.52, 0.9, 0.1], 0.1)
    ordered = sorted(places)
    assert all(after - before >= 0.0999 for before, after in itertools.pairwise(ordered))
    assert places[3:] == [0.9, 0.1]
    assert sum(places[:3]) / 3 == pytest.approx((0.5 + 0.5 + 0.52) / 3)
    assert max(_apart([1.0, 1.0, 1.0], 0.2)) == pytest.approx(1.0)
    assert min(_apart([0.0, 0.0, 0.05], 0.2)) == pytest.approx(0.0)


def test_a_kernel_looks_alike_everywhere():
    records = [
        {"record": "gemm", "kernel": name, "config": {"k": k}} for name in ("z", "g02_naive_coalesced") for k in (1, 2)
    ]
    looks = styles(records)
    assert [(key[0], style.colour, style.config) for key, style in looks.items()] == [
        ("g02_naive_coalesced", 0, 0), ("g02_naive_coalesced", 0, 1), ("z", 1, 0), ("z", 1, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("g01_naive_uncoalesced", "g01"),
        ("g05_conflict_free[tile_k=16]", "g05[tile_k=16]"),
        ("g07_cp_async[tile_m=128,tile_n=256]", "g07[128,256]"),
        ("opt: d02_b_in_registers[tile_m=64]", "opt: d02[tile_m=64]"),
        ("gemm_reference", "gemm_reference"),
    ],
)
def test_names_beside_curves_are_short(name, text):
    assert short(name) == text
