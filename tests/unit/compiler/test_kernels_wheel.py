"""The wheel of compiled kernels: which kernels, and the distribution. Nothing is compiled here."""

from __future__ import annotations

import collections
import itertools
import tomllib
from pathlib import Path

import pytest

import gemmule
from gemmule.compiler.pack import INSTALLED, INSTALLED_FILE, read_pack
from gemmule.compiler.pool import Job
from gemmule.core.dtype import Precision
from gemmule.core.problem import GemmProblem, TransposeProblem
from gemmule.dispatch.registry import LADDER, TRANSPOSE_LADDER
from kernels_wheel import build, draws, forms, members
from support.artifacts import made

ROOT = Path(__file__).parents[3]


def test_draws_are_the_same_each_time_and_of_every_kind():
    first = list(draws.problems(300, 5))
    assert first == list(draws.problems(400, 5))[:300]
    assert first != list(draws.problems(300, 6))
    products = [one for one in first if isinstance(one, GemmProblem)]
    assert any(isinstance(one, TransposeProblem) for one in first)
    assert {(kind.a, kind.precision) for kind in draws.KINDS[:6]} <= {(x.a.dtype.name, x.precision) for x in products}
    for has in (lambda x: x.epilogue, lambda x: x.c, lambda x: x.batch, lambda x: x.m < 64, lambda x: x.m % 2):
        assert any(map(has, products))
    assert any(x.own_transpose for x in draws.problems(2000, 5) if isinstance(x, GemmProblem))


def test_first_tries_have_powers_of_two_and_complex_numbers():
    tries = list(itertools.islice(draws.part(0, 5, first_tries=True), 300))
    assert tries == list(itertools.islice(draws.part(0, 5, first_tries=True), 300))
    assert {"complex64", "complex128"} <= {one.a.dtype.name for one in tries if isinstance(one, GemmProblem)}
    # Permutations, quantisation, scales and guarded emulation are there, as whoever has no compiler calls them.
    assert any(isinstance(one, TransposeProblem) and len(one.batch) > 1 for one in tries)
    gemms = [one for one in tries if isinstance(one, GemmProblem)]
    assert any(one.precision is Precision.OZAKI for one in gemms)
    assert {one.epilogue.scales is None for one in gemms if one.precision is Precision.FLOAT8 and one.epilogue} == {
        True,
        False,
    }
    parts = {one.by for one in forms.quantisations()}
    assert parts == {"tensor", "row", "block"}
    assert {"quantize", "quantize_tensor", "guard_decision"} <= {job.spec.name for job in members.every_member(300, 2)}
    powers, others = (
        sum(isinstance(x, GemmProblem) and x.m.bit_count() == x.n.bit_count() == x.k.bit_count() == 1 for x in drawn)
        for drawn in (tries, draws.problems(300, 5))
    )
    assert 60 < powers < 180
    assert others < 5


def test_parts_are_drawn_and_chosen_alone():
    count = draws.PART + 20
    last = list(draws.problems(count, members.SEED))[draws.PART :]
    assert last == list(itertools.islice(draws.part(1, members.SEED), 20))
    # Chips go by a draw's number among all.
    chosen = collections.Counter(
        job for number, one in enumerate(last, draws.PART) for job in members.chosen(one, number)
    )
    assert members.needed(1, count) == chosen
    assert chosen != collections.Counter(
        job for number, one in enumerate(last, 1) for job in members.chosen(one, number)
    )


def test_members_are_what_dispatch_chooses_most_often_first():
    few, all_of_few = members.every_member(300, 2), members.every_member(300, 1)
    assert few == members.every_member(300, 2)
    assert set(few) < set(all_of_few)
    names = {job.spec.name for job in few}
    assert {"hopper_gemm", "simt_gemm", "float64_gemm", "hopper_grouped", *members.GENERAL} <= names
    # Rungs of the ladders are for teaching, but those that dispatch chooses.
    chosen = {"mma_sync_gemm", "hopper_gemm", "float64_gemm", "transpose_tiled"}
    assert not names & {*LADDER, *TRANSPOSE_LADDER} - chosen
    assert members.coverage(few, 100, 9) < members.coverage(all_of_few, 100, 9)
    fewest = members.every_member(300, 1, 140)
    assert len(fewest) == 140
    assert fewest[:20] == all_of_few[:20]
    assert {job.spec.name for job in fewest[-15:]} == set(members.GENERAL)
    drawn = {job for number, one in enumerate(draws.problems(300, members.SEED)) for job in members.chosen(one, number)}
    assert drawn <= set(all_of_few)
    # Of few kernels those of first tries, of tuned tables and of models' layers come before others, on both chips.
    tried = {job for job, count in members.needed(0, 30, first_tries=True).items() if count}
    certain = (*draws.shipped_problems(), *draws.layer_problems())
    tuned = {job for one in certain for number in range(2) for job in members.chosen(one, number)}
    assert tried | tuned <= {*members.every_member(300, 1, len(all_of_few) - 100)}


def test_kernels_of_any_number_of_multiprocessors_are_one():
    products = (one for one in draws.problems(60, 1) if isinstance(one, GemmProblem))
    problem = next(one for one in products if one.a.dtype.itemsize == 2)
    jobs = list(members.chosen(problem, 0, (("NVIDIA H100 PCIe", 114),)))
    assert any(hasattr(job.config, "ctas") for job in jobs)
    assert all(job.config == type(job.config)(**job.config.compiled_fields()) for job in jobs)


def test_the_wheel_is_of_this_version():
    project = tomllib.loads((ROOT / build.PROJECT / "pyproject.toml").read_text())["project"]
    assert project["version"] == gemmule.__version__
    assert project["dependencies"] == [f"gemmule=={gemmule.__version__}"]
    assert {build.PACKAGE: project["name"]} == INSTALLED
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert any("cutlass" in one for one in extras["optional-dependencies"]["compiler"])
    assert not any("cutlass" in one for one in extras["dependencies"])


def test_two_projects_are_the_same_bytes(tmp_path):
    jobs = members.few_members()
    kernels = {f"{n}-sm_90a-{n:024x}": made(*_what(job)).as_bytes(compressed=False) for n, job in enumerate(jobs)}
    build.write_package(ROOT, jobs, kernels, tmp_path / "a")
    build.write_package(ROOT, jobs[::-1], dict(reversed(kernels.items())), tmp_path / "b")
    files = [sorted(path.relative_to(tmp_path / x) for path in (tmp_path / x).rglob("*")) for x in "ab"]
    assert files[0] == files[1]
    pack = Path(build.PACKAGE) / INSTALLED_FILE
    assert (tmp_path / "a" / pack).read_bytes() == (tmp_path / "b" / pack).read_bytes()
    assert read_pack(tmp_path / "a" / pack).origin == f"gemmule-kernels-sm90 {gemmule.__version__}"
    project = tmp_path / "checkout" / build.PROJECT / "pyproject.toml"
    project.parent.mkdir(parents=True)
    project.write_text('[project]\nname = "gemmule-kernels-sm90"\nversion = "9.9"\n')
    with pytest.raises(ValueError, match=r"has version 9\.9, and gemmule .*; give both the same"):
        build.write_package(tmp_path / "checkout", jobs, kernels, tmp_path / "c")


def test_an_interrupted_build_resumes(tmp_path):
    job = members.few_members()[0]
    compiled = []

    def compile_kernel(*what, line_info):
        compiled.append(line_info)
        return made(*what)

    packed = build.PackedJob(*_what(job), tmp_path / "one.kernel", compile_kernel)
    assert packed.run() == packed.run() == made(*_what(job))
    assert compiled == [False]


def _what(job: Job):
    return job.spec, job.config, job.signature, job.arch
