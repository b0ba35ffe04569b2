"""Multiply real data with the `gemmule` command, check the results and draw a picture.

1. The cosine similarities of all pairs of the 1797 handwritten digits that scikit-learn ships, multiplied under a
   memory limit that is smaller than the result, so that it is computed in tiles.
2. A 4096 x 4096 x 4096 float32 product from files, with its rate.

Both are checked against NumPy. Runs on an NVIDIA GPU where there is one and otherwise on NumPy's BLAS; ends with a
summary, and with a non-zero exit status if a check fails. Everything is written into build/demo.
"""

from __future__ import annotations

import json
import pathlib
import shlex
import subprocess
import sys
import time
from typing import Any

import matplotlib as mpl
import numpy as np
from sklearn.datasets import load_digits

import gemmule as gm

mpl.use("Agg")
import matplotlib.pyplot as plt

FOLDER = pathlib.Path("build/demo")
MEMORY = "4MiB"
SIZE = 4096
CHECKED_ROWS = 256
QUERIES = 7
NEIGHBOURS = 6
UNIT_ROUNDOFF = 2.0**-24
MOST_TIMES_NUMPY = 10


def multiply(*arguments: str) -> dict[str, Any]:
    """Run `gemmule matmul` with the arguments and return the figures that it prints."""
    command = [sys.executable, "-m", "gemmule", "matmul", *arguments, "--json"]
    print(f"  $ gemmule {shlex.join(command[3:])}", flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"gemmule matmul ended with status {done.returncode}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def check(result: np.ndarray, a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """Compare a float32 product with NumPy's in float64.

    ``error`` is the largest error of an element in units of u * (|a| |b|), u = 2**-24. A float32 sum in any order stays
    within ``bound`` = (k + 1) / (1 - (k + 1) u) of these units. ``ratio`` is the largest error over that of NumPy's own
    float32 product: a sharper measure, as roundings mostly cancel.
    """
    exact = a.astype(np.float64) @ b.astype(np.float64)
    unit = UNIT_ROUNDOFF * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64))
    error = np.abs(result - exact)
    terms = a.shape[1] + 1
    largest = float(np.max(error / np.maximum(unit, np.finfo(np.float64).tiny)))
    return {
        "error": largest if np.isfinite(result).all() else float("inf"),
        "bound": terms / (1 - terms * UNIT_ROUNDOFF),
        "ratio": float(np.max(error) / np.max(np.abs(a @ b - exact))),
    }


def draw(path: pathlib.Path, images: np.ndarray, labels: np.ndarray, similarity: np.ndarray) -> float:
    """Draw some digits with their nearest neighbours, and all similarities; return the share of right neighbours."""
    others = similarity.copy()
    np.fill_diagonal(others, -np.inf)
    nearest = np.argsort(-others, axis=1)[:, :NEIGHBOURS]
    right = float(np.mean(labels[nearest[:, 0]] == labels))

    # The first image of some digits, and as the last one an image whose nearest neighbour is another digit.
    queries = [int(np.flatnonzero(labels == digit)[0]) for digit in (0, 2, 3, 4, 6, 9)]
    queries.append(int(np.flatnonzero(labels[nearest[:, 0]] != labels)[0]))

    figure = plt.figure(figsize=(13, 7.4), layout="constrained")
    figure.suptitle(
        f"Cosine similarity of {len(labels)} handwritten digits: the nearest neighbour is the same digit in "
        f"{right:.1%} of the cases",
        fontsize=13,
    )
    left, side = figure.subfigures(1, 2, width_ratios=(1.3, 1))
    axes = left.subplots(QUERIES, NEIGHBOURS + 1)
    for row, query in zip(axes, queries, strict=True):
        for axis, index in zip(row, (query, *nearest[query]), strict=True):
            axis.imshow(images[index], cmap="gray_r", interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            wrong = labels[index] != labels[query]
            text = f"a {labels[index]}" if index == query else f"{labels[index]}:  {similarity[query, index]:.3f}"
            axis.set_title(text, fontsize=10, color="tab:red" if wrong else "black", pad=3)
            for spine in axis.spines.values():
                spine.set_edgecolor("tab:blue" if index == query else "tab:red" if wrong else "0.8")
                spine.set_linewidth(1.8 if index == query or wrong else 0.8)
    left.supxlabel(
        "Blue: a digit. Right of it: the images most like it, the digit that each shows and its cosine.\n"
        "Red: another digit.",
        fontsize=9.5,
    )

    order = np.argsort(labels, kind="stable")
    axis = side.subplots()
    picture = axis.imshow(similarity[np.ix_(order, order)], cmap="viridis", vmin=0, vmax=1, interpolation="antialiased")
    edges = np.searchsorted(labels[order], np.arange(11))
    centres = (edges[:-1] + edges[1:]) / 2
    axis.set_xticks(centres, labels=range(10))
    axis.set_yticks(centres, labels=range(10))
    axis.tick_params(length=0)
    axis.set_title("All pairs, sorted by digit", fontsize=11)
    side.colorbar(picture, ax=axis, shrink=0.58, label="cosine")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return right


def digits(folder: pathlib.Path) -> dict[str, Any]:
    """Multiply the digits by their transpose under the memory limit."""
    data = load_digits()
    rows = data.data / np.linalg.norm(data.data, axis=1, keepdims=True)
    a = np.ascontiguousarray(rows, dtype=np.float32)
    source, result = folder / "digits.npy", folder / "similarity.npy"
    np.save(source, a)
    figures = multiply(
        str(source), str(source), "--transpose-b", "-o", str(result),
        "--memory", MEMORY, "--verify", "--force",
    )  # fmt: skip
    similarity = np.load(result)
    figures |= check(similarity, a, a.T)
    figures["bytes"] = similarity.nbytes
    figures["right"] = draw(folder / "digits.png", data.images, data.target, similarity)
    return figures


def large(folder: pathlib.Path) -> dict[str, Any]:
    """Multiply two large matrices from files; time NumPy on the same ones in memory."""
    random = np.random.default_rng(0)
    a = random.standard_normal((SIZE, SIZE), dtype=np.float32)
    b = random.standard_normal((SIZE, SIZE), dtype=np.float32)
    paths = [folder / name for name in ("a.npy", "b.npy", "c.npy")]
    try:
        np.save(paths[0], a)
        np.save(paths[1], b)
        figures = multiply(str(paths[0]), str(paths[1]), "-o", str(paths[2]), "--verify", "--force")
        chosen = np.sort(random.choice(SIZE, CHECKED_ROWS, replace=False))
        figures |= check(np.load(paths[2], mmap_mode="r")[chosen], a[chosen], b)
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
    start = time.perf_counter()
    a @ b
    figures["numpy_gflops"] = 2 * SIZE**3 / (time.perf_counter() - start) / 1e9
    return figures


def error(figures: dict[str, Any]) -> str:
    """Say how large an error is."""
    return f"error {figures['error']:.1f} (bound {figures['bound']:.0f}), {figures['ratio']:.1f} times NumPy's own"


def main() -> None:
    """Run both products and print the summary."""
    start = time.perf_counter()
    FOLDER.mkdir(parents=True, exist_ok=True)
    sample = np.broadcast_to(np.float32(1), (SIZE, SIZE))
    where = {"gpu": "an NVIDIA GPU", "cpu": "the BLAS of NumPy; no GPU was found"}
    executor = str(gm.matmul.plan(sample, sample).executor)
    print(f"gemmule {gm.__version__} computes on: {where.get(executor, executor)}\n")

    print(f"1. Similarities of handwritten digits, in at most {MEMORY}")
    similarity = digits(FOLDER)
    print(f"\n2. A product of two {SIZE} x {SIZE} float32 matrices from files")
    product = large(FOLDER)

    checks = {
        "digits: computed in more than one tile": similarity["tiles"] > 1,
        "digits: nearest neighbours show the same digit": similarity["right"] > 0.95,
    }
    for name, figures in (("digits", similarity), (f"{SIZE}^3", product)):
        checks[f"{name}: ran on {executor}, and passed --verify"] = (
            figures["executor"] == executor and figures["verified"]["passed"]
        )
        checks[f"{name}: error within the bound of a float32 sum"] = figures["error"] <= figures["bound"]
        checks[f"{name}: error at most {MOST_TIMES_NUMPY} times NumPy's"] = figures["ratio"] <= MOST_TIMES_NUMPY

    tiles = f"{similarity['bytes'] / 1e6:.1f} MB in {similarity['tiles']} tiles, {similarity['seconds']:.2f} s"
    rates = f"{product['gflops']:.0f} GFLOP/s from file to file; NumPy in memory {product['numpy_gflops']:.0f} GFLOP/s"
    print(
        f"""
Summary
  ran on    {product["executor"]}: {product["device"]}
  digits    1797 x 64 times 64 x 1797: {tiles}
            {error(similarity)}
            the nearest neighbour shows the same digit in {similarity["right"]:.1%} of the cases
  {SIZE}^3    {product["seconds"]:.2f} s, {rates}
            {error(product)}, in {CHECKED_ROWS} rows
  error     in units of 2^-24 (|A||B|), element by element, against NumPy in float64
  files     {FOLDER / "digits.png"}, {FOLDER / "digits.npy"}, {FOLDER / "similarity.npy"}
  took      {time.perf_counter() - start:.0f} s
"""
    )
    for name, passed in checks.items():
        print(f"  {'passed' if passed else 'FAILED'}  {name}")
    if not all(checks.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
