"""The folder of a command's files."""

import numpy as np
import pytest


@pytest.fixture
def product_folder(tmp_path, monkeypatch):
    """Return the working directory, with matrices in A.npy and B.npy, which the CPU multiplies."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMULE_EXECUTOR", "cpu")
    rng = np.random.default_rng(0)
    np.save("A.npy", rng.standard_normal((60, 40), "f4"))
    np.save("B.npy", rng.standard_normal((40, 50), "f4"))
    return tmp_path
