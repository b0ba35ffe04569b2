"""``gemmule calibrate``: what is measured, fitted, written and told, on a scripted device and without a GPU."""

from __future__ import annotations

import errno
import json

import pytest
from click.testing import CliRunner

from gemmule.cli import gemmule
from gemmule.core.arch import Arch
from gemmule.core.config import configs_on
from gemmule.core.errors import CompileError
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.spec import Choice
from gemmule.dispatch import settings_file
from gemmule.dispatch.choices.choice_cache import clear_choices
from gemmule.dispatch.rates_file import MeasuredRates, merge_rates, read_rates
from gemmule.dispatch.rates_table import clear_rates, known_rates
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.lab.calibration import products as calibration
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import read_records
from gemmule.runtime import device as runtime_device
from support.fakes.bench import FakeDevice, FakeWork
from support.fakes.laboratory import laboratory

__all__ = ["laboratory"]

HOPPER = Arch(9, 0, True)
NAME = "NVIDIA H100 PCIe"
#: What the scripted device takes.
TRUE = GpuRates(114, 2.0e6, 1.3, 1.5, 1.2, 2.0, "H100")
TIMED = (HopperGemmConfig(64, 64, 12, 1, 1), HopperGemmConfig(64, 32, 16, 1, 1))


class CalibratedDevice(FakeDevice):
    """Times are those that the true rates predict."""

    # Few buffer sets.
    name, multiprocessors, l2_bytes = NAME, 114, 1 << 14

    def kernel(self, problem, choice, operands):
        found = self.spoil.get(problem.m)
        if isinstance(found, Exception):
            raise found
        us = SPEC.cost(problem, choice.config, TRUE)
        return FakeWork(choice.spec.name, operands, lambda: us / 1e6, found)


def small_products(arch, rates, memory):
    """Products that NumPy computes at once."""
    del memory
    if arch != HOPPER:
        return ()
    sizes = [(64 + 8 * number, 64, 72 + 8 * (number % 5)) for number in range(16)]
    choices = tuple(Choice(SPEC, config, gpu=rates) for config in configs_on(TIMED, rates.multiprocessors))
    return tuple(
        calibration.Product(gemm_problem(*size, "bfloat16", "bfloat16", "nt"), "launch", choices) for size in sizes
    )


@pytest.fixture(autouse=True)
def file(monkeypatch, tmp_path, laboratory):
    path = tmp_path / "rates.json"
    monkeypatch.setattr(calibration, "products", small_products)
    monkeypatch.setenv("GEMMULE_RATES", str(path))
    clear_rates()
    clear_choices()
    yield path
    clear_rates()
    clear_choices()


@pytest.fixture
def device(laboratory):
    return laboratory.open(CalibratedDevice())


def run(*arguments, code=0):
    result = CliRunner().invoke(gemmule, ["calibrate", "--seconds", "0.01", *map(str, arguments)])
    assert result.exit_code == code, result.output
    if code:
        assert len(result.stderr.splitlines()) == 1, result.stderr
    return result


def test_rates_are_measured_written_and_taken(device, file, tmp_path):
    problem = gemm_problem(96, 64, 80, "bfloat16", "bfloat16", "nt")
    asked = {"multiprocessors": 114, "chip": NAME, "tuned": False}
    before = choose(problem, HOPPER, **asked).predicted_us
    result = run("--record", tmp_path / "records")
    (entry,) = read_rates(file)
    assert (entry.gpu, entry.rates.multiprocessors, entry.products) == (NAME, 114, 12)
    assert entry.error < 0.02
    assert entry.rates.launch > 1.3
    about = dict(entry.run)
    assert about["chip"] == NAME
    assert {"gemmule", "packages", "date", "cuda"} <= set(about)
    for text in (f"{NAME}, 114 SMs: memory ", "tensor cores ", "fitted to 12 products; median error of 4 others: ",
                 f"rates: {file}"):  # fmt: skip
        assert text in result.stdout
    (recorded,) = (tmp_path / "records").glob("*.jsonl")
    assert sum(one["record"] == "gemm" for one in read_records(recorded)) == 32
    # Calls of this process take them, and so do others.
    after = choose(problem, HOPPER, **asked)
    assert after.predicted_us > 1.2 * before
    assert after.gpu == known_rates(NAME, 114).rates == entry.rates
    found = json.loads(CliRunner().invoke(gemmule, ["info", "--json"]).stdout)["rates"]
    assert (found["file"], found["gpus"]) == (str(file), 1)


def test_as_json(device, file):
    found = json.loads(run("--json").stdout)
    (entry,) = read_rates(file)
    assert {name: found[name] for name in entry.as_dict()} == entry.as_dict()
    assert found["error_before"] > 0.2
    assert found["held_out"] == 4
    assert found["file"] == str(file)
    assert len(found["records"]) >= 32
    assert found["experiment"]["record"] == "experiment"


def test_the_rates_of_other_gpus_stay(device, file, tmp_path):
    other = MeasuredRates("NVIDIA GH200 480GB", GpuRates(), 30, 0.02, ())
    merge_rates(file, other)
    run()
    assert [one.gpu for one in read_rates(file)] == ["NVIDIA GH200 480GB", NAME]
    elsewhere = tmp_path / "new" / "rates.json"
    run("--output", elsewhere)
    assert [one.gpu for one in read_rates(elsewhere)] == [NAME]


def test_a_dry_run_measures_nothing(device, file):
    result = run("--dry-run")
    assert "16 products to measure, 2 kernels to compile" in result.stdout
    assert "64 x 64 x 72" in result.stdout
    found = json.loads(run("--dry-run", "--json").stdout)
    assert (len(found["products"]), found["kernels"], found["file"]) == (16, 2, str(file))
    assert {config["ctas"] for one in found["products"] for config in one["configs"]} == {114}
    assert device.log == []
    assert not file.exists()


def test_a_dry_run_for_a_chip_that_is_not_here(file):
    assert "16 products" in run("--dry-run", "--chip", "H200").stdout
    assert (
        "rates are measured by hopper_gemm, which runs on sm_90a" in run("--dry-run", "--chip", "A100", code=1).stderr
    )
    assert "--chip is for --dry-run" in run("--chip", "H200", code=1).stderr
    assert not file.exists()


def test_a_gpu_without_free_memory(device, file, monkeypatch):
    monkeypatch.setattr(calibration, "products", lambda *given: small_products(*given)[:11])
    device.memory_free = lambda: 4 << 20
    assert f"{4 << 20} bytes of device memory are free, too few for 12" in run(code=1).stderr
    assert device.log == []
    assert not file.exists()


def test_where(file):
    assert run("--where").stdout == f"{file}\n"


@pytest.mark.skipif(runtime_device.device_count() > 0, reason="there is a GPU")
def test_without_a_gpu(file):
    assert "no NVIDIA GPU" in run(code=1).stderr
    assert not file.exists()
    # What cannot calibrate renames no damaged file.
    file.write_text('{"format": "gemmule GPU rates", "version": 1,')
    run(code=1)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_wrong_kernel_ends_it(device, file):
    def spoil(target, value, calls):
        target[...] = 0

    device.spoil = {64: spoil}
    assert "no rates were written" in run(code=1).stderr
    assert not file.exists()


def test_too_few_products(device, file, monkeypatch):
    device.spoil = {64 + 8 * number: CompileError("nvcc fell over") for number in range(6)}
    stderr = run(code=1).stderr
    assert "10 products were timed, and a fit needs 12; no rates were written" in stderr
    assert "fell over" in stderr
    assert not file.exists()


@pytest.mark.parametrize("text", ["{}", '{"format": "gemmule GPU rates", "version": 9, "gpus": []}'])
def test_a_file_that_cannot_be_replaced_is_found_before_anything_is_measured(device, file, text):
    file.write_text(text)
    assert str(file) in run(code=1).stderr
    assert device.log == []
    assert file.read_text() == text
    found = json.loads(CliRunner().invoke(gemmule, ["info", "--json"]).stdout)["rates"]
    assert (found["gpus"], str(file) in found["unreadable"]) == (0, True)


def test_a_folder_that_takes_no_files_is_found_before_anything_is_measured(device, file, monkeypatch):
    file.write_text("")
    stderr = run("--output", file / "rates.json", code=1).stderr
    assert str(file / "rates.json") in stderr
    assert "Errno" not in stderr

    def full(**options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    assert "free some room" in run(code=1).stderr
    assert device.log == []


def test_rates_that_cannot_be_written_are_printed(device, file, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(settings_file, "atomic_write", full)
    result = run(code=1)
    assert f"{NAME}, 114 SMs: memory " in result.stdout
    assert "free some room" in result.stderr
    assert not file.exists()


@pytest.mark.parametrize("seconds", ["nan", "inf"])
def test_times_of_measurements_are_finite(seconds, device):
    result = CliRunner().invoke(gemmule, ["calibrate", "--seconds", seconds])
    assert f"{seconds} is not a finite number" in result.stderr
    assert device.log == []
