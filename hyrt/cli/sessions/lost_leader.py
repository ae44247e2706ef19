"""The records of a run whose rank 0 is lost: another rank writes them."""

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
    """Stands in for rank 0 in its run folder, once it is lost.

    Parameters
    ----------
    path, holder
        The run folder and the name of its holder, as rank 0 has told them.
    """

    def __init__(self, path: Path, holder: str) -> None:
        self._path = path
        self._holder = holder
        self._held: ExitStack | None = None

    def folder(self) -> Path | None:
        """The run folder, which this process then holds; None where rank 0 or another rank has it, or it is
        on another machine.
        """
        if self._held is None:
            self._held = take_over(self._path, self._holder)
        return None if self._held is None else self._path

    def record(self, error: BaseException, known: Mapping[str, Any]) -> None:
        """Write the summary and the report of the run that has failed, and print how it goes on.

        Parameters
        ----------
        error
            Why it failed.
        known
            What this rank knows of the run, for the summary.
        """
        path = self.folder()
        if path is None:
            return
        with RunFolder(path) as folder:
            folder.remove_leftovers()
            record_failure(folder, error, known, _warn)
            tell_how_to_go_on(folder)

    def close(self) -> None:
        """Let go of the folder."""
        if self._held is not None:
            self._held.close()


def _warn(text: str) -> None:
    print(f"warning: {rank_prefix()}{text}", file=sys.stderr, flush=True)
