"""Record files for tests of the report: made up, and whole."""

from __future__ import annotations

import json

H100 = "NVIDIA H100 80GB HBM3"
RUNGS = ("g01_naive_uncoalesced", "g02_naive_coalesced", "g03_shared_tile", "g04_register_tile", "g05_conflict_free",
         "g06_double_buffer", "g07_cp_async", "gemm_reference")  # fmt: skip
SHARES = (0.01, 0.1, 0.14, 0.5, 0.57, 0.72, 0.74, 0.24)


def experiment(gpu=H100, date="20260101T000000", **fields):
    block = {
        "record": "experiment", "date": date, "command": "gemmule bench gemm --sizes source", "commit": "0123456789",
        "python": "3.12.3", "system": "Linux x86_64", "cpus": 16, "packages": {"numpy": "2.5", "nvmath-python": "1.0"},
        "gpu": gpu, "driver": "580.1", "power_limit_w": 700.0, "sm_clock_mhz": 1980.0,
    }  # fmt: skip
    return {name: value for name, value in (block | fields).items() if value is not None}


def product(m, n, k, dtype="float32", layout="nn"):
    return {"dtype": dtype, "precision": "ieee", "out_dtype": dtype, "m": m, "n": n, "k": k, "layout": layout,
            "batch": []}  # fmt: skip


def rates(m, n, k, tflops, peak=66.9):
    us = 2e-6 * m * n * k / tflops
    return {"min_us": us, "mean_us": us, "median_us": us, "max_us": us, "tflops": tflops, "peak_share": tflops / peak,
            "peak_unit": "fp32", "peak_tflops": peak}  # fmt: skip


def gemm(kernel, m, n, k, tflops, config=None, dtype="float32", error=3.0, library=52.0):
    return {
        "record": "gemm", "kernel": kernel, "config": config or {"tile_k": 8}, **product(m, n, k, dtype),
        **rates(m, n, k, tflops), "yardstick_best_us": 2e-6 * m * n * k / library, "ratio": tflops / library,
        "paired_ratio_low": tflops / library, "paired_ratio_high": tflops / library, "error_u": error,
    }  # fmt: skip


def baseline(m, n, k, dtype="float32", error=1.5, library=52.0):
    return {
        "record": "yardstick", "library": "cublaslt", **product(m, n, k, dtype), **rates(m, n, k, library),
        "best_us": 2e-6 * m * n * k / library, "control": 1.0, "control_low": 1.0, "control_high": 1.0,
        "error_u": error,
    }  # fmt: skip


def counts(kernel, size, counter, config=None, dtype="float32", **values):
    return {"record": "counts", "kernel": kernel, "config": config or {"tile_k": 8}, "dtype": dtype,
            "shape": [size] * 3, "counter": counter, **values}  # fmt: skip


def transpose(kernel, edge, gbps, itemsize=4, config=None):
    us = 2e-3 * itemsize * edge * edge / gbps
    return {
        "record": "transpose", "kernel": kernel, "config": config or {}, "itemsize": itemsize, "m": edge, "n": edge,
        "min_us": us, "mean_us": us, "median_us": us, "max_us": us, "gbps": gbps, "copy_gbps": 2900.0,
        "peak_share": 0.5,
        "ratio": gbps / 2900, "paired_ratio_low": gbps / 2900, "paired_ratio_high": gbps / 2900,
    }  # fmt: skip


def whole():
    """One file with every kind that a report draws."""
    records = [experiment()]
    for size in (1024, 2048, 4096):
        records.append(baseline(size, size, size, error=1 + size / 1024))
        for kernel, share in zip(RUNGS, SHARES, strict=True):
            records.append(gemm(kernel, size, size, size, share * 66.9 * size / 4096))
        records.append(gemm("g05_conflict_free", size, size, size, 41 * size / 4096, {"tile_k": 16}, error=4.0))
    records += [transpose("t01_naive", edge, edge / 10) for edge in (1024, 2048, 4096)]
    records += [transpose("transpose_tiled", edge, edge / 2) for edge in (1024, 2048, 4096)]
    blocks = ((32, 32), (64, 8), (8, 64))
    records += [transpose("t05_thin", 4096, 500 * x, config={"block_x": x, "block_y": y}) for x, y in blocks]
    records.append({"record": "skipped", "kernel": "g07_cp_async", "config": {"tile_k": 8}, **product(8, 8, 8, "int8"),
                    "reason": "takes float32, not int8"})  # fmt: skip
    return records


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
