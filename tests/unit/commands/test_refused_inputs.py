"""What commands read: regular files only, with one line for everything else; and warnings of one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import gemmule as gm
from gemmule import cli
from gemmule.commands.pack import tables
from gemmule.compiler.artifact import Artifact
from gemmule.compiler.pack import read_pack, write_pack
from gemmule.core.errors import CompileError, FileFormatError
from gemmule.dispatch.recording import RecordingWarning, record_shape
from gemmule.dispatch.tuned_file import TunedFileWarning, read_or_warn
from gemmule.lab.products import gemm_problem

SOURCES = Path(gm.__file__).parents[1]
REMEDY = "copy its content to a file, and name that"
posix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes of POSIX")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMULE_CACHE", str(tmp_path / "cache"))
    if hasattr(os, "mkfifo"):
        os.mkfifo("pipe")
        os.mkfifo("pipe.csv")
    return tmp_path


@pytest.fixture
def in_time():
    """Fail instead of waiting at a pipe for ever."""

    def fail(number, frame):
        raise AssertionError("waits")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@posix
@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("report", "pipe", "-o", "page.html"), "a record file"),
        (("bench", "show", "pipe"), "a record file"),
        (("tune", "--shapes", "pipe", "--dry-run", "--chip", "h100"), "a file of products"),
        (("tune", "--shapes", "pipe.csv", "--dry-run", "--chip", "h100"), "a file of products"),
        (("tune", "--sizes", "64,64,64", "--output", "pipe"), "a file of tuned configurations"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_a_named_pipe_is_refused(arguments, what):
    done = CliRunner().invoke(cli.gemmule, arguments)
    assert done.exit_code == 1
    name = next(word for word in arguments if word.startswith("pipe"))
    assert done.stderr == f"gemmule: {name}: is a named pipe; {what} is a regular file; {REMEDY}\n"
    assert not Path("page.html").exists()


def test_a_device_and_a_folder_are_refused():
    done = CliRunner().invoke(cli.gemmule, ["report", os.devnull, "-o", "page.html"])
    assert done.exit_code == 1
    assert done.stderr == f"gemmule: {os.devnull}: is a device; a record file is a regular file; {REMEDY}\n"
    with pytest.raises(FileFormatError, match=r"is a folder; a pack is a regular file; name a file in it$"):
        read_pack(Path())


@posix
@pytest.mark.usefixtures("in_time")
def test_calls_do_not_wait_at_a_named_pipe(monkeypatch):
    with pytest.raises(FileFormatError, match=r"is a named pipe; a pack is a regular file"):
        gm.load_pack("pipe")
    with pytest.warns(TunedFileWarning, match="is a named pipe; .*; it is not used, and left as it is"):
        assert read_or_warn(Path("pipe")) == ()
    monkeypatch.setenv("GEMMULE_RECORD", str(Path("pipe").absolute()))
    with pytest.warns(RecordingWarning, match="products cannot be recorded"):
        record_shape(gemm_problem(4, 4, 4, "float32", "float32", "nn"), "NVIDIA H100 80GB HBM3")


@posix
@pytest.mark.parametrize("module", ["gemmule.core.errors", "click", "gemmule.cli"])
def test_ctrl_c_while_python_loads_the_module_is_no_traceback(folder, module):
    Path("sitecustomize.py").write_text(
        f"""
import os, signal, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(SOURCES)])}
    command = [sys.executable, "-m", "gemmule", "--version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == "gemmule: interrupted; nothing was begun\n"
    assert done.returncode == 130


def test_other_modules_keep_their_interrupts():
    # Shells ignore the interrupts of what they run in the background.
    code = "import sys, signal; signal.signal(signal.SIGINT, signal.default_int_handler); sys.argv[0] = '-m'; "
    code += "import gemmule; print(signal.getsignal(signal.SIGINT).__name__)"
    environment = os.environ | {"PYTHONPATH": str(SOURCES)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "default_int_handler\n"


def test_a_warning_is_one_line(monkeypatch, capsys):
    def command(**given):
        warnings.warn("one\nand two", TunedFileWarning, stacklevel=1)

    monkeypatch.setattr(cli, "gemmule", command)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        cli.main()
    assert capsys.readouterr().err == "gemmule: warning: one and two\n"


def test_messages_of_packs_say_what_helps(monkeypatch):
    again = "make it again with gemmule pack, or copy it again"
    write_pack(Path("x.pack"), [("key", b"no kernel")], {"tuned.json": b"{}"})
    pack = read_pack(Path("x.pack"))
    with pytest.raises(CompileError, match=rf"kernels/key\.kernel in the pack x\.pack is damaged .*; {again}$"):
        pack.artifact("key")
    raw = Path("x.pack").read_bytes()
    Path("x.pack").write_bytes(raw.replace(b"no kernel", b"no_kernel"))
    with pytest.raises(CompileError, match=rf"^the pack x\.pack is damaged: kernels/key\.kernel .*; {again}$"):
        read_pack(Path("x.pack")).artifact("key")
    monkeypatch.setattr(Artifact, "from_bytes", lambda content, what: content)
    for content, told in (
        (
            b'{"format": 9, "members": {}, "toolchain": "x"}',
            "reads formats 1 to 3; make it again with this version, or install",
        ),
        (
            b'{"format": 1, "members": {"kernels/a.kernel": "0"}, "toolchain": "x"}',
            f"lacks .* of its list; {again}$",
        ),
        (b"[]", f"is not a pack of gemmule, or is damaged .*; {again}$"),
    ):
        with zipfile.ZipFile("y.pack", "w") as archive:
            archive.writestr("pack.json", content)
        with pytest.raises(FileFormatError, match=told):
            read_pack(Path("y.pack"))
    with pytest.raises(FileNotFoundError, match=r"z\.pack: there is no such file; check the name"):
        gm.load_pack("z.pack")


@posix
@pytest.mark.parametrize("arguments", [("pack", "pipe"), ("tune", "--sizes", "64,64,64", "--pack", "pipe")])
def test_an_output_replaces_no_named_pipe(arguments):
    done = CliRunner().invoke(cli.gemmule, arguments)
    assert done.exit_code == 1
    told = "pipe: is a named pipe; an output replaces regular files only; name another file"
    assert done.stderr == f"gemmule: {told}\n"
    with pytest.raises(gm.ArgumentError, match=told):
        write_pack(Path("pipe"), [])
    assert Path("pipe").is_fifo()


def test_a_pack_that_cannot_be_written_is_told_by_its_name():
    with pytest.raises(gm.FileAccessError, match="longer than the file system takes; give a shorter one") as raised:
        write_pack(Path("x" * 300), [])
    assert raised.value.filename == "x" * 300
    with pytest.raises(gm.FileAccessError, match="longer than the file system takes"):
        write_pack(Path("x" * 250), [])
    with pytest.raises(
        gm.ArgumentError, match=r"\.: is a folder; an output replaces regular files only; name a file in"
    ):
        write_pack(Path(), [])


def test_tables_that_a_pack_cannot_take_say_what_helps():
    with pytest.raises(gm.FileAccessError, match=r"there is no such file; check the name"):
        tables(Path("none.json"))
    for content in (b"", b"\xe1", b"[" * 100_000, b"[]"):
        Path("table.json").write_bytes(content)
        with pytest.raises(FileFormatError, match=r"^table\.json: not a file of .*; name one that gemmule tune wrote$"):
            tables(Path("table.json"))


def test_a_number_that_python_does_not_read_is_an_object_too():
    done = CliRunner().invoke(cli.gemmule, ["pack", "x.pack", "--arch", "sm_" + "9" * 5000, "--json"])
    assert done.exit_code == 2
    assert json.loads(done.stdout)["exit_code"] == 2
    assert "more than 4300 digits" in json.loads(done.stdout)["error"]
