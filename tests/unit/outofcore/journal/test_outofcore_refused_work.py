"""Unfinished work that is damaged, or is not that of this product: what of it is taken, and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from gemmule.outofcore.journal.fingerprint import changes
from gemmule.outofcore.journal.journal_file import Journal
from support.outofcore.killed_products import (
    OUTPUTS,
    child,
    content,
    damage,
    finish,
    hidden,
    journal_of,
    refused,
    run,
    stored,
)


def test_a_flipped_bit_in_a_finished_tile_is_found(killed):
    output, expected, _ = killed
    with_journal = Journal(journal_of(output), output)
    tiles = list(with_journal.tiles)
    with_journal.close()
    row, col, *_ = tiles[0]
    if ".zarr" in output:
        # Before the index of a shard lies the first item of one of its chunks.
        (path,) = (path for path in stored(output) if path.endswith(f"/c/{row // 32}/{col // 32}"))
        damage(path, 5)
    else:
        damage(stored(output)[0], 128 + (row * 160 + col) * 4)
    assert finish(output, expected)["tiles_reused"] == len(tiles) - 1


def test_a_torn_line_of_the_journal_does_not_count(killed):
    output, expected, _ = killed
    path = Path(journal_of(output))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines)[:-3])
    # Lines that are added now must be found by the run after.
    assert child(output, -(len(lines) + 1))[0] == -signal.SIGKILL
    assert finish(output, expected)["tiles_reused"] == len(lines) + 1


def test_what_follows_a_damaged_line_does_not_count(killed):
    output, expected, _ = killed
    path = Path(journal_of(output))
    lines = path.read_bytes().splitlines(keepends=True)
    damage(path, len(lines[0]) + 12)
    assert finish(output, expected)["tiles_reused"] == 0


def test_a_damaged_first_line_is_refused(killed):
    output, expected, _ = killed
    damage(journal_of(output), 5)
    assert "first line of this journal is damaged" in refused(output)
    assert finish(output, expected, "--no-resume")["tiles_reused"] == 0


def test_without_data_a_journal_is_worth_nothing(killed):
    output, expected, _ = killed
    (partial,) = (name for name in hidden() if name.endswith(".partial"))
    os.rename(partial, "gone")
    assert finish(output, expected)["tiles_reused"] == 0


def test_without_a_journal_data_are_worth_nothing(killed):
    output, expected, _ = killed
    os.unlink(journal_of(output))
    assert finish(output, expected)["tiles_reused"] == 0


@pytest.mark.parametrize("left", ["no journal", "an empty journal"])
def test_unfinished_work_without_a_journal_is_named(killed, left):
    output, expected, _ = killed
    if left == "no journal":
        os.unlink(journal_of(output))
    else:
        os.truncate(journal_of(output), 0)
    with pytest.warns(RuntimeWarning, match="unfinished work was found without its journal .*; it is deleted"):
        assert run(output).exit_code == 0
    assert content(output).tobytes() == expected.tobytes()


def test_a_touched_input_is_named_in_plain_words(killed_npy):
    before = os.stat("B.npy")
    os.utime("B.npy")
    message = refused("C.npy")
    assert "its time of the last write differs, its size and sampled content do not" in message
    assert "changed_ns" not in message
    subprocess.run(["touch", "-d", message.partition("touch -d ")[2].split(",")[0], "B.npy"], check=True)
    assert os.stat("B.npy").st_mtime_ns == before.st_mtime_ns
    assert finish("C.npy", killed_npy)["tiles_reused"] > 0


@pytest.mark.parametrize("time", [{}, {"changed_ns": "yesterday"}], ids=["none", "text"])
def test_a_time_that_cannot_be_set_back_is_named_alone(time):
    assert (
        changes({"bytes": 8, **time}, {"bytes": 8, "changed_ns": 5})
        == "time of the last write differs; bring back what it was"
    )


def test_changed_inputs_are_refused(killed_npy):
    before = os.stat("B.npy")
    raw = Path("B.npy").read_bytes()
    damage("B.npy", 5000)
    message = refused("C.npy")
    assert message.startswith("gemmule: B.npy: was changed")
    assert "--no-resume" in message
    # As it was, down to the time, it is taken again.
    Path("B.npy").write_bytes(raw)
    os.utime("B.npy", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert finish("C.npy", killed_npy)["tiles_reused"] > 0


def test_another_product_is_refused(killed_npy):
    assert "alpha is 1, not 2" in refused("C.npy", "--alpha", "2")
    assert "dtype is float32, not float64" in refused("C.npy", "--out-dtype", "float64")
    assert "executor is" in refused("C.npy", "--executor", "vgpu", "--memory", "50MB")
    np.save("B.npy", np.ones((90, 160), "f8"))
    types = "operand types are float32 and float32, not float32 and float64"
    assert types in refused("C.npy", "--out-dtype", "float32")
    np.save("A.npy", np.ones((100, 90), "f4"))
    assert "shape is 120 x 160, not 100 x 160" in refused("C.npy")
    assert len(hidden()) == 2


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("output", [name for name in OUTPUTS if ".zarr" in name], indirect=True)
def test_another_product_or_other_chunks_are_refused_in_zarr_too(killed, replaced):
    output, expected, _ = killed
    force = []
    if replaced and "::" not in output:
        import zarr

        zarr.create_array(output, data=np.zeros((8, 8)), chunks=(4, 4))
        force = ["--force"]
    left = sorted(stored(output))
    chunks = "16 x 32" if "::" in output else "32 x 32"
    differs = f"there is unfinished work whose chunks are {chunks}, not 8 x 8; repeat"
    assert differs in refused(output, "--chunks", "8", *force)
    before, raw = os.stat("A.npy"), Path("A.npy").read_bytes()
    np.save("A.npy", np.load("A.npy")[:100])
    assert "shape is 120 x 160, not 100 x 160" in refused(output, *force)
    Path("A.npy").write_bytes(raw)
    os.utime("A.npy", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert sorted(stored(output)) == left
    assert finish(output, expected, *force)["tiles_reused"] > 0


@pytest.mark.parametrize("output", ["S.zarr::g/x"], indirect=True)
def test_a_store_that_was_made_meanwhile_does_not_cost_unfinished_work(killed):
    import zarr

    output, _, _ = killed
    zarr.open_group("S.zarr", mode="w")
    left = sorted(stored(output))
    assert "there is unfinished work whose new groups are 2, not 1; repeat" in refused(output)
    assert sorted(stored(output)) == left


def test_one_process_at_a_time(killed_npy):
    other = Journal(journal_of("C.npy"), "C.npy")
    assert "another process is computing it" in refused("C.npy")
    assert "another process is computing it" in refused("C.npy", "--no-resume")
    other.close()
    finish("C.npy", killed_npy)
