"""The wheel: kernels compiled on all cores, packed, and built from the folder of the distribution."""

from __future__ import annotations

import dataclasses
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
from gemmule.compiler.key import artifact_key
from gemmule.compiler.pack import INSTALLED_FILE, Pack, write_pack
from gemmule.compiler.pool import Job, compile_all
from gemmule.core.arch import Arch
from gemmule.core.config import Config
from gemmule.core.errors import CompileError
from gemmule.core.spec import KernelSpec, Signature

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
    folder : str
        Folder of finished compilations: an interrupted build resumes.
    compiler : callable
        What compiles.
    """

    folder: str = ""
    compiler: Callable[..., Artifact] = compile_kernel

    def run(self) -> Artifact:
        """Return the compiled kernel, of an earlier build if its key is the same."""
        path = Path(self.folder) / f"{artifact_key(*self.kernel)}.kernel"
        if path.is_file():
            return Artifact.load(path)
        artifact = self.compiler(*self.kernel, line_info=False)
        artifact.save(path)
        return artifact

    @property
    def kernel(self) -> tuple[KernelSpec, Config, Signature, Arch]:
        """What is compiled."""
        return self.spec, self.config, self.signature, self.arch


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
    packed = [PackedJob(job.spec, job.config, job.signature, job.arch, str(folder)) for job in jobs]
    kernels: dict[str, bytes] = {}
    for number, (job, result) in enumerate(compile_all(packed, workers), 1):
        if isinstance(result, CompileError):
            raise result
        kernels[artifact_key(job.spec, job.config, job.signature, job.arch)] = result.as_bytes(compressed=False)
        if number % 100 == 0 or number == len(packed):
            print(f"{number} of {len(packed)} kernels are compiled", flush=True)
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
