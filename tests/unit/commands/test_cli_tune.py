"""``gemmule tune``: what is searched, kept, recorded and resumed, on a scripted device and without a GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import pytest
from click.testing import CliRunner

from gemmule.cli import gemmule
from gemmule.core.errors import CompileError
from gemmule.dispatch import tuned_table
from gemmule.dispatch.choices.choice_cache import clear_choices
from gemmule.dispatch.select import choose
from gemmule.dispatch.tuned_file import merge_tuned, read_tuned
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import read_records
from support.fakes.bench import CONFIGS, REFERENCE, FakeDevice, FakeWork, kernel_spec, only
from support.fakes.laboratory import laboratory, no_gpu

__all__ = ["laboratory", "no_gpu"]

SLOW, FAST, WRONG = CONFIGS
COSTS = {SLOW: 10.0, FAST: 11.0, WRONG: 12.0}
SPEC = dataclasses.replace(
    kernel_spec("g01_naive", only("float32")),
    cost=lambda problem, config, gpu: COSTS[config],
    cost_in_us=True,
)
SIZES = ("--sizes", "32,24,16", "--sizes", "64,64,16", "--dtype", "float32")


class TunedDevice(FakeDevice):
    """Times go by the config: `seconds` has the names of kernels with tile and stages."""

    multiprocessors = 132

    def kernel(self, problem, choice, operands):
        name = f"{choice.spec.name} {choice.config.tile_m} {choice.config.stages}"
        error = self.spoil.get(name)
        if isinstance(error, Exception):
            raise error
        return FakeWork(name, operands, self.clock(name), error)


def seconds():
    return {
        "g01_naive 64 2": 2e-3,
        "g01_naive 128 2": 1e-3,
        "g01_naive 128 3": 3e-3,
        "y0": 2e-3,
        "y1": 1.5e-3,
        "y2": 2e-3,
    }


@pytest.fixture(autouse=True)
def _kernels(monkeypatch, tmp_path, laboratory):
    laboratory.register(SPEC)
    monkeypatch.setenv("GEMMULE_TUNED", str(tmp_path / "tuned.json"))
    tuned_table.clear_tables()
    clear_choices()
    yield
    tuned_table.clear_tables()
    clear_choices()


@pytest.fixture
def table(tmp_path):
    return tmp_path / "tuned.json"


@pytest.fixture
def device(laboratory):
    return laboratory.open(TunedDevice(seconds()))


def run(*arguments, code=0):
    result = CliRunner().invoke(gemmule, ["tune", "--seconds", "0.01", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def test_the_fastest_is_kept_with_where_it_comes_from(device, table, tmp_path):
    result = run(*SIZES, "--record", tmp_path / "records")
    entries = read_tuned(table)
    assert [(one.key.m, one.key.n, one.key.k) for one in entries] == [(32, 24, 16), (64, 64, 16)]
    for one in entries:
        assert (one.kernel, dict(one.config)) == ("g01_naive", FAST.as_dict())
        assert one.us == 1000.0
        assert one.ratio == 1.5
        assert one.samples >= 4
        run_of = dict(one.run)
        assert run_of["chip"] == "H100 SXM 80 GB"
        assert {"gpu", "gemmule", "packages", "date", "cuda", "cublaslt"} <= set(run_of)
    assert "2 products tuned" in result.stdout
    assert "geometric mean 1.500" in result.stdout
    (file,) = (tmp_path / "records").glob("*.jsonl")
    records = read_records(file)
    timed = [one for one in records if one["record"] == "gemm"]
    assert {(one["config"]["tile_m"], one["config"]["stages"], one["chosen_by"]) for one in timed} == {
        (64, 2, "dispatch"), (128, 2, "search"), (128, 3, "search"),
    }  # fmt: skip
    assert not list(tmp_path.glob("*.journal"))


def test_a_call_takes_what_was_found(device, table):
    run(*SIZES)
    problem = gemm_problem(64, 64, 16, "float32", "float32", "nn")
    asked = {"multiprocessors": 132, "chip": device.name}
    tuned = choose(problem, device.arch, (SPEC, REFERENCE), **asked)
    assert (tuned.config, tuned.chosen_by, tuned.predicted_us) == (FAST, "tuned", 1000.0)
    assert tuned.source.startswith("this process: ")
    tuned_table.clear_tables()
    tuned = choose(problem, device.arch, (SPEC, REFERENCE), **asked)
    assert (tuned.config, tuned.chosen_by, tuned.predicted_us) == (FAST, "tuned", 1000.0)
    assert tuned.source.startswith(str(table))
    other = choose(gemm_problem(8, 8, 8, "float32", "float32", "nn"), device.arch, (SPEC, REFERENCE), **asked)
    assert (other.config, other.chosen_by, other.predicted_us) == (SLOW, "cost", 10.0)


def test_a_survey_leaves_the_fastest_and_what_must_be_measured(device, tmp_path):
    run(*SIZES[:2], "--dtype", "float32", "--keep", "1", "--record", tmp_path)
    (file,) = tmp_path.glob("*.jsonl")
    records = read_records(file)
    (survey,) = (one for one in records if one["record"] == "survey")
    assert [one["median_us"] for one in survey["candidates"]] == [1000.0, 2000.0, 3000.0]
    timed = [one for one in records if one["record"] == "gemm"]
    assert {(one["config"]["tile_m"], one["config"]["stages"]) for one in timed} == {(64, 2), (128, 2)}


def test_what_is_predicted_to_be_slow_is_not_tried(device, table):
    run(*SIZES[:2], "--dtype", "float32", "--factor", "1.05", "--dry-run")
    assert not table.exists()
    assert device.log == []
    found = json.loads(run(*SIZES, "--factor", "1.15", "--dry-run", "--json").stdout)
    assert [len(product["candidates"]) for product in found["products"]] == [2, 2]
    assert found["kernels"] == 2


def test_a_dry_run_needs_no_gpu_where_a_chip_is_named(no_gpu, table):
    result = run(*SIZES, "--dry-run", "--chip", "H200")
    assert "2 products to measure, 3 kernels to compile" in result.stdout
    assert "no NVIDIA GPU" in run(*SIZES, "--dry-run", code=1).stderr
    assert "--chip is for --dry-run" in run(*SIZES, "--chip", "H200", code=1).stderr


def test_it_goes_on_where_it_was_stopped(device, table, tmp_path):
    result = run(*SIZES, "--limit", "1e-9")
    assert "1 products are left" in result.stdout
    assert len(read_tuned(table)) == 1
    (journal,) = tmp_path.glob("*.journal")
    # Another search is not taken for this one.
    assert "done before" not in run(*SIZES, "--keep", "2", "--limit", "1e-9").stdout
    # A line that was torn counts for nothing.
    journal.write_bytes(journal.read_bytes() + b'\n{"m": 64, "n": 6')
    result = run(*SIZES)
    assert "1 of 2 products were done before" in result.stdout
    assert len(read_tuned(table)) == 2
    assert not journal.exists()


def test_the_better_of_the_old_and_the_new_is_kept(device, table):
    run(*SIZES)
    (before, _) = read_tuned(table)
    # Beside what is there now the old one is slower, and beside it the new one wins.
    device.seconds |= {"g01_naive 64 2": 0.5e-3}
    run(*SIZES)
    (after, _) = read_tuned(table)
    assert dict(after.config) == SLOW.as_dict()
    # A run that did not measure the one that stands there keeps it, if it was the better.
    worse = dataclasses.replace(after, ratio=after.ratio / 2, us=after.us / 2)
    assert merge_tuned(table, [worse]) == 0
    assert merge_tuned(table, [worse], measured_together=[after]) == 1
    assert merge_tuned(table, [before]) == 0
    assert merge_tuned(table, [after]) == 1


LATER = '{"format": "gemmule tuned configurations", "version": 2}'


def test_a_table_that_must_not_be_replaced_is_told_before_anything_is_measured(device, table, tmp_path):
    table.write_text(LATER)
    result = run(*SIZES, "--record", tmp_path / "records", code=1)
    assert "is of version 2" in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert table.read_text() == LATER
    assert not (tmp_path / "records").exists()


@pytest.mark.parametrize("shown", ["", "--json"])
def test_a_table_that_cannot_be_written_any_more_loses_no_record(device, table, tmp_path, shown):
    operands = device.operands

    @contextlib.contextmanager
    def replaced_afterwards(problem, inputs, sets):
        with operands(problem, inputs, sets) as found:
            yield found
        if (problem.m, problem.k) == (64, 16):
            table.write_text(LATER)

    device.operands = replaced_afterwards
    options = ("--record", tmp_path / "records", "--pack", tmp_path / "kernels.pack", *([shown] if shown else []))
    result = run(*SIZES, *options, code=1)
    assert "is of version 2" in result.stderr
    assert table.read_text() == LATER
    (file,) = (tmp_path / "records").glob("*.jsonl")
    measured = [one for one in read_records(file) if one.get("m") == 64]
    assert measured
    if shown:
        found = json.loads(result.stdout)
        assert found["left"] == 1
        assert [one for one in found["records"] if one.get("m") == 64] == measured
    else:
        assert "64 x 64 x 16" in result.stdout
        assert "1 products tuned" in result.stdout
    # The product that the table did not take is measured again.
    table.unlink()
    device.operands = operands
    assert "1 of 2 products were done before" in run(*SIZES).stdout
    assert [one.key.m for one in read_tuned(table)] == [64]


def test_a_wrong_kernel_is_not_kept_and_fails_the_command(device, table):
    def spoil(target, value, calls):
        target[...] = 0

    device.spoil["g01_naive 128 2"] = spoil
    result = run(*SIZES, code=1)
    assert "is wrong and was not timed" in result.stderr
    assert {tuple(dict(one.config).values()) for one in read_tuned(table)} == {(64, 2)}


def test_what_does_not_compile_is_left_out_and_told(device, table, laboratory):
    laboratory.errors = lambda job: CompileError("too many registers") if job.config == FAST else None
    result = run(*SIZES)
    assert "too many registers" in result.stderr
    assert {tuple(dict(one.config).values()) for one in read_tuned(table)} == {(64, 2)}


def test_products_come_from_files(device, table, tmp_path):
    csv = tmp_path / "shapes.csv"
    csv.write_text("m,n,k,dtype\n32,24,16,float32\n32,24,16,float32\n8,8,8,\n")
    run("--shapes", csv, "--dtype", "float32")
    assert [(one.key.m, one.key.n, one.key.k) for one in read_tuned(table)] == [(8, 8, 8), (32, 24, 16)]
    bad = tmp_path / "shapes.jsonl"
    bad.write_text('{"m": 1, "n": 2, "k": 3}\n{"m": 1, "n": 0, "k": 3}\n')
    assert "shapes.jsonl:2: 1 x 0 x 3: extents are 1 or more" in run("--shapes", bad, code=1).stderr
    assert "there is nothing to tune" in run(code=1).stderr


def test_the_user_is_told_where_the_table_is(table):
    assert run("--where").stdout.strip() == str(table)


def test_without_a_yardstick_the_shortest_time_is_kept(device, table):
    result = run(*SIZES, "--no-baseline")
    entries = read_tuned(table)
    assert {(tuple(dict(one.config).values()), one.ratio) for one in entries} == {((128, 2), None)}
    assert "cuBLASLt" not in result.stdout
    found = json.loads(run(*SIZES, "--no-baseline", "--json").stdout)
    assert found["left"] == 0
    assert {one["record"] for one in found["records"]} == {"gemm"}
