"""Blocks of the products by int8 that stand in for those of float64, as small as tests are."""

from __future__ import annotations

import pytest

from gemmule.kernels.emulation.ozaki_gemm import spec as own


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 512 columns."""
    monkeypatch.setattr(own, "BLOCK_BYTES", 1 << 20)
    own._next_kernel.cache_clear()
    yield
    own._next_kernel.cache_clear()
