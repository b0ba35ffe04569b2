"""printf: of its formats, and of kernels."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule import vgpu
from gemmule.vgpu.printf import argument_types, formatted


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("%d of %u, %5.2f%%\n", [-1, -1, 2.5], "-1 of 4294967295,  2.50%\n"),
        ("%lld %x %s %c", [-(2**40), 255, 7, 65], f"{-(2**40)} ff text@7 A"),
        ("%p", [4096], "0x1000"),
    ],
)
def test_printf(text, values, expected):
    assert formatted(text, values, lambda address: f"text@{address}") == expected


def test_what_arguments_take():
    assert argument_types("%d %5.1f%% %lld %s %p %x") == ("i4", "f8", "i8", "i8", "i8", "i4")


def test_a_kernel_prints(capsys):
    pytest.importorskip("cutlass", reason="the kernel compiler is not installed")
    from support.vgpu.cute_functions import printing

    vgpu.run(printing, np.arange(40, dtype=np.float32) / 2)
    assert capsys.readouterr().out == "lane 0 has 0.000\nlane 1 has 0.500\ndone\n"
