"""Products from files that are killed at some point, on the host: what is left of them, and going on."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings

import numpy as np
import pytest
from click.testing import CliRunner

from gemmule.cli import gemmule
from gemmule.outofcore.journal.journal_file import Journal
from gemmule.outofcore.journal.temporary_files import hidden_path

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
    from gemmule.outofcore.journal.journal_file import Journal
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
#: Forks a process for each line of standard input, a folder, environment and arguments: Python and the packages are
#: started and imported once. Says how each ended.
FORKS = """
import contextlib, importlib, json, os, pkgutil, sys
import gemmule.outofcore.calls.session, gemmule.cli, gemmule.commands, gemmule.host, gemmule.outofcore
for package in gemmule.commands, gemmule.host, gemmule.outofcore:
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        with contextlib.suppress(ImportError):
            importlib.import_module(module.name)
with contextlib.suppress(ImportError):
    import zarr
killer = compile(sys.argv[1], "killer", "exec")
for line in sys.stdin:
    folder, environment, told, arguments = json.loads(line)
    forked = os.fork()
    if not forked:
        code = 70
        try:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            sys.stdout = sys.stderr = open(told, "w")
            sys.argv = ["gemmule", *arguments]
            try:
                exec(killer, {"__name__": "__main__"})
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
            sys.stdout.flush()
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]), flush=True)
"""
#: The environment before any test: Dask, for one, limits the threads of BLAS in it, which decide bits.
ENVIRONMENT = dict(os.environ)
OUTPUTS = {"C.npy": [], "C.zarr": ["--chunks", "32"], "S.zarr::g/x": ["--chunks", "16,32", "--shards", "32,32"]}


def make_inputs():
    rng = np.random.default_rng(0)
    np.save("A.npy", rng.standard_normal((120, 90), "f4"))
    np.save("B.npy", rng.standard_normal((90, 160), "f4"))


def arguments(output, *more):
    # Other names are of one of these formats.
    options = OUTPUTS.get(output, OUTPUTS[f"C.{output.rpartition('.')[2]}"] if "::" not in output else None)
    return ["matmul", "A.npy", "B.npy", "-o", output, "--memory", "280KB", *options, "--json", *more]


def run(output, *more):
    return CliRunner().invoke(gemmule, arguments(output, *more))


def record(output, *more):
    with warnings.catch_warnings():
        # A process that is killed before its journal has a line leaves an empty result.
        warnings.filterwarnings("ignore", ".*unfinished work was found without its journal")
        result = run(output, *more)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(output, *more):
    result = run(output, *more)
    assert result.exit_code == 1, result.output
    assert result.stderr.count("\n") == 1
    return result.stderr


@functools.cache
def forks(killer):
    """Start the process that is forked for each killed one, once."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS, killer],
        env=ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )

    @atexit.register
    def end():
        process.stdin.close()
        process.stdout.close()
        process.wait()

    return process


def killed_at(point, arguments, killer=KILLER):
    """Run the command and kill it at the call of that number; return its exit code and what it printed."""
    process = forks(killer)
    with tempfile.NamedTemporaryFile("r") as told:
        asked = os.getcwd(), dict(os.environ), told.name, [str(point), *arguments]
        process.stdin.write(json.dumps(asked) + "\n")
        return int(process.stdout.readline()), told.read()


def child(output, point, *more):
    """Run the product of that output and kill it; return its exit code and what it printed."""
    return killed_at(point, arguments(output, *more))


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


def journal_of(output):
    place = os.path.abspath(output.partition("::")[0])
    return hidden_path(os.path.join(os.path.dirname(place), output.replace("/", "::")), ".journal")


def await_tile(output):
    """Wait until a tile is in the journal of a product, five seconds at most.

    Threads and workers write tiles: the first may be in flight for as long as a busy machine lets them wait.
    """
    for _ in range(2500):
        with open(journal_of(output), "rb") as journal:
            if sum(1 for _ in journal) > 1:
                break
        time.sleep(0.002)


@contextlib.contextmanager
def interrupting(share=0.5, *, rectangles=2):
    """Yield a progress function that interrupts the product within past a share of it, some of it in its journal.

    Progress may be reported by a thread of its own: on a busy machine the others may have stored no tile by then, or
    all. So progress waits until the journal has so many rectangles, of which tiles have several, or until no more
    come; and the journal notes no others. Of 0 it does not wait: some products store no tile before their end.
    """
    append, noted = Journal.append, []

    def some(self, tiles):
        tiles = list(tiles)[: rectangles - len(noted)]
        append(self, tiles)
        noted.extend(tiles)

    def progress(done, total):
        if done > share * total:
            before, idle, end = 0, 0, time.monotonic() + 20
            while len(noted) < rectangles and not (noted and idle > 100):
                assert time.monotonic() < end, "nothing is stored"
                time.sleep(0.002)
                before, idle = len(noted), idle + 1 if len(noted) == before else 0
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(Journal, "append", some)
        yield progress
        pytest.fail("nothing was interrupted")


def stored(output):
    """Return the files with the finished items, largest last."""
    (partial,) = (name for name in hidden() if name.endswith(".partial"))
    if os.path.isfile(partial):
        return [partial]
    return [os.path.join(root, name) for root, _, names in os.walk(partial) for name in names if name != "zarr.json"]


def damage(path, offset, mask=0x10):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


def finish(output, expected, *more):
    told = record(output, *more)
    assert content(output).tobytes() == expected.tobytes()
    assert told["tiles_reused"] + told["tiles_computed"] == told["tiles_total"] > 3
    assert hidden() == []
    return told
