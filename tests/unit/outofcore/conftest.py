"""Fixtures that several files share: products that were killed."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

from support.outofcore.killed_products import OUTPUTS, appeared, child, content, hidden, make_inputs


@pytest.fixture(params=OUTPUTS)
def output(request):
    if ".zarr" in request.param:
        pytest.importorskip("zarr")
    return request.param


@pytest.fixture(scope="session")
def kills(tmp_path_factory):
    """Return a function that gives, for an output, its killed run, the right bits and the calls of a run."""
    made = {}

    def kill(output):
        if output not in made:
            folder = tmp_path_factory.mktemp("killed")
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                patch.setenv("GEMMULE_EXECUTOR", "cpu")
                make_inputs()
                calls = int(child(output, int(1e9))[1].split()[-1])
                expected = content(output)
                os.rename(output.partition("::")[0], "expected")
                code, _ = child(output, -4)
                assert code == -signal.SIGKILL
                assert not appeared(output)
                assert len(hidden()) == 2
            made[output] = folder, expected, calls
        return made[output]

    return kill


def in_a_copy(folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    monkeypatch.setenv("GEMMULE_EXECUTOR", "cpu")


@pytest.fixture
def killed(kills, output, tmp_path, monkeypatch):
    """A product that was killed with some tiles finished: the name of the output, the right bits, calls of a run."""
    folder, expected, calls = kills(output)
    in_a_copy(folder, tmp_path, monkeypatch)
    return output, expected, calls


@pytest.fixture
def killed_npy(kills, tmp_path, monkeypatch):
    folder, expected, _ = kills("C.npy")
    in_a_copy(folder, tmp_path, monkeypatch)
    return expected
