"""`import gemmule` loads no kernel, and every public name is there when it is used."""

import subprocess
import sys

import pytest

import gemmule

_LOADED = "import sys, numpy, gemmule; print(*[name for name in sys.modules if name.partition('.')[0] == 'gemmule'])"


def test_the_package_loads_no_kernel_and_few_modules():
    found = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True).stdout.split()
    assert len(found) < 10
    assert not [name for name in found if name.startswith(("gemmule.kernels", "gemmule.api", "gemmule.dispatch"))]


def test_public_names_are_there():
    for name in gemmule.__all__:
        assert getattr(gemmule, name) is getattr(gemmule, name)
    assert set(gemmule.__all__) <= set(dir(gemmule))
    names: dict[str, object] = {}
    exec("from gemmule import *", names)  # what a user may write
    assert names["matmul"] is gemmule.matmul
    assert names["Report"].__module__ == "gemmule.outofcore.tiles.engine"


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="module 'gemmule' has no attribute 'matmull'"):
        gemmule.matmull  # noqa: B018
