"""Processes that share a GPU and the random problems: each plans its part, and runs it once that is compiled."""

from __future__ import annotations

import collections
import dataclasses
import multiprocessing
import multiprocessing.connection
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from random_draw import draw

from gemmule.compiler.pool import Job

#: Problems that are queued before the verdicts are waited for, and bytes that PyTorch may keep then.
CHUNK, _KEPT = 16, 6 << 30


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all problems of a run have in common."""

    seed: int
    most: int = 5000
    cupy: bool = True
    device: str = "cuda"
    executor: str | None = None


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What was found of a problem: nothing wrong where `failure` is empty."""

    index: int
    labels: Mapping[str, str]
    share: float = 0.0
    failure: str = ""


@dataclasses.dataclass(frozen=True)
class Planned:
    """The plans of problems.

    Attributes
    ----------
    kernels : dict of int to (str, tuple of str)
        For each problem the name of its kernel, and what must be compiled for it.
    jobs : dict of str to Job
        What these names mean.
    raised : dict of int to str
        What planning a problem raised.
    """

    kernels: dict[int, tuple[str, tuple[str, ...]]] = dataclasses.field(default_factory=dict)
    jobs: dict[str, Job] = dataclasses.field(default_factory=dict)
    raised: dict[int, str] = dataclasses.field(default_factory=dict)


def jobs_of(plan: Any) -> tuple[str, list[Job]]:
    """Return the name of a plan's kernel, and what must be compiled for it."""
    from gemmule.core.problem import split_batch
    from gemmule.runtime.device import get_device
    from gemmule.vgpu.arch import virtual_arch

    choice, problem = plan.choice, plan.problem
    if choice is None:
        return plan.executor, []
    inner, _, _ = split_batch(problem, choice.spec.batch_dims)
    arch = get_device().arch if plan.executor == "gpu" else virtual_arch()
    jobs = [Job(choice.spec, choice.config, choice.signature(inner), arch)]
    name = choice.spec.name
    if then := choice.following(problem):
        jobs.append(Job(then.spec, then.config, then.spec.signature(then.problem, then.config), arch))
        name += f" + {then.spec.name}"
    return name, jobs


def check(setting: Setting, indices: Sequence[int], spoil: Callable[[Any], None] | None = None) -> list[Verdict]:
    """Run problems, and wait for the verdicts."""
    import torch
    from random_calls import Call, labels, on_stream

    queued: list[tuple[int, Mapping[str, str], Any]] = []
    for index in indices:
        problem = draw(setting.seed, index, most=setting.most, cupy=setting.cupy)
        label = labels(problem)
        try:
            with on_stream(problem, setting.device):
                call = Call(problem, setting.device, setting.executor)
                call.fill()
                queued.append((index, label, call.run(spoil)))
        except Exception as error:  # whatever it is, it is what is looked for
            last = traceback.extract_tb(error.__traceback__)[-1]
            queued.append((index, label, f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"))
    if setting.device != "cpu":
        torch.cuda.synchronize()
        if torch.cuda.memory_reserved() > _KEPT:
            torch.cuda.empty_cache()
    found = []
    for index, label, result in queued:
        if isinstance(result, str):
            found.append(Verdict(index, label, failure=result))
            continue
        wrong, share, strayed, changed = result.tolist()
        failure = ""
        if wrong or not share <= 1 or strayed or changed:
            failure = (
                f"{wrong:.0f} elements wrong, greatest error {share:.3g} of its bound, {strayed:.0f} bytes written "
                f"beside the result, {changed:.0f} inputs changed"
            )
        found.append(Verdict(index, label, share, failure))
    return found


def work(setting: Setting, pipe: multiprocessing.connection.Connection) -> None:
    """Do what the parent asks for, until it asks no more: a process's function."""
    import torch

    torch.set_num_threads(1)
    while (asked := pipe.recv()) is not None:
        what, indices, deadline, alone = asked
        if what == "plan":
            pipe.send(_planned(setting, indices, deadline))
            continue
        # Those that a process ended at are run one by one.
        chunks = [indices[first : first + 1] for first in range(alone)]
        chunks += [indices[first : first + CHUNK] for first in range(alone, len(indices), CHUNK)]
        for chunk in chunks:
            if time.time() > deadline:
                break
            pipe.send(("begun", chunk))
            pipe.send(("found", check(setting, chunk)))
        pipe.send(("done", None))


def _planned(setting: Setting, indices: Sequence[int], deadline: float) -> Planned:
    from random_calls import Call

    found = Planned()
    for index in indices:
        if time.time() > deadline:
            break
        problem = draw(setting.seed, index, most=setting.most, cupy=setting.cupy)
        try:
            name, jobs = jobs_of(Call(problem, setting.device, setting.executor).plan())
        except Exception as error:  # as above
            found.raised[index] = f"{type(error).__name__}: {error}"
            continue
        named = {str(job): job for job in jobs}
        found.jobs.update(named)
        found.kernels[index] = name, tuple(named)
    return found


class Workers:
    """Processes, each with a pipe.

    Parameters
    ----------
    setting : Setting
        The run.
    count : int
        How many.
    """

    def __init__(self, setting: Setting, count: int) -> None:
        self._setting, self._context = setting, multiprocessing.get_context("spawn")
        self._begun = [self._begin() for _ in range(count)]

    def _begin(self) -> tuple[Any, multiprocessing.connection.Connection]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=work, args=(self._setting, theirs), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def plan(self, indices: Sequence[int], deadline: float) -> Planned:
        """Return what problems need."""
        count, found = len(self._begun), Planned()
        for number, (_, pipe) in enumerate(self._begun):
            pipe.send(("plan", indices[number::count], deadline, 0))
        for _, pipe in self._begun:
            part = pipe.recv()
            found.kernels.update(part.kernels)
            found.jobs.update(part.jobs)
            found.raised.update(part.raised)
        return found

    def run(self, indices: Sequence[int], deadline: float) -> Iterator[list[Verdict]]:
        """Yield verdicts as they come. A process that ends is replaced, and what it was at is run again, one by one."""
        count = len(self._begun)
        left = {number: collections.deque(indices[number::count]) for number in range(count)}
        at: dict[int, Sequence[int]] = {}
        for number, (_, pipe) in enumerate(self._begun):
            pipe.send(("run", list(left[number]), deadline, 0))
        busy = set(range(count))
        while busy:
            pipes = {self._begun[number][1]: number for number in busy}
            for ready in multiprocessing.connection.wait(list(pipes), timeout=60):
                number = pipes[ready]  # type: ignore[index]
                try:
                    what, content = self._begun[number][1].recv()
                except EOFError:
                    chunk = at.pop(number, ())
                    if len(chunk) == 1:
                        yield [Verdict(chunk[0], {}, failure="it ended the process")]
                        self._take(left[number], chunk)
                    self._begun[number] = self._begin()
                    alone = len(chunk) if len(chunk) > 1 else 0
                    self._begun[number][1].send(("run", list(left[number]), deadline, alone))
                    continue
                if what == "begun":
                    at[number] = content
                elif what == "found":
                    self._take(left[number], at.pop(number))
                    yield content
                else:
                    busy.discard(number)

    @staticmethod
    def _take(left: collections.deque[int], chunk: Sequence[int]) -> None:
        for _ in chunk:
            left.popleft()

    def end(self) -> None:
        """Let the processes end."""
        for process, pipe in self._begun:
            pipe.send(None)
            process.join(10)
