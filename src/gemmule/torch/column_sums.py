"""Sums of a gradient's columns, that of a bias: of 16-bit tensors a product with a row of ones, faster than a sum."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import torch

from gemmule.api.calls.dispatcher import cached_gemm

from .product import compute, rows_of

#: Least length of a row of ones.
_LEAST = 4096
#: Columns of which a product needs a multiple, so that rows are aligned.
_MULTIPLE = 8

# Rows of ones by device and type; the last is the longest. None is freed: launches on any stream may read it.
_ones: dict[tuple[Any, Any], list[Any]] = {}
_adding = threading.Lock()


def is_product(grad: Any) -> bool:
    """Return whether the sums of a gradient's columns are computed as a product.

    The product adds in float32, as PyTorch's sum of 16-bit types does.
    """
    return bool(
        grad.is_cuda
        and grad.dtype in (torch.bfloat16, torch.float16)
        and grad.is_contiguous()
        and grad.numel()
        and grad.shape[-1] % _MULTIPLE == 0
    )


def row_of_ones(like: Any) -> Any:
    """Return a row of as many ones as a tensor has rows; None while the stream is captured and there is none."""
    count = math.prod(like.shape[:-1])
    known = _ones.setdefault((like.device, like.dtype), [])
    row = known[-1] if known else None
    if row is None or row.numel() < count:
        if like.is_cuda and torch.cuda.is_current_stream_capturing():
            return None
        row = _longer_row(known, count, like)
    return row[:count].unsqueeze(0)


def _longer_row(known: list[Any], count: int, like: Any) -> Any:
    """Return a row of at least `count` ones, appended to `known` unless another thread has done so."""
    with _adding:
        if known and known[-1].numel() >= count:
            return known[-1]
        length = max(_LEAST, 1 << (count - 1).bit_length())
        row = torch.ones(length, dtype=like.dtype, device=like.device)
        if like.is_cuda:
            # Other streams read it, too, as soon as it is in the list.
            torch.cuda.current_stream(like.device).synchronize()
        known.append(row)
        return row


def column_sums(grad: Any, by_product: bool) -> Any:
    """Return the sums over all dimensions but the last; as a product only where nothing sees operators."""
    ones = row_of_ones(grad) if by_product and is_product(grad) else None
    if ones is None:
        return grad.sum(tuple(range(grad.ndim - 1)))
    return compute(ones, rows_of(grad), None, 1.0, 0.0, None, None).squeeze(0)


def queued_sums(grad: Any, maker: Callable[[Any], Callable[[Any], Any]]) -> Callable[[Any, int, int], Any]:
    """Return what computes the sums of such a tensor, given it, its address and the stream: as `column_sums` has done.

    `maker` returns what makes tensors like one, given another of its type and device.
    """
    dims = tuple(range(grad.ndim - 1))
    ones = row_of_ones(grad) if is_product(grad) else None
    queue = None if ones is None else cached_gemm(ones, rows_of(grad))
    if ones is None or queue is None:

        def summed(grad: Any, address: int, stream: int) -> Any:
            del address, stream
            return grad.sum(dims)

        return summed
    new, first = maker(grad.new_empty(grad.shape[-1])), ones.data_ptr()

    def queued(grad: Any, address: int, stream: int) -> Any:
        result = new(grad)
        queue((first, address, result.data_ptr()), stream)
        return result

    return queued
