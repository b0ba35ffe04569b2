"""What tests of repeated products share: products that are planned are counted, and tensors of random values."""

from __future__ import annotations

import pytest

from gemmule.core.dtype import dtype_named
from support.fakes import planners
from support.gpu.torch_arrays import to_torch
from support.oracle import random_matrix


@pytest.fixture(autouse=True)
def planned(monkeypatch):
    """Forget what is known, and count the products that are planned."""
    return planners.counted(monkeypatch)


@pytest.fixture
def arrays(torch, rng):
    """Return what makes random matrices as tensors, with their values."""

    def make(dtype, *shapes):
        kind = dtype_named(dtype)
        values = [random_matrix(rng, kind, shape) for shape in shapes]
        return values, [to_torch(torch, value) for value in values]

    return make


def poisoned(torch, shape, dtype):
    out = torch.empty(shape, device="cuda", dtype=getattr(torch, dtype))
    out.view(torch.uint8).fill_(0x7F)
    return out
