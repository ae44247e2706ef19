"""The command line: one file per command."""

from __future__ import annotations

import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line; see `hyrt.cli.commands.main`."""
    try:
        # Imported here: Ctrl-C may come while this takes its time.
        from hyrt.cli.commands import main as run_command
    except KeyboardInterrupt:
        print("interrupted before the command began", file=sys.stderr)
        sys.exit(130)
    run_command()
