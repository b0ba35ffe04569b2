"""Parallel compilation in processes, since the compiler is not thread-safe."""

from __future__ import annotations

import collections
import concurrent.futures
import concurrent.futures.process
import contextlib
import multiprocessing
import multiprocessing.context
from collections.abc import Iterable, Iterator

from gemmule.core.arch import Arch
from gemmule.core.config import Config
from gemmule.core.cpus import usable_cpus
from gemmule.core.dataclass import dataclass
from gemmule.core.errors import CompileError
from gemmule.core.problem import Problem, inner_problem
from gemmule.core.spec import Choice, KernelSpec, Signature

from .artifact import Artifact
from .cache import artifact_for


@dataclass(frozen=True)
class Job:
    """One kernel to compile."""

    spec: KernelSpec
    config: Config
    signature: Signature
    arch: Arch

    def __hash__(self) -> int:
        # That of a kernel would hash all of its configs, which takes longer than choosing one.
        return hash((self.spec.name, self.config, self.signature, self.arch))

    def run(self) -> Artifact:
        """Return the compiled kernel."""
        return artifact_for(self.spec, self.config, self.signature, self.arch)

    def __str__(self) -> str:
        types = ",".join(value for _, value in self.signature)
        return f"{self.spec.name}[{self.config}; {types}; {self.arch}]"


def jobs_of(choice: Choice, problem: Problem, arch: Arch) -> Iterator[Job]:
    """Yield the compilations of a choice for a problem: its kernel, then the next ones, then those of its form."""
    yield Job(choice.spec, choice.config, choice.signature(problem), arch)
    then = choice.next_kernel(problem)
    for one in then.chain() if then is not None else ():
        yield Job(one.spec, one.config, one.spec.signature(one.problem, one.config), arch)
    before, after = choice.further(inner_problem(problem, choice.batch_dims))
    for further in (*before, *after):
        yield Job(further.spec, further.config, further.spec.signature(further.problem, further.config), arch)


def compile_all(jobs: Iterable[Job], workers: int | None = None) -> Iterator[tuple[Job, Artifact | CompileError]]:
    """Compile kernels in parallel processes into the disk cache.

    Parameters
    ----------
    workers : int, optional
        Number of processes; by default of CPUs that this one may use.

    Yields
    ------
    job, result
        In order of completion; the result is the artifact or the error, e.g. a crash of the compiler's process.
    """
    # A forked child would inherit the compiler's threads and locks.
    context = multiprocessing.get_context("spawn")
    left = collections.deque(jobs)
    count = max(min(workers or usable_cpus(), len(left)), 1)

    def work(job: Job, pool: concurrent.futures.ProcessPoolExecutor) -> Artifact:
        return pool.submit(job.run).result()

    # One pool for each process: a crash of the compiler fails one job only.
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(count) as threads:
        idle = [_one_process(context) for _ in range(count)]

        @stack.callback
        def end() -> None:
            for pool in idle:
                pool.shutdown()

        running: dict[concurrent.futures.Future[Artifact], tuple[Job, concurrent.futures.ProcessPoolExecutor]] = {}
        while left or running:
            while left and idle:
                job, pool = left.popleft(), idle.pop()
                running[threads.submit(work, job, pool)] = job, pool
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                job, pool = running.pop(future)
                result: Artifact | CompileError
                try:
                    result = future.result()
                except CompileError as error:
                    result = error
                except concurrent.futures.process.BrokenProcessPool:
                    result = CompileError(f"{job}: the compiler's process crashed")
                    pool.shutdown()
                    pool = _one_process(context)
                idle.append(pool)
                yield job, result


def _one_process(context: multiprocessing.context.SpawnContext) -> concurrent.futures.ProcessPoolExecutor:
    return concurrent.futures.ProcessPoolExecutor(1, mp_context=context)
