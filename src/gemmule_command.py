"""The script ``gemmule``: loads the package, and ends without a traceback where it is interrupted meanwhile.

``python -m gemmule`` loads the package before any line of the command runs, so that this module, which the package
imports first, sees to it as soon as it is imported.
"""

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

_INTERRUPTED = 130
#: Variables that name libraries which may write at the end of a process, such as those of profilers.
_INJECTED = ("LD_PRELOAD", "CUDA_INJECTION64_PATH")


def _end(number: int, frame: FrameType | None) -> None:
    """End at once: extension modules that are being imported would make something else of an exception."""
    del number, frame
    os.write(sys.stderr.fileno(), b"gemmule: interrupted; nothing was begun\n")
    os._exit(_INTERRUPTED)


def _end_where_interrupted() -> None:
    """Let Ctrl-C end the process, unless somebody else sees to it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def _is_main_thread() -> bool:
    """Return whether this is the thread that may handle signals."""
    return threading.current_thread() is threading.main_thread()


def _is_module() -> bool:
    """Return whether ``python -m gemmule`` is loading the package: until it is found, the first argument is ``-m``."""
    words = sys.orig_argv
    return sys.argv[:1] == ["-m"] and "-m" in words and words[words.index("-m") + 1] == "gemmule"


@contextlib.contextmanager
def interruption_ends() -> Iterator[None]:
    """Let Ctrl-C end the process while the block imports, unless somebody else sees to it."""
    already = signal.getsignal(signal.SIGINT) is _end
    if _is_main_thread():
        _end_where_interrupted()
    try:
        yield
    finally:
        if not already:
            interruption_raises()


def interruption_raises() -> None:
    """Let Ctrl-C raise again, where it would end the process."""
    if _is_main_thread() and signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_quickly(codes: list[int]) -> None:
    """End the process: everything is written, and what Python takes apart one by one the system takes at once."""
    if not codes or any(name in os.environ for name in _INJECTED):
        return
    # Whoever reads a pipe may let it wait: Ctrl-C ends it without a traceback, unless it is ignored, as of jobs in the
    # background.
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _end):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        for stream in (sys.stdout, sys.stderr):
            # None where it was closed before the process began.
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        # Python says so.
        return
    os._exit(codes[0])


def may_use_gpu(words: list[str]) -> bool:
    """Return whether the words of a command ask for a product, and for no other executor than the GPU."""
    others = ("-h", "--help", "--executor", "--scheduler")
    return (
        words[:1] == ["matmul"]
        and not any(word.startswith(others) for word in words)
        and os.environ.get("GEMMULE_EXECUTOR") in (None, "", "gpu")
    )


def _initialise_driver() -> None:
    """Initialise the CUDA driver, without its bindings, whose import would wait for all others."""
    import ctypes

    # What is wrong is found again, and reported, by what needs the GPU.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuInit(0)


def main() -> None:
    """Run the command; it ends with `SystemExit`."""
    # The command lets Ctrl-C raise again where it reports that.
    with interruption_ends():
        from gemmule.cli import main as run

        run(interruption_ends, interruption_raises, may_use_gpu)


def script() -> None:
    """Run the command in a process of its own, which ends with it."""
    codes: list[int] = []
    # What is registered later runs before.
    atexit.register(_end_quickly, codes)
    if may_use_gpu(sys.argv[1:]):
        # The driver takes as long as the imports of the command, and needs no lock of Python's.
        threading.Thread(target=_initialise_driver, name="gemmule-cuinit", daemon=True).start()
    try:
        main()
    except SystemExit as end:
        codes += [end.code or 0] if isinstance(end.code, int | None) else []
        raise


if _is_module():
    _end_where_interrupted()
