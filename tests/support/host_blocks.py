"""Blocks of the host's products of a few elements, instead of millions."""

from __future__ import annotations

from gemmule.host import product, rounding


def shrink_blocks(monkeypatch, **sizes):
    """Give blocks of `gemmule.host.product`, or ``PIECE`` of `gemmule.host.rounding`, other sizes."""
    for name, size in sizes.items():
        monkeypatch.setattr(rounding if name == "PIECE" else product, name, size)
