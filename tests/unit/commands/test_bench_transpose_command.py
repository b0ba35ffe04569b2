"""``gemmule bench transpose``: what is counted, printed and recorded."""

from __future__ import annotations

import dataclasses
import json

import pytest
from click.testing import CliRunner

from gemmule.cli import gemmule
from gemmule.dispatch.registry import REGISTRY, TRANSPOSE_LADDER
from gemmule.lab.records import read_records
from gemmule.lab.transpose_counts import summary, with_counts
from support.fakes.laboratory import laboratory, no_gpu
from support.fakes.transpose_bench import SECONDS, Device

__all__ = ["laboratory", "no_gpu"]


@dataclasses.dataclass
class Counts:
    totals: dict
    hit_rates: dict

    def total(self, name, *kinds):
        return sum(self.totals.get((name, kind), 0) for kind in kinds) if kinds else self.totals[name,]


def test_throughput_from_counts():
    totals = {
        ("sectors", "load global"): 600, ("requests", "load global"): 100,
        ("sectors", "async copy"): 200, ("requests", "async copy"): 100,
        ("sectors", "store global"): 6400, ("requests", "store global"): 200,
        ("wavefronts",): 300, ("ideal_wavefronts",): 225,
    }  # fmt: skip
    found = summary(Counts(totals, {"l1": 0.5}), 25600)
    assert found["load_sectors_per_request"] == 4
    assert found["store_bytes_per_byte"] == 8
    assert found["bank_conflict_share"] == 0.25
    record = with_counts({"gbps": 100.0}, found)
    # Half of the bandwidth is reading, of which every byte passes once.
    assert (record["load_gbps"], record["store_gbps"]) == (50, 400)


@pytest.fixture
def device(laboratory):
    return laboratory.open(Device(SECONDS))


def run(*arguments):
    return CliRunner().invoke(gemmule, ["bench", "transpose", "--seconds", "0.01", *map(str, arguments)])


def test_the_command_prints_and_records(device, tmp_path):
    result = run("--kernels", "transpose_tiled,t01_copy_row,chosen", "--sizes", "40,24", "--sizes", "64,64",
                 "--dtype", "float32", "--dtype", "1", "--record", tmp_path)  # fmt: skip
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    for title in ("40 x 24 of 4 bytes", "64 x 64 of 1 byte", "share of the bandwidth of a copy"):
        assert title in [line.strip() for line in lines]
    assert "0.800 (0.800 to 0.800)" in result.stdout
    (file,) = tmp_path.glob("*.jsonl")
    records = read_records(file)
    assert records[0]["command"].startswith("gemmule bench transpose")
    assert {r["chosen_by"] for r in records[1:]} == {"rung", "dispatch"}
    shown = CliRunner().invoke(gemmule, ["bench", "show", str(file)])
    assert shown.exit_code == 0, shown.output
    # The run prints where the record is, the record where it was made.
    assert shown.stdout.splitlines()[1:] == [line for line in lines if not line.startswith("record:")]
    broken = tmp_path / "broken.jsonl"
    broken.write_text("\n".join(json.dumps({k: v for k, v in r.items() if k != "copy_us" and k != "ratio"})
                                for r in records))  # fmt: skip
    assert "not a whole record of transposes" in CliRunner().invoke(gemmule, ["bench", "show", str(broken)]).stderr
    as_json = run("--kernels", "transpose_tiled", "--sizes", "40,24", "--json")
    assert json.loads(as_json.stdout)["records"][0]["ratio"] == 0.8


def test_the_sweep_of_block_shapes(device):
    device.seconds["t04_naive_col"] = iter([3e-3] * 10_000).__next__
    result = run("--kernels", "t04_naive_col[*]", "--sizes", "64,64")
    assert result.exit_code == 0, result.output
    (header,) = [line for line in result.stdout.splitlines() if "32 x 16" in line and "128 x 8" in line]
    assert header.split("  ")[0].strip() == "kernel, GB/s"


def test_a_wrong_kernel_fails_the_command(device):
    device.spoil["t04_naive_col"] = lambda target, index: target.fill(0)
    result = run("--kernels", "t04_naive_col,transpose_tiled", "--sizes", "40,24")
    assert result.exit_code == 1
    assert "t04_naive_col" in result.stderr
    assert "is wrong and was not timed" in result.stderr
    assert "WRONG" in result.stdout


def test_without_a_gpu(no_gpu):
    result = run()
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "gemmule bench transpose --counts-only" in result.stderr
    unknown = run("--kernels", "t4_naive")
    assert "t04_naive_col" in unknown.stderr


def test_counted_is_what_a_call_runs_unless_kernels_are_named():
    named = run("--kernels", "t11_swizzled_vectorised", "--dtype", "4", "--counts-only", "--json")
    assert [one["kernel"] for one in json.loads(named.stdout)["records"]] == ["t11_swizzled_vectorised"]
    (one, other) = json.loads(run("--dtype", "4", "--dtype", "1", "--counts-only", "--json").stdout)["records"]
    assert (one["kernel"], one["itemsize"], other["itemsize"]) == ("transpose_tiled", 4, 1)
    assert (one["m"], one["n"]) == (512, 512)


def test_counted_are_the_sizes_that_are_given():
    result = run("--sizes", "40,33", "--sizes", "64,64", "--counts-only", "--json")
    assert [(one["m"], one["n"]) for one in json.loads(result.stdout)["records"]] == [(40, 33), (64, 64)]
    (batch,) = json.loads(run("--sizes", "3,40,33", "--dtype", "1", "--counts-only", "--json").stdout)["records"]
    assert (batch["batch"], batch["m"], batch["n"]) == ([3], 40, 33)
    large = run("--sizes", "square", "--counts-only")
    assert large.exit_code == 1
    assert "8192 x 8192 has more than the 16,777,216 elements that the virtual GPU counts" in large.stderr


def test_a_kernel_that_takes_no_counted_size_says_why():
    result = run("--kernels", "transpose_blocks", "--counts-only")
    assert result.exit_code == 1
    assert "transpose_blocks does not take 512 x 512 of 4 bytes: 2 axes" in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_ladder_is_registered_and_ordered():
    names = [spec.name for spec in REGISTRY]
    assert list(TRANSPOSE_LADDER) == sorted(TRANSPOSE_LADDER)
    # The later rung is tried first, and what only copies last of all.
    assert [name for name in names if name in TRANSPOSE_LADDER] == list(TRANSPOSE_LADDER)[::-1]
