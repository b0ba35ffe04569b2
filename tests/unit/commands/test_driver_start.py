"""The CUDA driver is started while a command imports, where it may use a GPU."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

import gemmule as gm
from gemmule.cli import gemmule
from gemmule.core.errors import UnsupportedError
from gemmule.runtime import driver
from gemmule_command import may_use_gpu

SOURCES = Path(gm.__file__).parents[1]


@pytest.mark.parametrize(
    ("words", "begun"),
    [
        (["matmul", "gone.npy", "B.npy", "-o", "C.npy"], True),
        (["matmul", "gone.npy", "B.npy", "-o", "C.npy", "--executor", "cpu"], False),
        (["info", "--help"], False),
    ],
)
def test_the_script_initialises_the_driver_of_a_product_while_it_imports(words, begun, tmp_path):
    code = (
        "import ctypes, pathlib, sys, types\n"
        "def begun(flags): pathlib.Path('begun').write_text(f'{flags} {\"gemmule.commands.matmul\" in sys.modules}')\n"
        "ctypes.CDLL = lambda name: types.SimpleNamespace(cuInit=begun)\n"
        f"from gemmule_command import script; sys.argv = ['gemmule', *{words}]; script()"
    )
    env = {name: text for name, text in os.environ.items() if name != "GEMMULE_EXECUTOR"}
    env |= {"PYTHONPATH": str(SOURCES)}
    subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, check=False)
    told = tmp_path / "begun"
    assert (told.read_text() if told.exists() else None) == ("0 False" if begun else None)


@pytest.mark.parametrize("error", [RuntimeError, UnsupportedError])
def test_a_driver_that_cannot_be_started_ahead_is_left_to_what_needs_it(error, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    started = []

    def module():
        started.append(threading.current_thread().name)
        raise error("no driver")

    monkeypatch.setattr(driver, "driver_module", module)
    monkeypatch.setattr(threading, "excepthook", lambda failed: started.append(failed.exc_value))
    monkeypatch.setenv("GEMMULE_EXECUTOR", "gpu")
    monkeypatch.setattr("gemmule.cli._LAZY.may_use_gpu", may_use_gpu)
    # A file that is missing is refused before anything else looks for a GPU.
    done = CliRunner().invoke(gemmule, ["matmul", "gone.npy", "B.npy", "-o", "C.npy"])
    for thread in threading.enumerate():
        if thread.name == "gemmule-driver":
            thread.join()
    assert "gemmule-driver" in started
    assert not any(isinstance(one, Exception) for one in started)
    assert "gone.npy" in done.output
