"""Every form of Hopper's instructions on a GPU and on the virtual one, in mode 'hopper': memory byte by byte.

python benchmarks/records/hopper_forms.py --record benchmarks/results

Needs a Hopper GPU. The forms and their numbers are fixed, so that the virtual GPU's side can be repeated from the
record, without a GPU. With --count, ncu (Nsight Compute) tells what the copy engine's forms move.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from forms import Arrays, Form, barriers, copies, products, reductions, rows
from hopper_counts import COUNTERS, Both, CopyTraffic, known_counters

from gemmule.core.errors import DriverError, GemmuleError
from gemmule.vgpu import Counter, Options, launcher
from gemmule.vgpu.arrays import DeviceArrays
from gemmule.vgpu.engine.program import program_of
from support.ptx.hopper import prepared

#: The longest that a process may take for one of the forms, and to begin.
SECONDS, BEGINNING = 8, 25
OUTPUTS = ("d", "out")
COMMON = ("record", "number", "group", "form")
COPIES = ("rows", "load", "load of every type", "store", "multicast", "piece", "reduction")


def all_forms() -> list[Form]:
    """Return the forms; the place of one is its number."""
    found = [form for room in (copies, rows, reductions, barriers, products) for form in room.forms()]
    return [*found, *copies.refused()]


def digest(arrays: Arrays) -> str:
    """Return what tells operands with different bits apart."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(np.ascontiguousarray(arrays[name]).tobytes())
    return found.hexdigest()


class Launched:
    """A form as a launch in the virtual GPU's memory.

    Parameters
    ----------
    form : Form
        What is launched.
    """

    def __init__(self, form: Form) -> None:
        body, self.arrays, how = form.prepared()
        text, self.recipe = prepared(body, self.arrays, **how)
        self.program = program_of(text)
        self.device = DeviceArrays(self.arrays)
        self.before = self.device.memory.data.copy()
        self.first = {name: array.copy() for name, array in self.arrays.items()}

    def on_virtual(self, observers: tuple[Any, ...] = ()) -> Arrays:
        """Return the operands after a run on the virtual GPU."""
        self.device.memory.data[:] = self.before
        options = Options(mma="hopper")
        launcher.run(self.program, self.recipe, self.device.memory, self.device.addresses, options, observers)
        return self._taken()

    def on_hardware(self) -> Arrays:
        """Return the operands after a run on the GPU."""
        from gemmule.runtime.device import current
        from gemmule.runtime.launch import LoadedKernel
        from support.vgpu.twin import Text, memory_after

        name = self.program.kernel.name
        with current(0):
            kernel = LoadedKernel(Text(name, name, self.program.ptx.encode() + b"\0"), 0)
            after = memory_after(kernel, self.recipe, self.before, self.device.addresses)
        self.device.memory.data[:] = after
        return self._taken()

    def _taken(self) -> Arrays:
        self.device.take_back()
        found = {name: np.ascontiguousarray(array).copy() for name, array in self.arrays.items()}
        for name, array in self.first.items():
            self.arrays[name][...] = array
        return found


def compared(first: Arrays, virtual: Arrays, hardware: Arrays) -> dict[str, Any]:
    """Return how many elements of what was written have equal bits, and the first that do not."""
    elements = equal = 0
    found: dict[str, Any] = {}
    for name in sorted(first):
        start, here, there = (
            np.ascontiguousarray(x[name]).view(f"u{x[name].itemsize}").reshape(-1) for x in (first, virtual, hardware)
        )
        # Operands are counted where they may be written.
        if name not in OUTPUTS and (here == start).all() and (there == start).all():
            continue
        elements += here.size
        equal += int(np.count_nonzero(here == there))
        where = np.flatnonzero(here != there)
        if len(where) and not found:
            # A few, to be looked at.
            some = where[:4].tolist()
            found = {"differs": [[name, int(i), f"{here[i]:#x}", f"{there[i]:#x}"] for i in some]}
    return {"elements": elements, "equal": equal, **found}


def record_of(number: int, form: Form) -> dict[str, Any]:
    """Return what both give for a form; what one of them refuses is said."""
    record = dict(zip(COMMON, ("form", number, form.group, form.name), strict=True))
    launched = Launched(form)
    try:
        virtual = launched.on_virtual()
    except GemmuleError as error:
        record["virtual_error"] = str(error).splitlines()[0][:300]
        virtual = None
    try:
        hardware = launched.on_hardware()
    except DriverError as error:
        return record | {"hardware_error": error.status}
    record["sha256"] = digest(hardware)
    return record if virtual is None else record | compared(launched.first, virtual, hardware)


def work(numbers: Iterable[int]) -> None:
    """Run forms in order and print a line for each; a driver's error ends it."""
    forms = all_forms()
    for number in numbers:
        print(json.dumps({"begins": number}), flush=True)
        record = record_of(number, forms[number])
        print(json.dumps(record), flush=True)
        if "hardware_error" in record:
            os._exit(0)


def lines_of(process: subprocess.Popen[str], end: float) -> Iterator[dict[str, Any]]:
    """Yield what a process prints, as long as it goes on; the process is ended where it does not."""
    assert process.stdout is not None
    found: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout or ():
            found.put(line)
        found.put(None)

    threading.Thread(target=read, daemon=True).start()
    patience = BEGINNING
    while True:
        try:
            line = found.get(timeout=max(min(patience, end - time.monotonic()), 0.01))
        except queue.Empty:
            process.kill()
            return
        if line is None:
            return
        patience = SECONDS
        yield json.loads(line)


def in_processes(numbers: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    """Run forms in processes, each again and again with those behind the form that broke it."""
    forms = all_forms()
    found: dict[int, dict[str, Any]] = {}
    workers = max(min(os.cpu_count() or 1, 12, len(numbers) // 4), 1)
    end = time.monotonic() + seconds

    def attend(own: list[int]) -> None:
        while own and time.monotonic() < end:
            command = [sys.executable, __file__, "--work", ",".join(map(str, own))]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                begun = own[0]
                for record in lines_of(process, end):
                    if "begins" in record:
                        begun = record["begins"]
                    else:
                        found[record["number"]] = record
                why = f"not done within {SECONDS} s"
                if process.wait() > 0:
                    assert process.stderr is not None
                    why = process.stderr.read()[-300:]
            if begun not in found:
                form = forms[begun]
                found[begun] = {"record": "form", "number": begun, "group": form.group, "form": form.name,
                                "hardware_error": why}  # fmt: skip
            own = own[own.index(begun) + 1 :]

    threads = [threading.Thread(target=attend, args=(list(numbers[i::workers]),)) for i in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[number] for number in numbers if number in found]


def beside(hardware: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the records of forms that there still are, with what the virtual GPU gives now."""
    forms = {(form.group, form.name): form for form in all_forms()}
    for record in hardware:
        form = forms.get((record.get("group"), record.get("form")))
        if record["record"] != "form" or form is None:
            continue
        kept = {name: record[name] for name in (*COMMON, "sha256", "hardware_error") if name in record}
        launched = Launched(form)
        try:
            virtual = launched.on_virtual()
        except GemmuleError as error:
            yield kept | {"virtual_error": str(error).splitlines()[0][:300]}
            continue
        if "sha256" in record:
            elements = compared(launched.first, virtual, virtual)["elements"]
            # Of memory that is not the same the record tells no more than that.
            kept |= {"elements": elements, "equal": elements if digest(virtual) == record["sha256"] else 0}
        yield kept


def counts(numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield a record for each form and counter."""
    ncu = shutil.which("ncu")
    if ncu is None:
        sys.exit("ncu was not found; it comes with the CUDA toolkit and with Nsight Compute")
    known = known_counters(ncu)
    wanted = [name for name in COUNTERS if name.rpartition(".")[0] in known and re.search("tma|lts__", name)]
    command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "-k", "test"]
    command += ["--metrics", ",".join(wanted), sys.executable, __file__, "--run", ",".join(map(str, numbers))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = list(csv.DictReader(io.StringIO("".join(x + "\n" for x in done.stdout.splitlines() if x.startswith('"')))))
    if done.returncode != 0 or len(rows) != len(numbers) + 1:
        sys.exit(f"ncu saw {len(rows) - 1} kernels of {len(numbers)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    forms = all_forms()
    # The first row gives the units.
    for number, row in zip(numbers, rows[1:], strict=True):
        form, counter, traffic = forms[number], Counter(), CopyTraffic()
        Launched(form).on_virtual((counter, traffic))
        both = Both(counter.counts, traffic)
        for name in wanted:
            yield {"record": "form_counts", "number": number, "group": form.group, "form": form.name, "counter": name,
                   "virtual": COUNTERS[name](both), "hardware": float(row[name].replace(",", ""))}  # fmt: skip


def numbers_of(text: str) -> list[int]:
    """Return the numbers of a list."""
    return [int(word) for word in text.split(",") if word]


def main() -> None:
    """Compare, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--count", metavar="REGEX", help="groups of copies of which the hardware's counters are read")
    parser.add_argument("--beside", type=Path, metavar="FILE", help="run here what a record's hardware ran")
    parser.add_argument("--only", default="", metavar="REGEX", help="forms of groups with such a name")
    parser.add_argument("--seconds", type=float, default=600, help="time after which no further form begins")
    parser.add_argument("--work", type=numbers_of, help=argparse.SUPPRESS)
    parser.add_argument("--run", type=numbers_of, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.work)
        return
    if options.run is not None:
        forms = all_forms()
        for number in options.run:
            Launched(forms[number]).on_hardware()
        return
    from gemmule.lab.experiment import experiment
    from gemmule.lab.records import read_records, write_records
    from gemmule.runtime.device import get_device

    if options.beside:
        command = f"python benchmarks/records/hopper_forms.py --beside {options.beside.name}"
        found = beside(read_records(options.beside)[1:])
        print(write_records(options.record, experiment(command) | {"hardware": options.beside.name}, found))
        return
    numbers = [number for number, form in enumerate(all_forms()) if re.match(options.only, form.group)]
    records = in_processes(numbers, options.seconds)
    command = " ".join(["python", "benchmarks/records/hopper_forms.py", *sys.argv[1:]])
    print(write_records(options.record, experiment(command, get_device().pci_bus_id), records))
    unequal = [r for r in records if r.get("equal") != r.get("elements", -1)]
    print(f"{len(records)} of {len(numbers)} forms, {len(unequal)} not equal in all elements", flush=True)
    if options.count:
        counted = [r for r in records if r["group"] in COPIES and re.match(options.count, r["group"])]
        found = list(counts([r["number"] for r in counted if r.get("elements")]))
        print(write_records(options.record, experiment(command, get_device().pci_bus_id), found))


if __name__ == "__main__":
    main()
