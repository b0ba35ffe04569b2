"""Tiles written into a memory map: page by page as NumPy assigns, and in long runs to the file behind the map.

``python benchmarks/records/stream_maps.py RESULTS_FOLDER --threads 1,2``. Both ways take turns, with lines of several
lengths, into a file that was just made and into one that was written before and is in no cache. What is written is
checked.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from gemmule.lab.experiment import experiment
from gemmule.lab.records import RecordFile
from gemmule.outofcore.stores import mapped_sink
from gemmule.outofcore.stores.arrays import ArraySink
from gemmule.outofcore.stores.mapped_sink import array_sink

WAYS = {"pages": ArraySink, "runs": array_sink}
#: Rows of a tile.
HEIGHT = 128


def made(path: Path, shape: tuple[int, int], *, written: bool) -> np.ndarray:
    """Return a map of a file: of holes, or of one that was written and is in no cache."""
    path.unlink(missing_ok=True)
    found = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    if not written:
        return found
    found[...] = np.nan
    found.flush()
    del found
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    return np.load(path, mmap_mode="r+")


def timed(way: str, out: np.ndarray, numbers: np.ndarray, width: int, threads: int) -> float:
    """Return the seconds that writing all tiles takes, and check them."""
    rows, cols = out.shape
    sink = WAYS[way](out, "out")
    places = [(row, col) for row in range(0, rows, HEIGHT) for col in range(0, cols, width)]
    tiles = [np.ascontiguousarray(numbers[row : row + HEIGHT, col : col + width]) for row, col in places]
    with ThreadPoolExecutor(threads) as pool:
        start = time.perf_counter()
        list(pool.map(lambda place, tile: sink.write(*place, tile), places, tiles))
        seconds = time.perf_counter() - start
    if not np.array_equal(out, numbers):
        sys.exit(f"{way}: what was written is not there")
    return seconds


def main() -> None:
    """Measure, print and write the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--shape", type=int, nargs=2, default=(512, 200_000))
    parser.add_argument("--lines", default="16,64,256,0", help="KiB of a line of a tile; 0 for whole rows")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--folder", type=Path, help="where the file is made")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    mapped_sink.LONG, options.shape = 1, tuple(options.shape)
    numbers = np.random.default_rng().standard_normal(options.shape, "f4")
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        RecordFile(options.results, experiment(" ".join(sys.argv), None)) as file,
    ):
        path = Path(folder, "c.npy")
        for line, written, threads in (
            (line, written, threads)
            for line in map(int, options.lines.split(","))
            for written in (False, True)
            for threads in map(int, options.threads.split(","))
        ):
            width = line * 1024 // 4 or options.shape[1]
            samples: dict[str, list[float]] = {way: [] for way in WAYS}
            for repeat in range(options.repeats):
                for way in WAYS if repeat % 2 == 0 else reversed(WAYS):
                    samples[way].append(timed(way, made(path, options.shape, written=written), numbers, width, threads))
            record = {
                "record": "mapped", "line_bytes": width * 4, "whole_rows": not line, "written_before": written,
                "threads": threads, "nbytes": numbers.nbytes, "height": HEIGHT,
                "seconds": {way: statistics.median(found) for way, found in samples.items()}, "samples_s": samples,
            }  # fmt: skip
            print(line, written, threads, {way: round(one, 3) for way, one in record["seconds"].items()}, flush=True)
            file.write(record)
    print(file.path)


if __name__ == "__main__":
    main()
