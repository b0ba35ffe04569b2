"""The stand-in for a GPU that the cache of linear layers queues products on."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["bias", "c"])
def gpu(monkeypatch, request):
    from gemmule.torch import linear_cache, linear_calls
    from support.fakes.linear_gpu import LinearGpu

    stand_in = LinearGpu()
    monkeypatch.setattr(linear_cache, "cached_gemm", stand_in.cached_gemm)
    monkeypatch.setattr(linear_calls, "raw_stream", lambda device: 7)
    monkeypatch.setattr(linear_calls, "_is_capturing", lambda: False)
    # What PyTorch allocates on the host is aligned to 64 bytes.
    monkeypatch.setattr(linear_calls, "LOW", 63)
    monkeypatch.setattr(linear_cache, "bias_role", lambda *_: request.param)
    linear_cache.forget()
    yield stand_in
    linear_cache.forget()
