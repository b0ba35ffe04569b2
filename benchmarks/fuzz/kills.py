"""Products that are killed and resumed: ``python benchmarks/fuzz/kills.py --kinds npy,zarr --kills 300 --seed 1``.

Each cycle starts a product in a forked process, sends SIGKILL at a random moment, looks at the output, and repeats the
command until it exits with 0. The result must be that of an uninterrupted run, bit for bit; before that the name of the
output holds nothing, the old output of ``--force``, or the whole new one, and no temporary file is left at the end.

Kinds: ``npy`` and ``zarr`` are killed at a random call that changes the disk; ``rename`` before, during and after the
call that gives the output its name; ``dask-worker``, ``dask-scheduler`` and ``dask-client`` at a random time. Writes a
`check` record for each kind.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from gemmule.core.errors import GemmuleError
from gemmule.lab.experiment import experiment
from gemmule.lab.records import RecordFile
from support.outofcore.killed_products import KILLER, arguments, content, hidden, killed_at, make_inputs

NEVER = int(1e9)
_RUNS, _LONGEST_S = 50, 30.0
#: Kills before (0), during (1) or after (2) the call that names the output: the point modulo 3; the rest are
#: microseconds from the beginning of the call.
NAMING_KILLER = """
import os, signal, sys, threading, time
import gemmule.outofcore.journal.temporary_files as hidden_names
from gemmule.cli import main
delay, moment = divmod(int(sys.argv.pop(1)), 3)
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def deadly(owner, name):
    call = getattr(owner, name)
    def killing(first, second, *more, **options):
        if os.path.basename(os.fspath(second)).startswith(".gemmule-"):
            return call(first, second, *more, **options)
        if moment == 0:
            die()
        if moment == 1:
            threading.Thread(target=lambda: (time.sleep(delay / 1e6), die()), daemon=True).start()
        result = call(first, second, *more, **options)
        if moment == 2:
            die()
        return result
    setattr(owner, name, killing)
for name in "replace rename link".split():
    deadly(os, name)
deadly(hidden_names, "_exchange")
main()
"""


class BrokenOutputError(Exception):
    """What was found."""


def held(output: str) -> bytes | None:
    """Return the elements under the name of the output; None where there is nothing."""
    path = output.partition("::")[0]
    return content(output).tobytes() if os.path.lexists(path) else None


@contextlib.contextmanager
def watched(path: str, allowed: set[bytes | None]) -> Iterator[None]:
    """Read a .npy file all the time; raise if it holds anything else than what is allowed."""
    found: list[int] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.0005):
            try:
                data: bytes | None = Path(path).read_bytes()
            except FileNotFoundError:
                data = None
            if data not in allowed:
                found.append(len(data or b""))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if found:
        raise BrokenOutputError(f"{path} held {found[0]} bytes that are neither the old nor the new output")


class OnDisk:
    """Kills of a command on the host."""

    def __init__(self, kind: str, rng: random.Random) -> None:
        self._rng = rng
        self._naming = kind == "rename"
        self._outputs = {"npy": ["C.npy"], "zarr": ["C.zarr", "S.zarr::g/x"]}.get(kind, ["C.npy", "C.zarr"])
        self._known: dict[str, tuple[int, bytes, bytes]] = {}
        for output in self._outputs:
            calls, new = self._whole(output)
            self._known[output] = calls, new, self._whole(output, "--alpha", "2")[1]

    def _whole(self, output: str, *more: str) -> tuple[int, bytes]:
        """Run the command to its end; keep the output as the old or the new one."""
        code, told = killed_at(NEVER, arguments(output, *more))
        assert code == 0, told
        data = content(output).tobytes()
        path = output.partition("::")[0]
        os.rename(path, f"{'old' if more else 'new'} {path}")
        return int(told.split()[-1]), data

    def cycle(self) -> None:
        """Kill once or more, resume, and check."""
        output = self._rng.choice(self._outputs)
        path = output.partition("::")[0]
        calls, new, old = self._known[output]
        force = ["--force"] if self._rng.random() < 0.5 else []
        if force:
            (shutil.copytree if os.path.isdir(f"old {path}") else shutil.copyfile)(f"old {path}", path)
        before = old if force else None
        with contextlib.ExitStack() as watch:
            if path.endswith(".npy"):
                files = {Path(f"new {path}").read_bytes(), Path(f"old {path}").read_bytes() if force else None}
                watch.enter_context(watched(path, files))
            for _ in range(self._rng.choice((1, 1, 2))):
                killer = NAMING_KILLER if self._naming else KILLER
                point = self._rng.randrange(3 * 300) if self._naming else self._rng.randint(1, calls)
                code, told = killed_at(point, arguments(output, *force), killer)
                data = held(output)
                if data not in (before, new):
                    raise BrokenOutputError(
                        f"after a kill at {point} {output} holds neither the old nor the new output"
                    )
                if code not in (0, -signal.SIGKILL) and not (data == new and not force):
                    raise BrokenOutputError(f"exit code {code} at {point}: {told}")
            if force or held(output) is None:
                code, told = killed_at(NEVER, arguments(output, *force))
                if code != 0:
                    raise BrokenOutputError(f"resuming {output} fails: {told}")
            elif killed_at(NEVER, arguments(output))[0] == 0:
                raise BrokenOutputError(f"{output} was replaced without --force")
        if held(output) != new:
            raise BrokenOutputError(f"{output} is not that of an uninterrupted run")
        # A folder that was exchanged and not yet deleted goes with the next product of that name.
        if hidden() and not path.endswith(".zarr"):
            raise BrokenOutputError(f"left: {hidden()}")
        for name in (path, *hidden()):
            (shutil.rmtree if os.path.isdir(name) else os.unlink)(name)


def forked(work: Callable[[], object], out: str) -> int:
    """Start a process; return its number. It exits with 0, with 1 after a GemmuleError, and with 70 after others."""
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        target = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, 1)
        os.dup2(target, 2)
        try:
            work()
            code = 0
        except GemmuleError as error:
            print(error, flush=True)
            code = 1
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            raise
    finally:
        os._exit(code)


def serve_scheduler() -> None:
    """Run a scheduler, which writes its address into a file."""
    import asyncio

    import distributed

    async def serve() -> None:
        options = {"host": "127.0.0.1", "port": 0, "dashboard": False}
        async with distributed.Scheduler(**options) as scheduler:
            Path("address.new").write_text(scheduler.address)
            os.replace("address.new", "address")
            await scheduler.finished()

    asyncio.run(serve())


def serve_worker(address: str) -> None:
    """Run a worker, which takes a moment for each tile."""
    import asyncio

    import distributed

    from gemmule.host.tiles import HostTileSum

    add = HostTileSum.add

    def slow(self: Any, a: Any, b: Any) -> None:
        time.sleep(0.005)
        add(self, a, b)

    HostTileSum.add = slow  # type: ignore[method-assign]

    async def serve() -> None:
        options = {"nthreads": 1, "memory_limit": 0, "local_directory": "space", "dashboard": False}
        async with distributed.Worker(address, **options) as worker:
            await worker.finished()

    asyncio.run(serve())


class OnDask:
    """Kills of one process of a product on a Dask scheduler with two workers."""

    def __init__(self, kind: str, rng: random.Random) -> None:
        import dask
        import distributed  # noqa: F401

        import gemmule

        # A client waits so long for a scheduler that was killed.
        dask.config.set({"distributed.comm.timeouts.connect": "2s", "distributed.scheduler.worker-ttl": "5s"})
        self._victim, self._rng = kind.removeprefix("dask-"), rng
        os.environ["GEMMULE_EXECUTOR"] = "cpu"
        # Threads of BLAS would not survive a fork of this process.
        code = os.waitpid(
            forked(lambda: gemmule.outofcore.matmul("A.npy", "B.npy", "new.npy", memory="280KB"), "out"), 0
        )[1]
        assert code == 0, Path("out").read_text()
        self._new = Path("new.npy").read_bytes()
        self._longest = 0.0
        # The first product is not killed: it tells how long one takes.
        self.cycle()

    @contextlib.contextmanager
    def _cluster(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Start a scheduler and two workers; yield the address and the processes."""
        Path("address").unlink(missing_ok=True)
        processes = {"scheduler": forked(serve_scheduler, "scheduler.out")}
        try:
            while not os.path.exists("address"):
                time.sleep(0.005)
            address = Path("address").read_text()
            for name in ("worker", "other"):
                processes[name] = forked(lambda: serve_worker(address), f"{name}.out")
            yield address, processes
        finally:
            for process in processes.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)

    def _client(self, address: str) -> int:
        import gemmule

        return forked(
            lambda: gemmule.outofcore.matmul("A.npy", "B.npy", "C.npy", memory="280KB", scheduler=address), "out"
        )

    @staticmethod
    def _ended(client: int) -> int:
        """Wait for the client; return its exit code, -9 where it had to be killed."""
        deadline = time.monotonic() + _LONGEST_S
        while time.monotonic() < deadline:
            found, status = os.waitpid(client, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        os.kill(client, signal.SIGKILL)
        os.waitpid(client, 0)
        return -signal.SIGKILL

    def cycle(self) -> None:
        """Kill once, resume on a fresh scheduler (the same one after the client's death), and check."""
        with watched("C.npy", {None, self._new}):
            with self._cluster() as (address, processes):
                client = self._client(address)
                began = time.monotonic()
                time.sleep(self._rng.random() * self._longest)
                victim = client if self._victim == "client" else processes[self._victim]
                if self._longest:
                    os.kill(victim, signal.SIGKILL)
                code = self._ended(client)
                self._longest = self._longest or time.monotonic() - began
                if code not in (0, 1, -signal.SIGKILL):
                    raise BrokenOutputError(f"the client exits with {code}: {Path('out').read_text()[-400:]}")
                if code == -signal.SIGKILL and self._victim != "client":
                    raise BrokenOutputError(f"the client hangs after the {self._victim} was killed")
                if self._victim == "client":
                    self._resumed(address)
            if self._victim != "client":
                with self._cluster() as (address, _):
                    self._resumed(address)
        if Path("C.npy").read_bytes() != self._new:
            raise BrokenOutputError("C.npy is not that of an uninterrupted run")
        if hidden():
            raise BrokenOutputError(f"left: {hidden()}")
        os.unlink("C.npy")

    def _resumed(self, address: str) -> None:
        for _ in range(_RUNS):
            if os.path.exists("C.npy") and not hidden():
                return
            code = self._ended(self._client(address))
            if code not in (0, 1):
                raise BrokenOutputError(f"resuming exits with {code}: {Path('out').read_text()[-400:]}")
            # The workers may be at a band of the product before, and say so.
            time.sleep(0.05 if code else 0)
        if hidden():
            raise BrokenOutputError(f"does not resume: {Path('out').read_text()[-400:]}")


def checked(kind: str, kills: int, rng: random.Random, seconds: float) -> dict[str, Any]:
    """Run the cycles of a kind, each of at least one kill, until the time is over; return the record."""
    passed, broken = 0, []
    end = time.monotonic() + seconds
    here = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        os.chdir(folder)
        try:
            make_inputs()
            os.environ["GEMMULE_EXECUTOR"] = "cpu"
            one = (OnDask if kind.startswith("dask") else OnDisk)(kind, rng)
            while passed + len(broken) < kills and time.monotonic() < end:
                try:
                    one.cycle()
                    passed += 1
                except BrokenOutputError as found:
                    broken.append(str(found))
                    print(f"{kind}: {found}", flush=True)
                    for name in os.listdir():
                        if name.startswith((".gemmule-", "C.", "S.")):
                            (shutil.rmtree if os.path.isdir(name) else os.unlink)(name)
        finally:
            os.chdir(here)
    record = {"record": "check", "what": f"kills {kind}", "passed": passed, "failed": len(broken), "skipped": 0}
    return record | ({"found": broken[:5]} if broken else {})


def main() -> int:
    """Run the kinds and write the record; return 1 where something was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kinds", default="npy,zarr,rename,dask-worker,dask-scheduler,dask-client")
    parser.add_argument("--kills", type=int, default=300, help="of each kind")
    parser.add_argument("--seconds", type=float, default=1e9, help="of each kind, after which it stops")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    failed = 0
    command = " ".join(["python", *sys.argv])
    with RecordFile(given.out.absolute(), experiment(command)) as file:
        for kind in given.kinds.split(","):
            record = checked(kind, given.kills, random.Random(f"{given.seed} {kind}"), given.seconds)  # noqa: S311
            print(record, flush=True)
            file.write(record)
            failed += record["failed"]
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
