"""Rates that probes have measured serve later runs on the same machine, and are measured again when they are old."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import types

import numpy as np
import pytest
from click.testing import CliRunner

import gemmule as gm
from gemmule.cli import gemmule
from gemmule.core.dtype import Precision, dtype_named
from gemmule.core.problem import contiguous_gemm
from gemmule.dispatch.select import choose
from gemmule.outofcore.calls import device_engine, devices, session
from gemmule.outofcore.device.planner.budgets import Budgets
from gemmule.outofcore.device.planner.disk_probe import Probe, read_rate, write_rate
from gemmule.outofcore.device.planner.probe_cache import DAYS, ProbeCache, ProbeCacheWarning, probes_file
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.stores.arrays import ArraySink, ArraySource
from gemmule.outofcore.tiles.problem import StreamProblem
from gemmule.runtime.device import get_device
from gemmule.runtime.link_probe import SHAPE, Operands, PartSeconds, large_product, timed_choices
from gemmule.runtime.streams import GpuStreams
from support.fakes.cuda import FakeCuda, installed
from support.homeless import without_home

KEY = ("link", "a GPU")
F4 = np.dtype("f4")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "probes" / "rates.json"


class Probed:
    """A probe with scripted results."""

    def __init__(self, *results):
        self.results, self.count = results, 0

    def __call__(self):
        self.count += 1
        return self.results[min(self.count, len(self.results)) - 1]


def run(file, probe, key=KEY, **options):
    cache = ProbeCache(file, **options)
    found = cache.figures(key, 2, probe)
    cache.save()
    return found


def test_a_second_run_takes_what_the_first_has_measured(file):
    probe = Probed((55e9, 52e9), (1.0, 1.0))
    assert run(file, probe) == run(file, probe) == (55e9, 52e9)
    assert probe.count == 1
    assert run(file, probe, key=("link", "another GPU")) == (1.0, 1.0)
    assert run(file, probe) == (55e9, 52e9)


def test_old_rates_and_those_of_the_future_are_measured_again(file):
    now = 2e9
    probe = Probed((1, 1), (2, 2), (3, 3), (4, 4))
    assert run(file, probe, clock=lambda: now) == (1, 1)
    assert run(file, probe, clock=lambda: now + DAYS * 86400 - 1) == (1, 1)
    assert run(file, probe, clock=lambda: now + DAYS * 86400 + 1) == (2, 2)
    # A clock that was wrong.
    assert run(file, probe, clock=lambda: now - DAYS * 86400) == (3, 3)
    assert len(json.loads(file.read_text())["probes"]) == 1


def test_rates_are_renewed(file):
    probe = Probed((1, 1), (2, 2))
    assert run(file, probe) == (1, 1)
    assert run(file, probe, renew=True) == (2, 2)
    assert run(file, probe) == (2, 2)


def test_other_runs_are_not_lost(file):
    first, second = ProbeCache(file), ProbeCache(file)
    for number, cache in enumerate((first, second)):
        cache.figures(("link", str(number)), 1, lambda number=number: (number,))
        cache.save()
    assert len(json.loads(file.read_text())["probes"]) == 2


def test_nothing_measured_is_not_stored(file):
    assert run(file, lambda: ()) == ()
    assert not file.exists()
    probe = Probed((1, 1))
    ProbeCache(None).figures(KEY, 2, probe), ProbeCache(None).figures(KEY, 2, probe)
    assert probe.count == 2


@pytest.mark.parametrize(
    "figures", ["[1.0]", "[1.0, NaN]", "[1.0, -1.0]", "[1.0, Infinity]", '["fast", 1.0]', "7", '[1.0, {"a": 1}]']
)
def test_damaged_rates_are_measured_again(file, figures):
    run(file, Probed((8.5, 8.5)))
    file.write_text(file.read_text().replace("[8.5, 8.5]", figures))
    # One figure too few is what another version may have stored.
    warned = pytest.warns(ProbeCacheWarning) if figures != "[1.0]" else contextlib.nullcontext()
    with warned:
        assert run(file, Probed((2, 2))) == (2, 2)
    assert run(file, Probed((3, 3))) == (2, 2)


def test_a_folder_that_takes_no_files_is_a_warning(tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(ProbeCacheWarning, match="measured again in every run"):
        assert run(tmp_path / "file" / "rates.json", Probed((1, 1))) == (1, 1)


def test_the_users_file(monkeypatch, tmp_path):
    monkeypatch.setenv("GEMMULE_PROBES", str(tmp_path))
    assert probes_file() == tmp_path / "rates.json"
    monkeypatch.delenv("GEMMULE_PROBES")
    without_home(monkeypatch)
    assert probes_file() is None


def test_files_are_timed_once(tmp_path, file):
    path = tmp_path / "a"
    path.write_bytes(bytes(1 << 20))
    seconds = iter(range(100_000))
    probe = Probe(1 << 16, 4, 1, lambda: next(seconds))
    found = []
    for _ in range(2):
        cache = ProbeCache(file)
        found.append((read_rate([str(path)], 1, probe, cache), write_rate(str(tmp_path), 1 << 20, 1, probe, cache)))
        cache.save()
        last = next(seconds)
    assert found[0] == found[1]
    # The clock was not looked at again.
    before = last
    read_rate([str(path)], 1, probe, ProbeCache(file)), write_rate(str(tmp_path), 1 << 20, 1, probe, ProbeCache(file))
    assert next(seconds) == before + 1
    assert all(rate.rate > 0 for rate in found[0])


def test_a_folder_that_is_not_there_is_not_timed(tmp_path, file):
    cache = ProbeCache(file)
    write_rate(str(tmp_path / "gone"), 1 << 40, 1, stored=cache)
    cache.save()
    assert not file.exists()


class Gpu:
    """A GPU whose rates are scripted, and which counts how often each is measured."""

    def __init__(self):
        self.device = types.SimpleNamespace(
            identity=("uuid", "GPU", "13000", "32 GT/s x 16"), name="NVIDIA H200", multiprocessors=132
        )
        self.chosen, self.precision = "simt_gemm", Precision.IEEE
        self.counts = {"link": 0, "product": 0, "parts": 0, "staging": 0}

    def __call__(self, choose, ordinal, precision):
        """Open it."""
        return self

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    def near(self):
        return contextlib.nullcontext()

    def choice(self, product):
        for matrix in (product.a, product.b, product.d):
            line = matrix.cols if matrix.order == "C" else matrix.rows
            assert matrix.pitch >= line * matrix.dtype.itemsize
        config = types.SimpleNamespace(as_dict=lambda: f"of {product.d.dtype}, beta {product.beta}")
        problem = contiguous_gemm(product.d.rows, product.d.cols, product.a.cols, ("float32",) * 3)
        # As fast as the probe says, and a tenth slower.
        us = problem.flop / 5e7 * (1.1 if product.beta else 1)
        spec = types.SimpleNamespace(name=self.chosen)
        return types.SimpleNamespace(spec=spec, config=config, chosen_by="cost", predicted_us=us), problem

    def waves(self, product):
        return 128, 128, 132

    def stairs(self, product):
        return 256

    def direct(self, array):
        return False


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu()

    def scripted(name, result):
        def probe(*arguments, **options):
            gpu.counts[name] += 1
            return result

        return probe

    monkeypatch.setattr("gemmule.runtime.streams.GpuStreams", gpu)
    monkeypatch.setattr("gemmule.runtime.link_probe.link_rates", scripted("link", (55e9, 52e9)))
    monkeypatch.setattr("gemmule.runtime.link_probe.product_rate", scripted("product", 5e13))
    monkeypatch.setattr("gemmule.runtime.link_probe.part_seconds", scripted("parts", PartSeconds(0.0, 0.0)))
    staged = devices.Staged.of((4e10, 3e10, 2e10, 1e10, 2e-10), 64 << 20, 2)
    monkeypatch.setattr(devices, "staged_by", scripted("staging", staged))
    monkeypatch.setattr(devices, "_LEAST_STAGED", 0)
    return gpu


def rates_on(file, dtype=F4, *, own=False, measures=True, probes=None):
    a, b = np.ones((64, 64), dtype), np.ones((64, 64), dtype)
    b = a.T if own else b
    problem = StreamProblem(ArraySource(a), ArraySource(b), None, (64, 64), np.dtype(dtype), 1, 0)
    budgets, place = Budgets(1 << 30, 64 << 20, 1 << 30), ArraySink(np.empty((64, 64), dtype))
    probes = probes or ProbeCache(file, measures=measures)
    return devices.measured_rates("gpu", problem, place, F4, Precision.IEEE, budgets, 0, probes)


def test_a_gpu_is_measured_once(gpu, file):
    first = rates_on(file)
    once = {"link": 1, "product": 2, "parts": 1, "staging": 1}
    assert gpu.counts == once
    assert rates_on(file) == first
    assert gpu.counts == once
    # Another type has other kernels, and the same links.
    rates_on(file, np.float16)
    assert gpu.counts == once | {"product": 4, "parts": 2}
    # So has a table of tuned configs.
    gpu.chosen = "gemm_reference"
    rates_on(file)
    assert gpu.counts == once | {"product": 6, "parts": 3}
    gpu.device.identity = "another uuid", *gpu.device.identity[1:]
    rates_on(file)
    assert gpu.counts == {"link": 2, "product": 8, "parts": 4, "staging": 2}


def test_a_first_run_measures_links_alone(gpu, file):
    stated = rates_on(file, measures=False)
    assert gpu.counts == {"link": 1, "product": 0, "parts": 0, "staging": 0}
    assert (stated.h2d, stated.d2h) == (55e9, 52e9)
    # What dispatch predicts, and usual rates of pageable arrays.
    assert (stated.compute, stated.accumulate) == pytest.approx((5e13, 5e13 / 1.1))
    assert stated.source == devices.usual_staging(stated).source
    assert not stated.measured
    # These are not stored, and links are.
    measured = rates_on(file)
    assert gpu.counts == {"link": 1, "product": 2, "parts": 1, "staging": 1}
    assert rates_on(file, measures=False) == measured
    assert measured.measured


def test_a_long_product_measures_what_is_not_close(gpu, file):
    probes = ProbeCache(file, measures=False)
    rates_on(file, probes=probes)
    assert probes.stated
    probes.measures, probes.stated = True, False
    measured = rates_on(file, probes=probes)
    assert measured.measured
    assert gpu.counts == {"link": 1, "product": 0, "parts": 0, "staging": 1}


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-80GB", "NVIDIA Z9"])
def test_kernels_of_a_gpu_without_rates_of_its_own_are_measured(gpu, file, name):
    gpu.device.name = name
    rates_on(file, measures=False)
    assert gpu.counts == {"link": 1, "product": 2, "parts": 1, "staging": 0}


def test_arrays_of_a_slow_host_are_staged_slowly(gpu, file, monkeypatch):
    monkeypatch.setattr(devices, "copy_rate", lambda *_, **__: devices._COPIED / 4)
    rates = rates_on(file, measures=False)
    usual = devices.usual_staging(rates)
    assert (rates.source, rates.sink) == (usual.source / 4, usual.sink / 4)


def test_a_kernel_for_triangles_is_looked_up_where_one_triangle_is_enough(gpu, file):
    assert rates_on(file).stairs == 0
    assert rates_on(file, own=True).stairs == 256


def test_the_identity_of_a_gpu(monkeypatch):
    with installed(FakeCuda()):
        assert get_device(1).identity == ("01" * 16, "NVIDIA H100 80GB HBM3", "13000", "")


@pytest.mark.parametrize(("dtype", "total"), [("float32", "float32"), ("bfloat16", "float32"), ("float64", "float64")])
def test_the_kernels_that_rates_are_measured_of(dtype, total):
    dtype, total = (dtype_named(name).numpy() for name in (dtype, total))
    with installed(FakeCuda()), GpuStreams(choose) as device:
        operands = Operands(dtype, dtype, dtype, "CF")
        plain, added = timed_choices(device, operands, total)
        large = large_product(operands)
        assert {device.waves(large)[2], device.stairs(large)} <= {0, 132, 256}
    assert (plain[1].d.dtype, added[1].d.dtype) == (dtype_named(dtype.name), dtype_named(total.name))
    assert (plain[1].beta, added[1].beta) == (0, 1)


def names(choices):
    return [choice.spec.name for choice, _ in choices]


@pytest.mark.parametrize("precision", [Precision.OZAKI, Precision.OZAKI_15])
def test_emulation_is_timed_by_the_kernel_of_large_products(precision):
    operands = Operands(*(np.dtype("float64"),) * 3)
    with installed(FakeCuda()), GpuStreams(choose, 0, precision) as device:
        assert names(timed_choices(device, operands, np.dtype("float64"))) == ["ozaki_gemm"] * 2
        assert names([device.choice(large_product(operands))]) == ["ozaki_gemm"]


@pytest.mark.parametrize(("sides", "kernel"), [((40000, 500), "float64_gemm"), ((40000, 30000), "ozaki_gemm")])
def test_emulation_is_timed_where_the_result_is_large_enough_for_it(sides, kernel):
    operands = Operands(*(np.dtype("float64"),) * 3, sides=sides)
    with installed(FakeCuda()), GpuStreams(choose, 0, Precision.OZAKI) as device:
        assert names(timed_choices(device, operands, np.dtype("float64"))) == [kernel] * 2
        # Types that are not emulated take the kernel of what is timed.
        device.precision = Precision.IEEE
        assert timed_choices(device, operands, np.dtype("float64")) == timed_choices(
            device, dataclasses.replace(operands, sides=SHAPE), np.dtype("float64")
        )


@pytest.mark.parametrize("worth", [True, False])
def test_long_products_are_planned_with_measured_rates(monkeypatch, worth):
    monkeypatch.setattr(device_engine, "_WORTH_S", 0.0 if worth else 1e9)
    measures = []

    def rates(*arguments):
        probes = arguments[-1]
        assert not probes.stated
        measures.append(probes.measures)
        probes.stated = not probes.measures
        return Rates(1e9 * len(measures), 1e9, 1e9, 1e9, measured=probes.measures)

    monkeypatch.setattr(device_engine, "measured_rates", rates)
    a = np.eye(8, dtype="f4")
    problem = StreamProblem(ArraySource(a), ArraySource(a), None, (8, 8), F4, 1, 0)
    engine = device_engine.plan_device_engine("cpu", problem, ArraySink(np.empty_like(a)), device_engine.Limits())
    assert measures == [False, True][: 1 + worth]
    assert engine.chosen.rates.compute == 1e9 * len(measures)
    out = np.empty_like(a)
    # Shares of usual rates would say little.
    assert ("allows" in str(engine.run(problem, ArraySink(out), engine.plan))) == worth
    assert np.array_equal(out, a)


def test_what_is_planned_without_being_run_is_measured(monkeypatch, tmp_path):
    measures, original = [], session.plan_device_engine

    def noted(*arguments, probes, **options):
        measures.append(probes.measures)
        return original(*arguments, probes=probes, **options)

    monkeypatch.setattr(session, "plan_device_engine", noted)
    a = np.eye(8, dtype="f4")
    gm.outofcore.matmul.plan(a, a, np.empty_like(a), executor="cpu", device_memory="1MiB")
    gm.outofcore.matmul(a, a, np.empty_like(a), executor="cpu", device_memory="1MiB")
    assert measures == [True, False]


def test_the_command_renews_on_demand(monkeypatch, tmp_path):
    for name in "AB":
        np.save(tmp_path / f"{name}.npy", np.eye(8, dtype="f4"))
    renewed = []
    original = session.plan_device_engine

    def noted(*arguments, probes, **options):
        renewed.append(not probes._known)
        return original(*arguments, probes=probes, **options)

    monkeypatch.setattr(session, "plan_device_engine", noted)
    monkeypatch.setenv("GEMMULE_PROBES", str(tmp_path))
    run(probes_file(), Probed((1, 1)))
    for number, words in enumerate(([], ["--probe"])):
        out = os.fspath(tmp_path / f"C{number}.npy")
        names = [os.fspath(tmp_path / f"{name}.npy") for name in "AB"]
        options = ["-o", out, "--executor", "cpu", "--device-memory", "1MiB", *words]
        result = CliRunner().invoke(gemmule, ["matmul", *names, *options])
        assert result.exit_code == 0, result.output
    assert renewed == [False, True]
