"""Leader failover: if rank 0 is lost, another rank writes the records of the run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hyrt.cli.sessions.run_records import record_failure, tell_how_to_go_on
from hyrt.distributed.launch import rank_prefix
from hyrt.report.records.run_folder import RunFolder
from hyrt.report.records.run_lock import take_over


class LostLeader:
    """Stand-in for a lost rank 0 in its run folder.

    Parameters
    ----------
    path, holder
        Run folder and name of its lock's holder, as broadcast by rank 0.
    """

    def __init__(self, path: Path, holder: str) -> None:
        self._path = path
        self._holder = holder
        self._lock: ExitStack | None = None

    def folder(self) -> Path | None:
        """Take over the run folder and return it.

        None if rank 0 or another rank holds the folder, or if the folder is on another machine.
        """
        if self._lock is None:
            self._lock = take_over(self._path, self._holder)
        return None if self._lock is None else self._path

    def record(self, error: BaseException, known: Mapping[str, Any]) -> None:
        """Write the summary and the report of the failed run, and print how to resume it.

        Parameters
        ----------
        error
            Cause of the failure.
        known
            Facts about the run that this rank knows, for the summary.
        """
        path = self.folder()
        if path is None:
            return
        with RunFolder(path) as folder:
            folder.remove_leftovers()
            record_failure(folder, error, known, _warn)
            tell_how_to_go_on(folder)

    def close(self) -> None:
        """Release the folder."""
        if self._lock is not None:
            self._lock.close()


def _warn(text: str) -> None:
    print(f"warning: {rank_prefix()}{text}", file=sys.stderr, flush=True)
