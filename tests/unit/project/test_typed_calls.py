"""A user's program that calls gemmule passes ``mypy --strict``, and wrong calls do not."""

import textwrap
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src"
#: `type: ignore` marks calls that must not pass: strict refuses one that is not needed.
PROGRAM = """
    import numpy as np
    import numpy.typing as npt

    import gemmule as gm
    from gemmule import GemmuleError, Plan, epilogue
    from gemmule.outofcore import Report

    Matrix = npt.NDArray[np.float32]


    def leaky(acc: epilogue.Traced, slope: epilogue.Traced) -> epilogue.Traced:
        return gm.epilogue.where(acc > 0, acc, slope * gm.epilogue.gelu(acc))


    def layer(x: Matrix, w: Matrix, bias: Matrix, out: Matrix) -> Matrix:
        try:
            gm.gemm(x, w, bias=bias, epilogue=leaky, epilogue_args={"slope": 0.1}, out=out)
            gm.gemm(gm.matmul(x, w), gm.matrix_transpose(w), epilogue=lambda acc: gm.epilogue.relu(acc), out=out)
            gm.transpose(x, (1, 0), executor="cpu")
        except (gm.ShapeError, GemmuleError) as error:
            print(error)
        return out


    def planned(x: Matrix) -> list[Plan]:
        plans = [gm.matmul.plan(x, x), gm.gemm.plan(x, x, epilogue="relu", executor="vgpu", kernel="g07_cp_async")]
        for plan in (*plans, gm.transpose.plan(x, (1, 0)), gm.matrix_transpose.plan(x)):
            print(plan.kernel.upper(), plan.flop + 1)
            plan.execute()
        return plans


    def stored(a: str, b: str) -> float:
        report: Report = gm.outofcore.matmul(a, b, "c.npy", memory="1GiB")
        return report.seconds


    gm.matmul(1, 2, epilogue="relu")  # type: ignore[arg-type]
    gm.gemm(1, 2, epilogue=3)  # type: ignore[arg-type]
    gm.matmul.plan(1)  # type: ignore[call-arg]
    gm.matmul.plan(1, 2).kernels  # type: ignore[attr-defined]
    gm.matmul(1, 2, executor=3)  # type: ignore[arg-type]
    gm.plan(1, 2)  # type: ignore[attr-defined]
    gm.relu(1)  # type: ignore[attr-defined]
"""


@pytest.mark.slow
def test_types_of_a_users_program(tmp_path, monkeypatch):
    api = pytest.importorskip("mypy.api", reason="mypy is not installed")
    monkeypatch.setenv("MYPYPATH", str(SOURCE))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM).lstrip())
    # Errors within an installed package are not reported.
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\nfollow_imports = silent\n")
    found, trouble, status = api.run(["--cache-dir", str(tmp_path / "cache"), "program.py"])
    assert (status, trouble) == (0, ""), found
