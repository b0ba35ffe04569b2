"""`import gemmule` loads no kernel, and every public name is there when it is used."""

import subprocess
import sys

import pytest

import gemmule
from gemmule.core.activations import NAMED

_LOADED = "import sys, numpy, gemmule; print(*[name for name in sys.modules if name.partition('.')[0] == 'gemmule'])"


def test_the_package_loads_no_kernel_and_few_modules():
    found = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True).stdout.split()
    assert len(found) < 10
    assert not [name for name in found if name.startswith(("gemmule.kernels", "gemmule.api", "gemmule.dispatch"))]


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import gemmule; gemmule.matmul", "gemmule.compiler.cache gemmule.outofcore concurrent"),
        ("import gemmule.outofcore.calls.session", "gemmule.api.functions gemmule.api.calls gemmule.runtime.arrays"),
        ("from click.testing import CliRunner; from gemmule.cli import gemmule; CliRunner().invoke(gemmule, ['-h'])",
         "numpy gemmule.commands.matmul gemmule.dispatch importlib.metadata"),
    ],
)  # fmt: skip
def test_what_is_not_used_is_not_loaded(program, absent):
    program += f"; import sys; print(*set('{absent}'.split()) & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "\n"


def test_functions_of_epilogues_are_loaded_when_they_are_used():
    program = "import sys, gemmule; assert 'gemmule.epilogue' not in sys.modules; print(gemmule.epilogue.relu.__name__)"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "relu\n"
    )
    assert set(NAMED) <= set(gemmule.epilogue.__all__)


def test_public_names_are_there():
    for name in gemmule.__all__:
        assert getattr(gemmule, name) is getattr(gemmule, name)
    assert set(gemmule.__all__) <= set(dir(gemmule))
    shown = {name for name in dir(gemmule) if not name.startswith("__")}
    assert shown - {"jax", "torch", "vgpu"} == set(gemmule.__all__) - {"__version__"}
    code = "import gemmule; gemmule.vgpu"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "has no attribute 'vgpu'; import gemmule.vgpu first" in done.stderr
    names: dict[str, object] = {}
    exec("from gemmule import *", names)  # what a user may write
    assert names["matmul"] is gemmule.matmul
    assert gemmule.outofcore.Report.__module__ == "gemmule.outofcore.tiles.report"
    assert set(gemmule.outofcore.__all__) <= set(dir(gemmule.outofcore))
    with pytest.raises(AttributeError, match=r"module 'gemmule.outofcore' has no attribute 'multiply'"):
        _ = gemmule.outofcore.multiply


@pytest.mark.parametrize("name", ["matmull", "plan", "relu", "where"])
def test_other_names_are_refused(name):
    with pytest.raises(AttributeError, match=f"module 'gemmule' has no attribute '{name}'"):
        getattr(gemmule, name)
