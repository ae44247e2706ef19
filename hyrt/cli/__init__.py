"""Command line, with one file per command."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line; see `hyrt.cli.commands.main`."""
    try:
        # Import here, so that Ctrl-C during the slow import is handled too.
        from hyrt.cli.commands import main as run_command
    except KeyboardInterrupt:
        print("interrupted before the command started", file=sys.stderr)
        sys.exit(130)
    except (ImportError, MemoryError, OSError) as error:
        if os.environ.get("HYRT_TRACEBACK"):
            raise
        reason = " ".join(str(error).split())
        print(
            f"error: hyrt cannot be loaded ({type(error).__name__}{reason and ': '}{reason}): "
            "raise the limits on memory and open files (ulimit -v, ulimit -n), or reinstall "
            "hyrt; HYRT_TRACEBACK=1 prints the traceback",
            file=sys.stderr,
        )
        sys.exit(1)
    run_command()
