"""The script ``gemmule``: loads the package, and ends without a traceback where it is interrupted meanwhile."""

import os
import signal
import sys
from types import FrameType

_INTERRUPTED = 130


def _end(number: int, frame: FrameType | None) -> None:
    """End at once: extension modules that are being imported would make something else of an exception."""
    del number, frame
    os.write(sys.stderr.fileno(), b"gemmule: interrupted; nothing was begun\n")
    os._exit(_INTERRUPTED)


def main() -> None:
    """Run the command."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from gemmule.cli import main as run

    signal.signal(signal.SIGINT, before)
    run()
