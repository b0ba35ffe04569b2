"""The wheel of compiled kernels: which kernels, and the distribution. Nothing is compiled here."""

from __future__ import annotations

import collections
import itertools
import pickle
import tomllib
from pathlib import Path

import pytest

import gemmule
from gemmule.compiler.pack import INSTALLED, INSTALLED_FILE, read_pack
from gemmule.compiler.pool import Job
from gemmule.core.dtype import Precision
from gemmule.core.problem import GemmProblem, TransposeProblem
from gemmule.core.product_forms import SUMS, Form, has_sums
from gemmule.dispatch.registry import LADDER, REGISTRY, TRANSPOSE_LADDER
from kernels_wheel import build, calls, coverage, draws, forms, members
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
    plain = next(one for one in members.sources(count) if one.part is draws.part)
    assert plain.count == count
    assert members.needed(plain, 1) == chosen
    assert chosen != collections.Counter(
        job for number, one in enumerate(last, 1) for job in members.chosen(one, number)
    )


def test_members_are_what_dispatch_chooses_most_often_first():
    few, all_of_few = members.every_member(300, 2), members.every_member(300, 1)
    assert set(few) < set(all_of_few)
    names = {job.spec.name for job in few}
    assert {"hopper_gemm", "simt_gemm", "float64_gemm", "hopper_grouped", *members.GENERAL} <= names
    # Rungs of the ladders are for teaching, but those that dispatch chooses.
    chosen = {"mma_sync_gemm", "hopper_gemm", "float64_gemm", "transpose_tiled"}
    assert not names & {*LADDER, *TRANSPOSE_LADDER} - chosen
    needed = coverage.needs(coverage.PLAIN, 100, 9)
    assert coverage.coverage(few, needed).share < coverage.coverage(all_of_few, needed).share
    assert coverage.coverage({job for jobs in needed for job in jobs}, needed).share == 1
    fewest = members.every_member(300, 1, 500)
    assert len(fewest) == 500
    # The last are general ones; more room goes to the kernels that calls need next.
    general = len(dict.fromkeys((*members._epilogues_of_sums(), *members._general())))
    assert 0 < 500 - general < len(all_of_few) - general
    assert fewest[: 500 - general] == all_of_few[: 500 - general]
    assert {job.spec.name for job in fewest[-15:]} == set(members.GENERAL)
    drawn = {job for number, one in enumerate(draws.problems(300, members.SEED)) for job in members.chosen(one, number)}
    assert drawn <= set(all_of_few)
    # Those of tuned tables and of models' layers come first, on both chips, and those of few draws last.
    certain = (*draws.shipped_problems(), *draws.layer_problems())
    tuned = {job for one in certain for number in range(2) for job in members.chosen(one, number)}
    assert tuned <= {*members.every_member(300, 1, len(tuned) + 600)}
    assert {source.share > 0 for source in members.sources(300)} == {True}
    assert sum(source.share for source in members.sources(300)) == pytest.approx(1)


@pytest.mark.parametrize("kind", calls.CALLS)
def test_calls_of_each_kind_are_drawn_and_run_on_both_chips(kind):
    found = list(itertools.islice(calls.call_part(kind, 0, 5), 40))
    assert found == list(itertools.islice(calls.call_part(kind, 0, 5), 40))
    assert found != list(itertools.islice(calls.call_part(kind, 1, 5), 40))
    assert all(list(members.chosen(one, number % 2)) for number, one in enumerate(found))
    assert coverage.needs(kind, 3, 5) == [tuple(members.chosen(one, n % 2)) for n, one in enumerate(found[:3])]


def test_epilogues_by_name_run_on_sums_without_kernels_of_their_own():
    packed = {job.signature for job in members._epilogues_of_sums()}
    for kind, name in (("gated", "gate"), ("epilogues", "gelu"), ("int8 to floats", "mul")):
        problems = (one for one in calls.call_part(kind, 1, 5) if one.epilogue is not None and has_sums(one))
        for one in itertools.islice(problems, 20):
            last = Form(SUMS).steps(one)[-1]
            assert members.REFERENCE.signature(last.problem, members.REFERENCE.default) in packed
        assert any(name in str(signature) for signature in packed)


def test_calls_are_what_plain_draws_lack():
    found = {kind: list(itertools.islice(calls.call_part(kind, 0, 5), 60)) for kind in calls.CALLS}
    types = {
        kind: {(one.a.dtype.name, one.b.dtype.name, one.d.dtype.name) for one in ones} for kind, ones in found.items()
    }
    assert types["int8 to floats"] == {("int8", "int8", out) for out in ("float32", "float16", "bfloat16")}
    assert {("float32", "complex64", "complex64"), ("complex128", "float64", "complex128")} <= types["real by complex"]
    assert all(a != b for a, b, _ in types["mixed types"] | types["few rows, mixed"])
    assert all(one.m <= 16 for one in found["few rows, mixed"])
    assert all(one.epilogue.second is not None for one in found["gated"])
    # Pairs of a row-major B, and operands without contiguous lines.
    assert any(not (one.b.is_row_major or one.b.is_col_major) for one in found["gated"])
    assert any(one.a.conj or one.b.conj for one in found["conjugated"])
    for one in found["strided"]:
        assert not all(matrix.is_row_major or matrix.is_col_major for matrix in (one.a, one.b, one.d))
    assert {one.c.is_row_major == one.d.is_row_major for one in found["C"]} == {True, False}


def test_one_config_of_a_variant_comes_before_more_of_another():
    spec = next(one for one in REGISTRY if one.name == "hopper_gemm")
    often, seldom = spec.signatures(members.ARCH)[:2]
    first, second, third = spec.configs[:3]
    jobs = [Job(spec, *one, members.ARCH) for one in ((first, often), (second, often), (third, often), (first, seldom))]
    weights = dict(zip(jobs, (0.5, 0.1, 0.09, 0.06), strict=True))
    ranks = members._ranks(weights, ())
    assert sorted(jobs, key=lambda job: -ranks[job]) == [jobs[0], jobs[3], jobs[1], jobs[2]]
    # Where another config of the variant is packed anyway, each counts by itself.
    ranks = members._ranks(weights, [Job(spec, second, seldom, members.ARCH)])
    assert sorted(jobs, key=lambda job: -ranks[job]) == jobs


def test_jobs_are_equal_by_all_and_hash_by_a_kernels_name():
    spec = next(one for one in REGISTRY if one.name == "hopper_gemm")
    job = Job(spec, spec.configs[0], spec.signatures(members.ARCH)[0], members.ARCH)
    other = pickle.loads(pickle.dumps(job))
    assert (other, hash(other)) == (job, hash(job))
    assert Job(spec, spec.configs[1], job.signature, job.arch) != job
    assert build.PackedJob(*_what(job), Path("a")) != build.PackedJob(*_what(job), Path("b"))


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
