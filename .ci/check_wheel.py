"""Run a product from an installed wheel: with the command and through Python; look for its data files."""

import json
import pathlib
import subprocess
import sys
import zipfile

import numpy as np

import gemmule as gm


def main() -> None:
    """Check the wheel named first against the source tree named second; run from an empty folder."""
    wheel, root = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()

    package = pathlib.Path(gm.__file__).resolve().parent
    assert root not in package.parents, f"gemmule was imported from the source tree: {package}"
    print(f"imported from {package}")

    source = root / "src" / "gemmule"
    wanted = {
        f"gemmule/{path.relative_to(source).as_posix()}"
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert "gemmule/py.typed" in packed, "py.typed is not in the wheel"
    assert wanted <= packed, f"files that are not in the wheel: {sorted(wanted - packed)}"
    print(f"{len(wanted)} files of the package are in the wheel, py.typed among them")

    random = np.random.default_rng(0)
    a = random.integers(-8, 8, (300, 200)).astype(np.float32)
    b = random.integers(-8, 8, (200, 100)).astype(np.float32)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.save("a.npy", a)
    np.save("b.npy", b)

    command = ["gemmule", "matmul", "a.npy", "b.npy", "-o", "c.npy", "--verify", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures = json.loads(done.stdout)
    assert np.array_equal(np.load("c.npy"), expected), "gemmule matmul: small integers must be exact"
    print(f"gemmule matmul: exact, on {figures['executor']}")

    assert np.array_equal(gm.matmul(a, b), expected), "gemmule.matmul: small integers must be exact"
    assert np.array_equal(gm.matrix_transpose(a), a.T), "gemmule.matrix_transpose"
    print("gemmule.matmul and gemmule.matrix_transpose: exact")


if __name__ == "__main__":
    main()
