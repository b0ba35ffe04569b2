"""Commands that are interrupted, whose streams are closed, or whose process ends while threads run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import gemmule as gm
from gemmule.cli import gemmule
from gemmule_command import interruption_ends

SOURCES = Path(gm.__file__).parents[1]


pytestmark = pytest.mark.usefixtures("product_folder")


def run(*arguments):
    return CliRunner().invoke(gemmule, [str(one) for one in arguments])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_standard_output_is_called_so(unbuffered):
    # Without a buffer each line fails; with one, all do together, as the process ends too.
    env = os.environ | {"PYTHONPATH": str(SOURCES), "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gemmule", "info"], env=env, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert b"standard output: No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("pause", [0.08, 0.15, 0.3])
def test_ctrl_c_while_the_package_is_loaded_is_no_traceback(pause):
    # The interpreter's own start is not ours.
    code = (
        "import sys; from gemmule_command import script; print(1, flush=True); sys.argv = ['gemmule', 'info']; script()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(SOURCES)}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    child.stdout.readline()
    time.sleep(pause)
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=120)
    assert b"Traceback" not in told, told
    # Once everything is printed, the signal itself ends the process: 130 to a shell.
    assert child.returncode in (130, 0, -signal.SIGINT)


@pytest.mark.parametrize(
    ("method", "said"),
    [("parse_args", "nothing was begun"), ("resolve_command", "no partial results were left")],
)
def test_ctrl_c_before_a_command_runs_is_one_line(method, said):
    """Between the import of the command and its beginning, click would say `Aborted!` and end with 1."""
    begun = (
        # A shell that ran the tests in the background would have SIGINT ignored.
        "import os, signal, sys, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from gemmule_command import script\n"
        "from gemmule.cli import OneLineGroup as group\n"
        f"plain = group.{method}\n"
        "stop = lambda *given: (os.kill(os.getpid(), signal.SIGINT), time.sleep(1), plain(*given))[2]\n"
        f"group.{method} = stop; sys.argv = ['gemmule', 'info']; script()"
    )
    env = os.environ | {"PYTHONPATH": str(SOURCES)}
    done = subprocess.run([sys.executable, "-c", begun], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"gemmule: interrupted; {said}\n")


@pytest.fixture
def interrupts():
    """Python's own handler of interrupts, which processes of a test run may not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_a_command_in_a_thread_while_the_main_one_imports():
    results = []
    run = threading.Thread(target=lambda: results.append(CliRunner().invoke(gemmule, ["info", "--json"])))
    with interruption_ends():
        ends = signal.getsignal(signal.SIGINT)
        run.start()
        run.join()
        # Handlers are the main thread's.
        assert signal.getsignal(signal.SIGINT) is ends
    assert results[0].exit_code == 0, results[0].exception
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(("handler", "code"), [("SIG_IGN", 0), ("default_int_handler", -signal.SIGINT)])
def test_ctrl_c_while_the_output_is_written_ends_no_process_that_ignores_it(handler, code):
    # Shells ignore the interrupts of what they run in the background.
    begun = (
        "import os, signal, sys, types\n"
        f"signal.signal(signal.SIGINT, signal.{handler})\n"
        "from gemmule_command import _end_quickly\n"
        "sys.stdout = types.SimpleNamespace(flush=lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "_end_quickly([0])"
    )
    env = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "CUDA_INJECTION64_PATH")}
    env |= {"PYTHONPATH": str(SOURCES)}
    done = subprocess.run([sys.executable, "-c", begun], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize(
    ("word", "code", "injected"), [("--version", 0, ""), ("--versions", 2, ""), ("--version", 0, "x.so")]
)
def test_a_process_ends_with_its_code_once_its_threads_have_ended(word, code, injected):
    begun = (
        "import atexit, sys, threading, time\n"
        "atexit.register(lambda: print('taken apart'))\n"
        # However long the command takes to import, this is done after it.
        "wait = lambda: (threading.main_thread().join(), time.sleep(0.1))\n"
        "slow = lambda: (wait(), atexit.register(print, 'registered'), print('slow'))\n"
        "threading.Thread(target=slow).start()\n"
        f"from gemmule_command import script; sys.argv = ['gemmule', {word!r}]; script()"
    )
    env = os.environ | {"PYTHONPATH": str(SOURCES)} | ({"CUDA_INJECTION64_PATH": injected} if injected else {})
    done = subprocess.run([sys.executable, "-c", begun], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert ("gemmule" in done.stdout) == (code == 0)
    assert done.stdout.splitlines()[code == 0 :] == ["slow", "registered", *(["taken apart"] if injected else [])]
    assert ("No such option" in done.stderr) == (code != 0)


@pytest.mark.parametrize(("word", "code"), [("--version", 0), ("--versions", 2)])
def test_a_process_that_calls_the_command_goes_on_with_its_code(word, code):
    begun = (
        "import atexit, sys\n"
        "atexit.register(print, 'taken apart')\n"
        "from gemmule_command import main\n"
        f"sys.argv = ['gemmule', {word!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print('code', end.code)\n"
        "sys.exit(7)"
    )
    env = os.environ | {"PYTHONPATH": str(SOURCES)}
    done = subprocess.run([sys.executable, "-c", begun], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert done.stdout.splitlines()[-2:] == [f"code {code}", "taken apart"]


@pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX closes the stream")
@pytest.mark.parametrize(
    ("closed", "word", "code"), [(">&-", "--version", 0), (">&- 2>&-", "--versions", 2)], ids=["one", "both"]
)
def test_a_stream_that_was_closed_before_the_process_began(closed, word, code, tmp_path):
    begun = (
        "import atexit, pathlib, sys\n"
        "assert sys.stdout is None\n"
        "atexit.register(pathlib.Path('taken apart').touch)\n"
        f"from gemmule_command import script; sys.argv = ['gemmule', {word!r}]; script()"
    )
    env = os.environ | {"PYTHONPATH": str(SOURCES)}
    command = ["sh", "-c", f'exec "$0" "$@" {closed}', sys.executable, "-c", begun]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    assert not (tmp_path / "taken apart").exists()
