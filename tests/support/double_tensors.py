"""Random tensors of float64, whose gradients are compared with finite differences."""

from __future__ import annotations

import torch


def doubles(*shapes, grad=True):
    return [torch.randn(shape, dtype=torch.float64, requires_grad=grad) for shape in shapes]
