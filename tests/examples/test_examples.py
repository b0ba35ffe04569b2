"""Every example runs, on the CPU where there is no GPU, and says what it found."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
#: What an example may import that a test environment may lack; and the compiler, `gemmule[compiler]`.
_OPTIONAL = ("cutlass", "jax", "torch", "zarr")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example, tmp_path):
    imported = re.findall(r"^(?:import|from) (\w+)", example.read_text(), re.MULTILINE)
    missing = [name for name in _OPTIONAL if name in imported and find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:gemmule", example],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert list(tmp_path.iterdir()) == [], "an example leaves nothing where it is run"


def test_examples_are_there():
    assert len(EXAMPLES) == 10
