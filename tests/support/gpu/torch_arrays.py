"""NumPy arrays as PyTorch tensors on a GPU, and back."""

from __future__ import annotations

import ml_dtypes

BITS = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


def to_torch(torch, array):
    name = array.dtype.name
    if name in BITS:
        return torch.from_numpy(array.view(BITS[name])).view(getattr(torch, name)).cuda()
    return torch.from_numpy(array).cuda()


def to_numpy(torch, tensor):
    name = str(tensor.dtype).removeprefix("torch.")
    if name in BITS:
        return tensor.cpu().view(getattr(torch, BITS[name])).numpy().view(getattr(ml_dtypes, name))
    return tensor.cpu().numpy()
