"""Blocks of the host's products of a few elements, instead of millions."""

from __future__ import annotations

from importlib import import_module

MODULES = [import_module(f"gemmule.host.{name}") for name in ("epilogue", "gemm", "product", "rounding")]


def shrink_blocks(monkeypatch, **sizes):
    """Give blocks of products and of what rounds them other sizes, in each module that has them."""
    for name, size in sizes.items():
        holders = [module for module in MODULES if name in vars(module)]
        assert holders, name
        for module in holders:
            monkeypatch.setattr(module, name, size)
