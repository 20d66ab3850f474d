# SPDX-License-Identifier: BSD-3-Clause
"""``python -m stablemd`` and the script ``stablemd``."""

from __future__ import annotations


def main() -> None:
    from ._cli import cli

    cli(prog_name="stablemd")


if __name__ == "__main__":
    main()
