"""Banks of shared memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .tile_config import LINE, WORD


def most_words_of_a_bank(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the most words of one bank that lanes access at offsets in bytes, those of a warp along the last axis."""
    banks = LINE // WORD
    words = np.sort(offsets.reshape(-1, offsets.shape[-1]) // WORD)
    bank = words % banks
    # Lanes that share a word count once.
    bank[:, 1:][words[:, 1:] == words[:, :-1]] = banks
    warps = np.arange(len(words))[:, None] * (banks + 1)
    counts = np.bincount((warps + bank).ravel(), minlength=len(words) * (banks + 1)).reshape(-1, banks + 1)
    most: npt.NDArray[np.int64] = counts[:, :banks].max(axis=1).reshape(offsets.shape[:-1])
    return most
