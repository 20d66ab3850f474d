# SPDX-License-Identifier: BSD-3-Clause
"""``python -m stablemd`` and the script ``stablemd``."""

from __future__ import annotations

import signal
import sys
from typing import Any, NoReturn


def _end(line: str, code: int) -> NoReturn:
    print(f"Error: {line}", file=sys.stderr)
    sys.exit(code)


def _terminate(*_: Any) -> None:
    # An exception, so that what is half done is cleared away on the way out.
    _end("terminated", 128 + signal.SIGTERM)


def main() -> None:
    signal.signal(signal.SIGTERM, _terminate)
    try:
        from ._cli import cli

        cli(prog_name="stablemd")
    except KeyboardInterrupt:  # the command line handles its own; this is for the time around it
        _end("interrupted", 128 + signal.SIGINT)


if __name__ == "__main__":
    main()
