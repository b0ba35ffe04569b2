"""Cells of models.py in processes of their own: all compile at once, and then one is measured at a time.

``python benchmarks/records/models_apart.py RESULTS_FOLDER MODE WIDTH:PHASE:NUMBER…``, such as ``compiled
2048:decode:256 4096:train:2048``. A model that is compiled takes a minute of one core. A process that has compiled
waits for its turn; one that is not ready in time is left out, and so is one that fails.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.connection
import sys
import time
from pathlib import Path
from typing import Any

import torch
from models import Cell, Protocol, Size, built, measured, print_record

from gemmule.lab.experiment import experiment
from gemmule.lab.records import RecordFile
from gemmule.runtime.device import device_count, get_device

#: Seconds in which a cell is compiled, and a turn ends.
COMPILE_S, TURN_S = 100.0, 30.0
_PROTOCOL = Protocol()


def measure(pipe: Any, size: Size, cell: Cell, device: str, protocol: Protocol) -> None:
    """Compile a cell, say so, wait for the turn, and send the record; or send the error."""

    def ready() -> None:
        pipe.send(None)
        pipe.recv()

    try:
        pipe.send(measured(built(size, device, torch.bfloat16), size, cell, protocol, ready))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        raise


def cell_named(name: str, mode: str, protocol: Protocol) -> tuple[Size, Cell]:
    """Return the model and the cell of a name, ``WIDTH:PHASE:NUMBER``."""
    width, phase = name.split(":", 1)
    (size,) = (one for one in protocol.sizes if one.width == int(width))
    (cell,) = (one for one in protocol.cells([mode], size) if one.is_among([phase]))
    return size, cell


def main(arguments: list[str], protocol: Protocol = _PROTOCOL) -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("mode", choices=["eager", "graph", "compiled"])
    parser.add_argument("cells", nargs="+", metavar="WIDTH:PHASE:NUMBER")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--compile-s", type=float, default=COMPILE_S, help="seconds in which cells are compiled")
    options = parser.parse_args(arguments)
    context, waiting = multiprocessing.get_context("spawn"), {}
    for name in options.cells:
        pipe, other = context.Pipe()
        given = (other, *cell_named(name, options.mode, protocol), options.device, protocol)
        process = context.Process(target=measure, args=given, daemon=True)
        process.start()
        other.close()
        waiting[name] = pipe, process
    end, prepared = time.perf_counter() + options.compile_s, []
    while (late := [name for name in waiting if name not in prepared]) and time.perf_counter() < end:
        pipes = {waiting[name][0]: name for name in late}
        for pipe in multiprocessing.connection.wait([*pipes], max(0.0, end - time.perf_counter())):
            try:
                said = pipe.recv()
            except EOFError:
                said = "the process ended"
            if said is None:
                prepared.append(pipes[pipe])
            else:
                sys.stdout.write(f"{pipes[pipe]}: left out, {said}\n")
                waiting.pop(pipes[pipe])[1].kill()
    for name in late:
        sys.stdout.write(f"{name}: left out, not compiled after {options.compile_s:.0f} s\n")
        waiting[name][1].kill()
    gpu = get_device(0).pci_bus_id if options.device == "cuda" and device_count() else None
    command = "python benchmarks/records/models_apart.py FOLDER " + " ".join(arguments[1:])
    with RecordFile(options.folder, experiment(command, gpu)) as file:
        for name in prepared:
            pipe, process = waiting[name]
            pipe.send(None)
            record = pipe.recv() if pipe.poll(TURN_S) else "not measured in time"
            if isinstance(record, str):
                sys.stdout.write(f"{name}: left out, {record}\n")
            else:
                print_record(record)
                file.write(record)
            process.kill()
            process.join()
    sys.stdout.write(f"{file.path}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
