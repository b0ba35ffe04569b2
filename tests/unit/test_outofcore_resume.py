"""Products that are killed, and go on: nothing finished is computed again, and the bits are those of one run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from gemmule.cli import gemmule
from gemmule.outofcore.finished import FinishedTiles
from gemmule.outofcore.hidden import hidden_path
from gemmule.outofcore.journal import Journal

# Fixtures of the module are made once.
pytestmark = pytest.mark.xdist_group("resume")

#: Kills the process at the n-th call that changes something on the disk; half of what is written then is written. With
#: a negative number, when so many tiles are noted in the journal.
KILLER = """
import os, signal, sys, threading
from gemmule.cli import main
left, lock = int(sys.argv.pop(1)), threading.Lock()
def deadly(name):
    call = getattr(os, name)
    def killing(*arguments, **options):
        global left
        with lock:
            left -= 1
            now = left == 0
        if now:
            if name == "pwrite":
                call(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2], arguments[2])
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    setattr(os, name, killing)
for name in "pwrite fdatasync fsync ftruncate posix_fallocate replace rename link unlink mkdir".split():
    deadly(name)
if left < 0:
    from gemmule.outofcore.journal import Journal
    append, wanted = Journal.append, -left
    def noting(self, tiles):
        # Tiles may come several at once.
        append(self, list(tiles)[: wanted - len(self.tiles)])
        if len(self.tiles) >= wanted:
            os.kill(os.getpid(), signal.SIGKILL)
    Journal.append = noting
try:
    main()
finally:
    print("calls", int(1e9) - left)
"""
OUTPUTS = {"C.npy": [], "C.zarr": ["--chunks", "32"], "S.zarr::g/x": ["--chunks", "16,32", "--shards", "32,32"]}


@pytest.fixture(params=OUTPUTS)
def output(request):
    if ".zarr" in request.param:
        pytest.importorskip("zarr")
    return request.param


def make_inputs():
    rng = np.random.default_rng(0)
    np.save("A.npy", rng.standard_normal((120, 90), "f4"))
    np.save("B.npy", rng.standard_normal((90, 160), "f4"))


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch):
    monkeypatch.setenv("GEMMULE_EXECUTOR", "host")


def arguments(output, *more):
    return ["multiply", "A.npy", "B.npy", "-o", output, "--memory", "280KB", *OUTPUTS[output], "--json", *more]


def run(output, *more):
    return CliRunner().invoke(gemmule, arguments(output, *more))


def record(output, *more):
    result = run(output, *more)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(output, *more):
    result = run(output, *more)
    assert result.exit_code == 1, result.output
    assert result.stderr.count("\n") == 1
    return result.stderr


def child(output, point, *more):
    """Run the command and kill it at the call of that number; return its exit code and what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(point), *arguments(output, *more)], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    return done.returncode, done.stdout


def content(output):
    if ".zarr" not in output:
        return np.load(output)
    import zarr

    path, _, inner = output.partition("::")
    return zarr.open_array(path, path=inner, mode="r")[...]


def appeared(output):
    return os.path.exists(output.replace("::", "/"))


def hidden():
    return sorted(name for name in os.listdir() if name.startswith(".gemmule-"))


@pytest.fixture(scope="module")
def kills(tmp_path_factory):
    """Return a function that gives, for an output, its killed run, the right bits and the calls of a run."""
    made = {}

    def kill(output):
        if output not in made:
            folder = tmp_path_factory.mktemp("killed")
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                patch.setenv("GEMMULE_EXECUTOR", "host")
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


@pytest.fixture
def killed(kills, output, tmp_path, monkeypatch):
    """A product that was killed with some tiles finished: the name of the output, the right bits, calls of a run."""
    folder, expected, calls = kills(output)
    in_a_copy(folder, tmp_path, monkeypatch)
    return output, expected, calls


def finish(output, expected, *more):
    told = record(output, *more)
    assert content(output).tobytes() == expected.tobytes()
    assert told["tiles_reused"] + told["tiles_computed"] == told["tiles_total"] > 3
    assert hidden() == []
    return told


def journal_of(output):
    place = os.path.abspath(output.partition("::")[0])
    return hidden_path(os.path.join(os.path.dirname(place), output.replace("/", "::")), ".journal")


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


def damage(path, offset, mask=0x10):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


def stored(output):
    """Return the files with the finished items, largest last."""
    (partial,) = (name for name in hidden() if name.endswith(".partial"))
    if os.path.isfile(partial):
        return [partial]
    return [os.path.join(root, name) for root, _, names in os.walk(partial) for name in names if name != "zarr.json"]


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


def test_no_resume_starts_afresh(killed):
    output, expected, _ = killed
    assert finish(output, expected, "--no-resume")["tiles_reused"] == 0


def test_a_resumed_product_can_be_verified(killed):
    output, expected, _ = killed
    assert finish(output, expected, "--verify")["verified"]["passed"]


def test_a_tile_is_finished_when_all_its_pieces_are():
    finished = FinishedTiles([(0, 0, 8, 8), (8, 0, 3, 8), (11, 0, 5, 8), (0, 8, 4, 8), (30, 8, 2, 8)])
    assert finished(slice(0, 8), slice(0, 8))
    assert finished(slice(8, 16), slice(0, 8))
    assert finished(slice(0, 16), slice(0, 8))
    missing = [((0, 8), (8, 16)), ((8, 17), (0, 8)), ((24, 32), (8, 16)), ((8, 16), (0, 4)), ((40, 48), (0, 8))]
    assert not any(finished(slice(*rows), slice(*cols)) for rows, cols in missing)


def test_pieces_that_overlap_count_once():
    # Rows 0-2 and 2-4 of a run, then 0-4 of another whose buffers were larger: as large together as the tile.
    tile = slice(0, 8), slice(0, 1024)
    pieces = [(0, 0, 2, 1024), (2, 0, 2, 1024), (0, 0, 4, 1024)]
    assert not FinishedTiles(pieces)(*tile)
    assert not FinishedTiles([*pieces, (4, 0, 4, 512), (6, 512, 2, 512)])(*tile)
    assert FinishedTiles([*pieces, (3, 0, 5, 600), (4, 512, 4, 512)])(*tile)


@pytest.fixture
def killed_npy(kills, tmp_path, monkeypatch):
    folder, expected, _ = kills("C.npy")
    in_a_copy(folder, tmp_path, monkeypatch)
    return expected


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
    np.save("A.npy", np.ones((100, 90), "f4"))
    assert "shape is [120, 160], not [100, 160]" in refused("C.npy")
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
    assert "unfinished work lies there whose stored is" in refused(output, "--chunks", "8", *force)
    before, raw = os.stat("A.npy"), Path("A.npy").read_bytes()
    np.save("A.npy", np.load("A.npy")[:100])
    assert "shape is [120, 160], not [100, 160]" in refused(output, *force)
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
    assert "unfinished work lies there" in refused(output)
    assert sorted(stored(output)) == left


def test_the_tiles_of_the_run_before_are_kept_with_another_limit(killed_npy):
    assert "raise --memory" in refused("C.npy", "--memory", "150KB")
    assert finish("C.npy", killed_npy, "--memory", "10MB")["tiles_reused"] > 0


def test_an_existing_output_is_not_replaced_by_going_on(killed_npy):
    Path("C.npy").write_bytes(b"precious")
    assert "--force" in refused("C.npy")
    assert Path("C.npy").read_bytes() == b"precious"
    assert finish("C.npy", killed_npy, "--force")["tiles_reused"] > 0


def test_one_process_at_a_time(killed_npy):
    other = Journal(journal_of("C.npy"), "C.npy")
    assert "another process is computing it" in refused("C.npy")
    assert "another process is computing it" in refused("C.npy", "--no-resume")
    other.close()
    finish("C.npy", killed_npy)


def test_a_failed_check_keeps_nothing(killed_npy, monkeypatch):
    from gemmule.host.tiles import HostTileSum

    finish_tile = HostTileSum.finish

    def wrong(self, out, *args, **kwargs):
        finish_tile(self, out, *args, **kwargs)
        out[0, 0] += 1000

    monkeypatch.setattr(HostTileSum, "finish", wrong)
    assert run("C.npy", "--verify").exit_code == 1
    assert hidden() == []
    assert not os.path.exists("C.npy")
