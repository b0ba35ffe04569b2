"""Host code that branches, loops, computes and prints before it launches."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gemmule import vgpu

cutlass = pytest.importorskip("cutlass", reason="the kernel compiler is not installed")


@pytest.mark.parametrize("n", [5, -7, 0])
def test_arithmetic_and_branches_of_the_host_part(n, capsys):
    from support.vgpu.cute_functions import host_arithmetic

    found = np.zeros(8, np.int32)
    vgpu.run(host_arithmetic, found, n)
    total = sum(i * i for i in range(max(n, 0)))
    expected = [math.trunc(n / 3), n - 3 * math.trunc(n / 3), n // 2 if n >= 0 else n, total, min(n, 2), abs(n)]
    assert found[:6].tolist() == expected
    assert capsys.readouterr().out == (f"n is {n}\n" if n > 0 else "")
