"""Run products from installed wheels: with the command, through Python, with packed kernels; look for data files."""

import importlib.util
import io
import json
import pathlib
import subprocess
import sys
import warnings
import zipfile

import numpy as np
from elftools.elf.elffile import ELFFile

import gemmule as gm


def main() -> None:
    """Check a wheel against the source tree, and a pack that has PTX: arguments in this order, in an empty folder."""
    wheel, root, with_ptx = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), sys.argv[3]

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
    check_packed_kernels(a, b, expected, with_ptx)


def check_packed_kernels(a: np.ndarray, b: np.ndarray, expected: np.ndarray, with_ptx: str) -> None:
    """Run packed kernels on the virtual GPU, where the compiler is not installed: the chosen one, and another."""
    from gemmule import CompilerMissingError, PackedKernelWarning
    from gemmule.compiler.pack import PACKS

    assert importlib.util.find_spec("cutlass") is None, "the compiler is installed"
    (pack,) = PACKS.installed()
    for key in pack.kernels:
        code = ELFFile(io.BytesIO(pack.artifact(key).cubin))
        assert any(section.name.startswith(".text.") for section in code.iter_sections()), f"{key}: no code"
    command = ["gemmule", "info", "--json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert found["packs"] == [{"file": str(pack.path), "origin": pack.origin, "kernels": len(pack.kernels)}], found
    print(f"{pack.origin}: {len(pack.kernels)} kernels, found without being named")

    warnings.simplefilter("error")
    refusal = ""
    try:
        gm.matmul(a, b, executor="vgpu")
    except CompilerMissingError as error:
        refusal = str(error)
    assert "machine code only" in refusal, "the virtual GPU ran a kernel whose PTX is in no pack"
    gm.load_pack(with_ptx)
    plan = gm.matmul.plan(a, b, executor="vgpu")
    assert plan.chosen_by != "packed", plan
    assert np.array_equal(plan.execute(), expected), "a packed kernel: small integers must be exact"
    print(f"{plan.kernel} from the pack, on the virtual GPU: exact")

    # The first operand's columns lie in memory, which is another compiled kernel: it is missing.
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        columns = np.asfortranarray(a)
        plan = gm.matmul.plan(columns, b, executor="vgpu")
        assert np.array_equal(plan.execute(), expected), "another packed kernel: small integers must be exact"
    assert [warning.category for warning in told] == [PackedKernelWarning], told
    assert plan.chosen_by == "packed", plan
    print(f"{plan.kernel} from the pack, where another was chosen: exact; {told[0].message}")
    assert "cutlass" not in sys.modules


if __name__ == "__main__":
    main()
