"""CTAs spread over the cores: processes that share the arena, each with a batch of CTAs at a time.

Threads do not help: NumPy's calls are short and hold the interpreter between them. CTAs of a launch are independent
unless they use atomic operations or flags in global memory; such a kernel runs in one process, so that its result is
the same in every run. A launch is spread only once its first batch has shown that it takes long enough to pay for the
start of the processes, which serve later launches too.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .dataflow.polling import is_strong
from .engine.batch import LaunchState
from .engine.program import Program
from .launch_request import request_of
from .ptx.module import Instruction, Kernel

#: Seconds that the rest of a launch must take before processes are started for it.
WORTH_SECONDS = 3.0


def can_be_spread(kernel: Kernel) -> bool:
    """Say whether the order of CTAs cannot matter: no atomic operation, flag or the like but in shared memory."""
    return not any(map(_is_atomic, kernel.instructions))


def _is_atomic(instruction: Instruction) -> bool:
    """Say whether an instruction combines something with what global memory may hold."""
    spaces = {part.split("::")[0] for part in instruction.modifiers}
    if instruction.name == "call":
        # It prints.
        return True
    if instruction.name in ("atom", "red") or is_strong(instruction):
        return "shared" not in spaces
    return instruction.name == "cp" and "reduce" in spaces


class _Worker:
    """A process that runs CTAs."""

    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gemmule.vgpu.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def send(self, request: object) -> None:
        """Send a request."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        """Return the answer to a request; nothing if the process has died."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            # It is gone already.
            self._process.kill()
        self._process.stdout.close()
        self._process.wait()


class _Pool:
    """The processes, started when they are first wanted."""

    def __init__(self) -> None:
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()
        atexit.register(self.stop)

    def run(self, program: Program, launch_state: LaunchState, batches: Sequence[tuple[int, int]], count: int) -> bool:
        """Run batches of CTAs; return whether all succeeded. The launch's memory changes only then."""
        with self._lock, tempfile.NamedTemporaryFile(prefix="gemmule-vgpu-") as file:
            launch_state.memory.data.tofile(file)
            file.flush()
            while len(self._workers) < count:
                self._workers.append(_Worker())
            request = request_of(program, launch_state, Path(file.name))
            waiting = list(reversed(batches))
            with concurrent.futures.ThreadPoolExecutor(count) as threads:
                tasks = [threads.submit(_serve, worker, request, waiting) for worker in self._workers[:count]]
                concurrent.futures.wait(tasks)
                good = all(task.result() for task in tasks)
            if good:
                launch_state.memory.data[...] = np.fromfile(file.name, np.uint8)
            else:
                self.stop()
            return good

    def stop(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.stop()
        self._workers = []


def _serve(worker: _Worker, request: object, waiting: list[tuple[int, int]]) -> bool:
    """Give a worker batches until none is left or one failed."""
    try:
        worker.send(request)
        while waiting:
            try:
                batch = waiting.pop()
            except IndexError:
                # Another thread took the last one.
                break
            worker.send({"ctas": batch})
            if worker.answer() != "ok":
                return False
    except BrokenPipeError:
        return False
    return True


pool = _Pool()
