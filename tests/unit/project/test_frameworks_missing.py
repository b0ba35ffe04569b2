"""gemmule itself imports no framework, and what needs one says so where it is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_gemmule_imports_no_framework():
    done = run("import sys, gemmule; print(sorted({'torch', 'jax', 'cupy', 'cutlass'} & set(sys.modules)))")
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


@pytest.mark.parametrize(("name", "said"), [("torch", "PyTorch"), ("jax", "JAX")])
def test_a_missing_framework_is_named(name, said):
    done = run(f"import sys; sys.modules[{name!r}] = None; import gemmule.{name}")
    assert done.returncode == 1
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .startswith(f"ModuleNotFoundError: gemmule.{name} needs {said}, which is not installed")
    )
