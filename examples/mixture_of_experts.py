"""A mixture-of-experts layer: tokens sorted by expert, two grouped products, a weighted sum for each token."""

import numpy as np

import gemmule as gm

rng = np.random.default_rng(0)
tokens, features, inner, experts, top_k = 200, 32, 48, 8, 2
x = rng.standard_normal((tokens, features))
up = rng.standard_normal((experts, features, inner)) / features**0.5
down = rng.standard_normal((experts, inner, features)) / inner**0.5
scores = x @ rng.standard_normal((features, experts))
chosen = np.argsort(-scores, axis=1)[:, :top_k]
weights = np.exp(np.take_along_axis(scores, chosen, axis=1))
weights /= weights.sum(axis=1, keepdims=True)

# Rows of one expert lie one after another; `offsets` says where each expert's end. On a GPU nobody waits for them.
order = np.argsort(chosen, axis=None, kind="stable")
offsets = np.cumsum(np.bincount(chosen.ravel(), minlength=experts), dtype=np.int32)
hidden = np.maximum(gm.grouped_gemm(x[order // top_k], up, offsets), 0)
found = np.empty((tokens * top_k, features))
found[order] = gm.grouped_gemm(hidden, down, offsets)
y = (weights[:, :, np.newaxis] * found.reshape(tokens, top_k, features)).sum(axis=1)

one_by_one = np.zeros_like(y)
for token, slots in enumerate(chosen):
    for slot, expert in enumerate(slots):
        one_by_one[token] += weights[token, slot] * (np.maximum(x[token] @ up[expert], 0) @ down[expert])
np.testing.assert_allclose(y, one_by_one, rtol=1e-10, atol=1e-10)
print(f"tokens of each expert: {np.diff(offsets, prepend=0).tolist()}")
