"""The table of what calls cost on the host."""

from __future__ import annotations

import pytest

from pages.call_overhead import overhead_table


def record(path, host_us, **problem):
    return {"record": "overhead", "path": path, "host_us": host_us, "samples_us": [host_us], **problem}


def test_each_call_beside_the_other_librarys_of_the_same_product():
    small, large = {"dtype": "float32", "m": 2, "n": 3, "k": 4}, {"dtype": "float32", "m": 20, "n": 3, "k": 4}
    records = [
        {"record": "experiment"},
        record("torch_mm_out", 12.0, **small),
        record("matmul_out", 5.1, **small),
        record("torch_mm_out", 10.0, **large),
        record("matmul_out", 5.0, **large),
        record("matmul", 8.0, **large),
        record("first_call", 31_234.0, **small),
        record("first_call_random", 91_234.0, problems=[["float32"]] * 40, slower_than_300_ms=1),
        record("import", 183_456.0),
        {"record": "check", "what": "x"},
    ]
    assert overhead_table(records).splitlines()[2:] == [
        "| `torch.mm(a, b, out=c)` | 2 x 3 x 4 float32 | 12.00 us |  |",
        "| `gm.matmul(a, b, out=c)` | 2 x 3 x 4 float32 | 5.10 us | 0.42 |",
        "| `torch.mm(a, b, out=c)` | 20 x 3 x 4 float32 | 10.00 us |  |",
        "| `gm.matmul(a, b, out=c)` | 20 x 3 x 4 float32 | 5.00 us | 0.50 |",
        "| `gm.matmul(a, b)` | 20 x 3 x 4 float32 | 8.00 us |  |",
        "| first call of a process, kernel in the cache on disk | 2 x 3 x 4 float32 | 31.2 ms |  |",
        "| first call of a process until its result is there, gemmule-kernels-sm90, no compiler | 40 random "
        "ones; 1 over 300 ms | 91.2 ms |  |",
        "| `import gemmule` |  | 183.5 ms |  |",
    ]


def test_a_path_that_is_not_known():
    with pytest.raises(KeyError, match="another"):
        overhead_table([record("another", 1.0)])
