"""Blocks of the products by int8 that stand in for those of float64, as small as tests are."""

from __future__ import annotations

import pytest

from gemmule.kernels.emulation import ozaki_chain
from gemmule.kernels.emulation.ozaki_complex import spec as of_complex
from gemmule.kernels.emulation.ozaki_gemm import spec as own

_CACHES = (own._next_kernel, of_complex._next_kernel)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 512 columns."""
    monkeypatch.setattr(ozaki_chain, "BLOCK_BYTES", 1 << 20)
    _clear()
    yield
    _clear()


def _clear():
    for cache in _CACHES:
        cache.cache_clear()
