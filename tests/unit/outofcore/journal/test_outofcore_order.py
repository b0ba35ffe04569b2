"""Data reach the disk before the journal says so: the order of system calls, and mutants that break it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from gemmule.cli import gemmule
from support.outofcore.call_order import CALLS, Recorder, check_order, read_strace

SHAPE = (96, 160)
#: What breaks the promise, as code that runs before the command.
MUTANTS = {
    "journal before data": """
from gemmule.outofcore.journal.journaled_sink import JournaledSink
def _store(self):
    with self._lock:
        written, self._written, self._busy = self._written, [], False
    self._journal.append(written)
    self._sink.flush()
JournaledSink._store = _store
""",
    "no fdatasync": """
from gemmule.outofcore.stores.formats import npy_sink
npy_sink.store_file = lambda descriptor: None
""",
    "no fsync of chunks": """
from gemmule.outofcore.stores.formats.zarr_sink import ZarrSink
ZarrSink.flush = lambda self: None
""",
}
OUTPUTS = [("C.npy", (), None), ("C.zarr", ("--chunks", "32,32"), (32, 32))]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMULE_EXECUTOR", "cpu")
    rng = np.random.default_rng(0)
    np.save("A.npy", rng.standard_normal((SHAPE[0], 64), "f4"))
    np.save("B.npy", rng.standard_normal((64, SHAPE[1]), "f4"))
    return tmp_path


def arguments(output, options):
    if output.endswith(".zarr"):
        pytest.importorskip("zarr")
    return ["matmul", "A.npy", "B.npy", "-o", output, "--memory", "260KB", *options]


def recorded(folder, monkeypatch, output, options):
    with monkeypatch.context() as patch:
        recorder = Recorder(patch)
        result = CliRunner().invoke(gemmule, arguments(output, options))
    assert result.exit_code == 0, result.output
    return recorder.calls


def traced(folder, output, options, code=""):
    """Run the command under strace, after `code`; return its calls."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed, which shows the order of system calls")
    trace = folder / "trace"
    command = [
        strace,
        "-f",
        "--seccomp-bpf",
        "-y",
        "-s",
        "65536",
        "-o",
        str(trace),
        "-e",
        f"trace={CALLS}",
        sys.executable,
        "-c",
    ]
    done = subprocess.run(
        [*command, f"{code}\nfrom gemmule.cli import main\nmain()", *arguments(output, options)],
        capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    if "ptrace" in done.stderr.lower():
        pytest.skip(f"strace may not look here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return read_strace(trace.read_text(), folder)


@pytest.mark.parametrize(("output", "options", "chunk"), OUTPUTS)
def test_data_are_stored_before_they_are_noted(folder, monkeypatch, output, options, chunk):
    calls = recorded(folder, monkeypatch, output, options)
    assert check_order(calls, SHAPE, 4, chunk) > 2


@pytest.mark.parametrize(("output", "options", "chunk"), OUTPUTS)
def test_the_system_sees_the_same_order(folder, output, options, chunk):
    assert check_order(traced(folder, output, options), SHAPE, 4, chunk) > 2


BROKEN = [
    ("journal before data", *OUTPUTS[0]),
    ("journal before data", *OUTPUTS[1]),
    ("no fdatasync", *OUTPUTS[0]),
    ("no fsync of chunks", *OUTPUTS[1]),
]


@pytest.mark.parametrize(("mutant", "output", "options", "chunk"), BROKEN)
def test_a_mutant_is_found_by_strace(folder, mutant, output, options, chunk):
    calls = traced(folder, output, options, MUTANTS[mutant])
    with pytest.raises(AssertionError, match="is noted before"):
        check_order(calls, SHAPE, 4, chunk)
