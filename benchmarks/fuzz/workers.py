"""Processes that share a GPU and the random problems: each draws templates, and checks the problems given to it."""

from __future__ import annotations

import collections
import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from planning import Planned, Setting, problem_numbered, template
from recipes import kernels_for

#: Problems of one template that a process is given at a time, and bytes that PyTorch may hold between them.
CHUNK, _CACHED = 16, 2 << 30
#: Seconds after which a process that checks them on a GPU is taken to hang.
_PATIENCE = 120.0


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What was found of a problem: nothing wrong where `failure` is empty."""

    index: int
    kernel: str
    labels: Mapping[str, str]
    share: float = 0.0
    failure: str = ""


def check(setting: Setting, indices: Sequence[int], spoil: Callable[[Any], None] | None = None) -> list[Verdict]:
    """Run problems, and wait for the verdicts."""
    import torch
    from calls import Call, labels, on_stream

    queued: list[tuple[int, str, Mapping[str, str], Any]] = []
    for index in indices:
        kernel, label = "", {}
        try:
            problem = problem_numbered(setting, index)
            kernel, label = kernels_for(problem.kind)[0], labels(problem)
            with on_stream(problem, setting.device):
                call = Call(problem, setting.device, setting.target)
                call.fill()
                found = call.run(spoil)
            queued.append((index, call.kernel, label, found))
        except Exception as error:  # whatever it is, it is what is looked for
            last = traceback.extract_tb(error.__traceback__)[-1]
            queued.append((index, kernel, label, f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"))
    if setting.device != "cpu":
        # After an error of the GPU this raises, the process ends, and its problems are run one by one.
        torch.cuda.synchronize()
        if torch.cuda.memory_reserved() > _CACHED:
            torch.cuda.empty_cache()
    return [_verdict(*one) for one in queued]


def _verdict(index: int, kernel: str, label: Mapping[str, str], result: Any) -> Verdict:
    if isinstance(result, str):
        return Verdict(index, kernel, label, failure=result)
    wrong, share, strayed, changed = result.tolist()
    failure = ""
    if wrong or not share <= 1 or strayed or changed:
        failure = (
            f"{wrong:.0f} elements wrong, greatest error {share:.3g} of its bound, {strayed:.0f} bytes written "
            f"beside the result, {changed:.0f} inputs changed"
        )
    return Verdict(index, kernel, label, share, failure)


def prepare_process() -> None:
    """Set up the libraries of a process: one thread, and no memory of the GPU taken in advance."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("JAX_ENABLE_X64", "1")
    import torch

    torch.set_num_threads(1)


def work(setting: Setting, pipe: multiprocessing.connection.Connection) -> None:
    """Answer the parent's requests until there are no more: a process's function."""
    prepare_process()
    pipe.send("ready")
    while (asked := pipe.recv()) is not None:
        what, numbers = asked
        if what == "plan":
            pipe.send([template(setting, number).planned for number in numbers])
        else:
            pipe.send(check(setting, numbers))


class Workers:
    """Processes, each with a pipe.

    Parameters
    ----------
    setting : Setting
        The run.
    count : int
        How many.
    task : callable
        What each of them runs, given the setting and its end of the pipe.
    patience : float, optional
        Seconds after which one does not answer; of a host's none is measured by default.
    """

    def __init__(
        self, setting: Setting, count: int, task: Callable[..., None] | None = None, patience: float | None = None
    ) -> None:
        self._setting, self._context = setting, multiprocessing.get_context("spawn")
        self._task = task or work
        self._patience = patience or (_PATIENCE if setting.device != "cpu" else float("inf"))
        self._workers = [self._started() for _ in range(count)]
        for _, pipe in self._workers:
            pipe.recv()
        self._kernels: list[str] = []

    def _started(self) -> tuple[Any, multiprocessing.connection.Connection]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=self._task, args=(self._setting, theirs), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def plan(self) -> list[Planned]:
        """Return what the templates of the run need, in their order."""
        numbers, count = range(self._setting.templates), len(self._workers)
        for place, (_, pipe) in enumerate(self._workers):
            pipe.send(("plan", numbers[place::count]))
        found: dict[int, Planned] = {}
        for place, (_, pipe) in enumerate(self._workers):
            found.update(zip(numbers[place::count], pipe.recv(), strict=True))
        self._kernels = [found[number].kernel for number in numbers]
        return [found[number] for number in numbers]

    def run(self, problems: int, deadline: float) -> Iterator[list[Verdict]]:
        """Yield verdicts in the order of completion, until all problems are checked or the time is over.

        A process that ends, or does not answer, is replaced, and its problems are run again, one by one.
        """
        left = collections.deque(chunks(problems, self._setting.templates))
        # For each worker its problems, and when it is taken to hang.
        busy: dict[int, tuple[Sequence[int], float]] = {}
        patience = self._patience
        while left or busy:
            for number, (_, pipe) in enumerate(self._workers):
                if number not in busy and left and time.time() < deadline:
                    chunk = left.popleft()
                    busy[number] = chunk, time.time() + patience
                    pipe.send(("run", chunk))
            if not busy:
                return
            pipes = {self._workers[number][1]: number for number in busy}
            ready = [pipes[one] for one in multiprocessing.connection.wait(list(pipes), 1.0)]  # type: ignore[index]
            late = [number for number, (_, limit) in busy.items() if number not in ready and time.time() > limit]
            for number in (*ready, *late):
                chunk, _ = busy.pop(number)
                process, pipe = self._workers[number]
                try:
                    if number in late:
                        process.kill()
                        raise EOFError
                    yield pipe.recv()
                except (EOFError, ConnectionResetError):
                    what = "do not end" if number in late else "end their process"
                    print(f"problems {', '.join(map(str, chunk))} {what}: they run again, one by one", flush=True)
                    self._workers[number] = self._started()
                    # Its time begins when it can work.
                    self._workers[number][1].recv()
                    if len(chunk) == 1:
                        failure = "it did not end" if number in late else "it ended the process"
                        yield [Verdict(chunk[0], self._kernels[chunk[0] % len(self._kernels)], {}, failure=failure)]
                    left.extendleft((index,) for index in reversed(chunk) if len(chunk) > 1)

    def end(self) -> None:
        """Let the processes end, all at once: each takes more than a second to leave the GPU."""
        for _, pipe in self._workers:
            pipe.send(None)
        for process, _ in self._workers:
            process.join(10)


def chunks(problems: int, templates: int) -> list[Sequence[int]]:
    """Return problems in chunks of one template each, the first chunk of each template before all second ones."""
    most = range(-(-problems // (templates * CHUNK)))
    found = (
        list(range(turn * CHUNK * templates + number, problems, templates)[:CHUNK])
        for turn in most
        for number in range(templates)
    )
    return [chunk for chunk in found if chunk]
