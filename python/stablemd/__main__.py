# SPDX-License-Identifier: BSD-3-Clause
"""``python -m stablemd`` and the script ``stablemd``."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

_PATIENCE = 2.0  # s that clearing away may take
_INTERRUPTED, _TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM


def _leave(code: int) -> NoReturn:
    """At once: XLA may be compiling in threads of its own, and crashes where the interpreter shuts down under them."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end(number: int, _: Any) -> NoReturn:
    """Ends the command by an exception, so that what is half done is cleared away on the way out.

    An exception that is raised inside a callback of JAX, of the garbage collector for instance, is lost. So the same
    signal comes again until the process has ended.
    """
    signal.signal(signal.SIGALRM, lambda *_: _end(number, None))
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE)
    raise KeyboardInterrupt if number == signal.SIGINT else _Terminated


class _Terminated(SystemExit):
    def __init__(self) -> None:
        super().__init__(_TERMINATED)


def main() -> None:
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as shells set it for jobs in the background
        signal.signal(signal.SIGINT, _end)
    signal.signal(signal.SIGTERM, _end)
    try:
        from ._cli import cli

        cli(prog_name="stablemd")
    except KeyboardInterrupt:  # the command line handles its own; this is for the time around it
        print("Error: interrupted", file=sys.stderr)
        _leave(_INTERRUPTED)
    except _Terminated:
        print("Error: terminated", file=sys.stderr)
        _leave(_TERMINATED)
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            _leave(_INTERRUPTED)
        raise


if __name__ == "__main__":
    main()
