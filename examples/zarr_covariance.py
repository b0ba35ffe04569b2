"""The covariance of a Zarr array that need not fit into memory: Xᵀ X, whose symmetric half is computed once.

Needs zarr: ``pip install 'gemmule[io]'``, once gemmule is installed.
"""

import tempfile
from pathlib import Path

import numpy as np
import zarr

import gemmule as gm

rng = np.random.default_rng(0)
with tempfile.TemporaryDirectory() as folder:
    rows, columns = 20_000, 300
    data = zarr.create_array(Path(folder) / "x.zarr", shape=(rows, columns), chunks=(2000, 100), dtype="float32")
    mixing = rng.standard_normal((columns, columns)) / columns**0.5
    for start in range(0, rows, 2000):
        data[start : start + 2000] = rng.standard_normal((2000, columns)) @ mixing

    mean = np.mean([data[start : start + 2000].mean(axis=0) for start in range(0, rows, 2000)], axis=0)
    # Cᵀ C / (n - 1) of centred columns is Xᵀ X / (n - 1) less the means' part: no centred copy is written.
    moment = np.empty((columns, columns), np.float32)
    gm.outofcore.matmul(data, data, moment, transpose_a=True, alpha=1 / (rows - 1), memory="32MiB")
    covariance = moment - rows / (rows - 1) * np.outer(mean, mean)

np.testing.assert_allclose(covariance, mixing.T @ mixing, atol=0.1)
print(f"covariance {covariance.shape}, trace {np.trace(covariance):.1f}")
