"""What all tests share: fresh random data, told by its seed, and the record of a run."""

from __future__ import annotations

import collections
import gc
import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

# A failed assertion of a helper shows its values, as one of a test does.
pytest.register_assert_rewrite("support")

from support.combinations import covering  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--record", metavar="FOLDER", help="write a record of the checks to a new file in FOLDER")
    parser.addoption("--seed", type=int, help="seed of the random data, as a failed test printed it")
    parser.addoption(
        "--twin", action="store_true", help="repeat the launches of tests/vgpu on the NVIDIA GPU, and compare"
    )


@pytest.fixture
def rng(request):
    """Random numbers that differ in every run; the seed stands in the report of a failed test."""
    seed = request.config.getoption("--seed")
    if seed is None:
        seed = int.from_bytes(os.urandom(4), "little")
    print(f"--seed {seed}")
    return np.random.default_rng(seed)


def pytest_configure(config):
    # Files go to workers in the order of `pytest_collection_modifyitems`.
    config.option.loadscopereorder = False
    # Workers of pytest-xdist have the terminal's; commands shall print as into a pipe.
    os.environ.pop("COLUMNS", None)
    # Not in the process that only hands out tests, which all others wait for.
    runs_tests = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    if runs_tests:
        # Old objects are looked through a fifth as often: each time takes as long as half a compilation.
        gc.set_threshold(*gc.get_threshold()[:2], 50)
    if runs_tests and importlib.util.find_spec("hypothesis"):
        from hypothesis import HealthCheck, settings

        # Properties hold however long an example takes: computers have other work too.
        settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("untimed")
    # Functions that give further lines of the record.
    config.extra_records = []
    # Kernels that tests compile are kept from run to run, but not among the user's own.
    if hasattr(config, "cache"):
        os.environ.setdefault("GEMMULE_CACHE", str(config.cache.mkdir("gemmule-kernels")))
        # What the user tuned or calibrated decides nothing here.
        os.environ.setdefault("GEMMULE_TUNED", str(config.cache.mkdir("gemmule-kernels") / "no-tuned.json"))
        os.environ.setdefault("GEMMULE_PROBES", str(config.cache.mkdir("gemmule-probes")))
        os.environ.setdefault("GEMMULE_RATES", str(config.cache.mkdir("gemmule-kernels") / "no-rates.json"))


#: Folders of tests that may use JAX, which starts threads: no test after them can fork.
WITH_JAX = {Path(__file__).parent / name for name in ("docs", "examples", "interop")}
#: Folders of tests that compile kernels: their files take longest.
WITH_COMPILER = {Path(__file__).parent / name for name in ("compile", "vgpu")}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Put the tests that may use JAX last; workers of pytest-xdist take files that take long first."""
    mark_other_combinations(items)
    quick = (item for item in items if item.get_closest_marker("slow") is None)
    sizes = collections.Counter(item.path for item in quick) if hasattr(config, "workerinput") else {}
    places = {}
    for path in {item.path for item in items}:
        folders = {*path.parents}
        place = bool(folders & WITH_JAX), folders.isdisjoint(WITH_COMPILER), -sizes.get(path, 0)
        places[path] = place if sizes else place[:1]
    items.sort(key=lambda item: places[item.path])


def mark_other_combinations(items):
    """Mark as slow what a test marked as `combinations` does not need."""
    grids = collections.defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("combinations")
        if marker is not None and item.get_closest_marker("slow") is None:
            once = tuple(marker.kwargs.get("once", ()))
            grids[item.nodeid.partition("[")[0], *marker.args, once].append(item)
    for (_, strength, once), grid in grids.items():
        alone = [[*grid[0].callspec.params].index(name) for name in once]
        chosen = {*covering([tuple(map(id, item.callspec.params.values())) for item in grid], strength, alone)}
        for place, item in enumerate(grid):
            if place not in chosen:
                item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """What is collected lives as long as the tests: it is not looked through for garbage, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _heap_of_this_file():
    """Collect what the file before left, and look for garbage among the objects of this file only from now on."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        _session_counts[report.nodeid.split("[")[0]][report.outcome] += 1


_session_counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)


def pytest_sessionfinish(session):
    # pytest looks for garbage ten times at the end: once among all objects is enough.
    gc.collect()
    gc.freeze()
    folder = session.config.getoption("--record")
    # Where processes share the tests, the one that hears of all of them writes the record.
    if folder is None or hasattr(session.config, "workerinput"):
        return
    from gemmule.lab.experiment import experiment
    from gemmule.lab.records import write_records
    from gemmule.runtime.device import device_count, get_device

    checks = [
        {"record": "check", "what": what, "passed": n["passed"], "failed": n["failed"], "skipped": n["skipped"]}
        for what, n in sorted(_session_counts.items())
    ]
    for records in session.config.extra_records:
        checks += records()
    command = "pytest " + " ".join(session.config.invocation_params.args)
    gpu = get_device(0).pci_bus_id if device_count() else None
    print("\nrecord:", write_records(Path(folder), experiment(command, gpu), checks))
