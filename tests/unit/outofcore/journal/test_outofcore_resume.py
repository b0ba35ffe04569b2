"""Products that are killed, and go on: nothing finished is computed again, and the bits are those of one run."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from support.outofcore.killed_products import (
    OUTPUTS,
    appeared,
    child,
    content,
    finish,
    hidden,
    journal_of,
    record,
    refused,
    run,
)
from support.outofcore.wrong_tiles import spoil_tiles


def test_a_killed_product_goes_on(killed):
    output, expected, _ = killed
    lines = Path(journal_of(output)).read_bytes().count(b"\n") - 1
    told = finish(output, expected)
    assert told["tiles_reused"] == lines == 4
    assert told["bytes_written"] < expected.nbytes


def check_killed_at(output, expected, point):
    """Kill at a point, then go on; return the tiles that were kept."""
    code, _ = child(output, point)
    # How many calls there are depends on how many tiles are stored together.
    assert code in (0, -signal.SIGKILL)
    kept = None
    if appeared(output):
        # It was killed after the last step: all is there, and the next run clears away what is left.
        assert content(output).tobytes() == expected.tobytes()
        assert code == 0 or "--force" in refused(output)
    else:
        kept = finish(output, expected)["tiles_reused"]
    if ".zarr" not in output:
        assert hidden() == []
    os.rename(output.partition("::")[0], f"killed at {point}")
    return kept


def test_killed_at_random_points(killed, rng):
    output, expected, calls = killed
    finish(output, expected)
    os.rename(output.partition("::")[0], "resumed")
    for point in rng.choice(np.arange(1, calls + 1), 2, replace=False):
        check_killed_at(output, expected, point)


@pytest.mark.slow
def test_killed_at_many_points(killed):
    output, expected, calls = killed
    finish(output, expected)
    os.rename(output.partition("::")[0], "resumed")
    points = np.unique(np.r_[1:12, np.linspace(12, calls - 12, 16).astype(int), calls - 12 : calls + 1])
    kept = [check_killed_at(output, expected, point) for point in points]
    assert kept[0] == 0
    assert max(number for number in kept if number is not None) > 3


@pytest.mark.slow
def test_a_replacement_that_is_killed_leaves_the_old_or_the_new(killed):
    output, expected, calls = killed
    finish(output, expected)
    old = output.replace("C.", "old.").replace("S.", "old.")
    OUTPUTS.setdefault(old, OUTPUTS[output])
    record(old, "--alpha", "2")
    twice = content(old).tobytes()
    for point in [*range(1, 8), *range(max(calls - 25, 9), calls + 1, 2)]:
        shutil.rmtree("place", ignore_errors=True)
        os.mkdir("place")
        shutil.copyfile("A.npy", "place/A.npy")
        shutil.copyfile("B.npy", "place/B.npy")
        folder = old.partition("::")[0]
        (shutil.copytree if os.path.isdir(folder) else shutil.copyfile)(folder, f"place/{output.partition('::')[0]}")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir("place")
            assert child(output, point, "--force")[0] in (0, -signal.SIGKILL)
            assert content(output).tobytes() in (twice, expected.tobytes())
            record(output, "--force")
            assert content(output).tobytes() == expected.tobytes()
            assert hidden() == []


def test_killed_again_and_again(killed):
    output, expected, _ = killed
    for tiles in (5, 7, 8):
        assert child(output, -tiles)[0] == -signal.SIGKILL
    assert finish(output, expected)["tiles_reused"] == 8


def test_no_resume_starts_afresh(killed):
    output, expected, _ = killed
    assert finish(output, expected, "--no-resume")["tiles_reused"] == 0


def test_a_resumed_product_can_be_verified(killed):
    output, expected, _ = killed
    assert finish(output, expected, "--verify")["verified"]["passed"]


def test_the_tiles_of_the_run_before_are_kept_with_another_limit(killed_npy):
    assert "give --memory " in refused("C.npy", "--memory", "150KB")
    assert finish("C.npy", killed_npy, "--memory", "10MB")["tiles_reused"] > 0


def test_an_existing_output_is_not_replaced_by_going_on(killed_npy):
    Path("C.npy").write_bytes(b"precious")
    assert "--force" in refused("C.npy")
    assert Path("C.npy").read_bytes() == b"precious"
    assert finish("C.npy", killed_npy, "--force")["tiles_reused"] > 0


def test_a_failed_check_keeps_nothing(killed_npy, monkeypatch):
    spoil_tiles(monkeypatch)
    assert run("C.npy", "--verify").exit_code == 1
    assert hidden() == []
    assert not os.path.exists("C.npy")
