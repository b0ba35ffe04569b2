"""The wheel: kernels compiled on all cores, packed, and built from the folder of the distribution."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import gemmule
from gemmule.compiler.artifact import Artifact
from gemmule.compiler.compile import compile_kernel
from gemmule.compiler.key import artifact_key, source_digests
from gemmule.compiler.pack import INSTALLED_FILE, Pack, write_pack
from gemmule.compiler.pool import Job, compile_all
from gemmule.core.errors import CompileError

PACKAGE = "gemmule_kernels_sm90"
#: Most bytes of the wheel.
MOST_BYTES = 60_000_000
#: Folder of the distribution in a checkout.
PROJECT = Path("packaging") / "kernels-sm90"


@dataclasses.dataclass(frozen=True)
class PackedJob(Job):
    """A compilation without line information, so that its result does not depend on where the sources are.

    Attributes
    ----------
    path : Path
        File of the finished compilation, named by its key: an interrupted build resumes.
    compiler : callable
        What compiles.
    """

    path: Path
    compiler: Callable[..., Artifact] = compile_kernel

    __hash__ = Job.__hash__

    def run(self) -> Artifact:
        """Return the compiled kernel, of an earlier build if its key is the same."""
        if self.path.is_file():
            return Artifact.load(self.path)
        artifact = self.compiler(self.spec, self.config, self.signature, self.arch, line_info=False)
        artifact.save(self.path)
        return artifact


def compiled(root: Path, jobs: Sequence[Job], workers: int | None = None) -> dict[str, bytes]:
    """Return the artifacts of kernels by key, compiled in parallel.

    Parameters
    ----------
    root : Path
        The checkout.
    jobs : sequence of Job
        The compilations.
    workers : int, optional
        Number of compiling processes; by default of CPUs.

    Raises
    ------
    CompileError
        If a kernel does not compile.
    """
    folder = root / "build" / "kernels-wheel"
    # Sources are not read for each of thousands of kernels again.
    sources = functools.cache(source_digests)
    keys: dict[Job, str] = {}
    for job in jobs:
        kernel = job.spec, job.config, job.signature, job.arch
        key = artifact_key(*kernel, sources=sources(job.spec))
        keys[PackedJob(*kernel, folder / f"{key}.kernel")] = key
    kernels: dict[str, bytes] = {}
    for number, (job, result) in enumerate(compile_all(keys, workers), 1):
        if isinstance(result, CompileError):
            raise result
        kernels[keys[job]] = result.as_bytes(compressed=False)
        if number % 100 == 0 or number == len(keys):
            print(f"{number} of {len(keys)} kernels are compiled", flush=True)
    return kernels


def write_package(root: Path, jobs: Sequence[Job], kernels: Mapping[str, bytes], tree: Path) -> Pack:
    """Write the project of the wheel, its package with the pack, and return the pack.

    Parameters
    ----------
    root : Path
        The checkout.
    jobs : sequence of Job
        The compilations.
    kernels : mapping of str to bytes
        Their artifacts, as of `compiled`.
    tree : Path
        A new folder.

    Raises
    ------
    ValueError
        If the versions of the two distributions differ.
    """
    project = tomllib.loads((root / PROJECT / "pyproject.toml").read_text())["project"]
    if project["version"] != gemmule.__version__:
        raise ValueError(
            f"{PROJECT}/pyproject.toml has version {project['version']}, and gemmule {gemmule.__version__}; "
            "give both the same"
        )
    shutil.copytree(root / PROJECT, tree)
    shutil.copy(root / "LICENSE", tree)
    specs = {job.spec.name: job.spec for job in jobs}
    origin = f"{project['name']} {project['version']}"
    return write_pack(tree / PACKAGE / INSTALLED_FILE, kernels.items(), origin=origin, specs=specs.values())


def build_wheel(root: Path, jobs: Sequence[Job], kernels: Mapping[str, bytes], dist: Path) -> Path:
    """Return the wheel of kernels, written into the folder `dist`; else as `write_package`.

    Raises
    ------
    ValueError
        If the wheel is too large, or the versions of the two distributions differ.
    """
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "project"
        count = len(write_package(root, jobs, kernels, tree).kernels)
        command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(Path(scratch) / "dist"), str(tree)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (built,) = (Path(scratch) / "dist").iterdir()
        size = built.stat().st_size
        if size > MOST_BYTES:
            raise ValueError(f"the wheel has {size} bytes, more than {MOST_BYTES}; lower members.MOST")
        dist.mkdir(parents=True, exist_ok=True)
        wheel = Path(shutil.copy(built, dist))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    print(f"{wheel}: {count} kernels, {size / 1e6:.1f} MB, sha256 {digest}")
    return wheel
