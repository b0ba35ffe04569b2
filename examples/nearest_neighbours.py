"""Nearest neighbours by a product larger than memory: cosine similarities from files to a file, within a limit."""

import tempfile
from pathlib import Path

import numpy as np

import gemmule as gm

rng = np.random.default_rng(0)
with tempfile.TemporaryDirectory() as folder:
    base, queries, found = (Path(folder) / f"{name}.npy" for name in ("base", "queries", "similarities"))
    points = rng.standard_normal((6000, 64), dtype=np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    asked = points[:2000] + 0.01 * rng.standard_normal((2000, 64), dtype=np.float32)
    np.save(base, points)
    np.save(queries, asked)

    # The result has 48 MB; 16 MiB are used. An interrupted run resumes when it is called again.
    report = gm.outofcore.matmul(queries, base, found, transpose_b=True, memory="16MiB", verify=True)
    similarities = np.load(found, mmap_mode="r")
    nearest = np.concatenate([similarities[start : start + 500].argmax(axis=1) for start in range(0, 2000, 500)])

assert (nearest == np.arange(2000)).all()
print(f"{report.tiles} tiles; all 2000 queries found their point among 6000")
