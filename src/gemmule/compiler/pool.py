"""Compiling many kernels at once, in processes, since the compiler is not thread-safe."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import multiprocessing
import os
from collections.abc import Iterable, Iterator

from gemmule.core.arch import Arch
from gemmule.core.errors import CompileError
from gemmule.core.spec import Config, KernelSpec, Signature

from .artifact import Artifact
from .cache import artifact_for


@dataclasses.dataclass(frozen=True)
class Job:
    """One kernel to compile."""

    spec: KernelSpec
    config: Config
    signature: Signature
    arch: Arch

    def run(self) -> Artifact:
        """Return the compiled kernel."""
        return artifact_for(self.spec, self.config, self.signature, self.arch)

    def __str__(self) -> str:
        types = ",".join(value for _, value in self.signature)
        return f"{self.spec.name}[{self.config}; {types}; {self.arch}]"


def compile_all(jobs: Iterable[Job], workers: int | None = None) -> Iterator[tuple[Job, Artifact | CompileError]]:
    """Compile kernels in parallel processes; the disk cache keeps them.

    Parameters
    ----------
    jobs : iterable of Job
        What to compile.
    workers : int, optional
        Processes; as many as there are CPUs by default.

    Yields
    ------
    job, result
        In the order of completion; the result is the artifact or the error.
    """
    # A forked child would inherit the compiler's threads and locks.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers or os.cpu_count(), mp_context=context) as pool:
        futures = {pool.submit(job.run): job for job in jobs}
        for future in concurrent.futures.as_completed(futures):
            try:
                yield futures[future], future.result()
            except CompileError as error:
                yield futures[future], error
