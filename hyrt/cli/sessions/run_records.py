"""Records and messages at the end of a run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hyrt.errors import HyrtError, describe
from hyrt.observe.events import RunEnded
from hyrt.report.records.run_folder import RunFolder
from hyrt.report.terminal.printed_lines import shell_word
from hyrt.training.checkpoint import has_checkpoint


def write_report(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """Write the report of the run so far; return None and warn if that fails, because the run has
    succeeded.
    """
    from hyrt.report.html.page import REPORT, page_of
    from hyrt.report.html.render import write_page
    from hyrt.report.records.run_record import read_run

    path = folder / REPORT
    try:
        hint = f"Free space, then write it with: hyrt report {shell_word(folder)}"
        write_page(path, page_of(read_run(folder)), hint)
    except Exception as error:
        warn(f"the report could not be written: {describe(error)}")
        return None
    return path


def record_failure(
    folder: RunFolder, error: BaseException, known: Mapping[str, Any], warn: Callable[[str], None]
) -> None:
    """Write the summary and the report of a failed run.

    Parameters
    ----------
    folder
        The run folder.
    error
        Cause of the failure; gets a note if the records cannot be written.
    known
        Further known facts about the run, for the summary.
    warn
        Called with the reason if the report cannot be written.
    """
    try:
        summary = {"error": f"{type(error).__name__}: {error}", **known}
        folder.handle(RunEnded(status="failed", summary=summary))
        write_report(folder.path, warn)
    except HyrtError as second:
        # A full disk cannot record its own failure; the first error is the important one.
        error.add_note(f"the failure could not be recorded: {second}")


def tell_how_to_go_on(folder: RunFolder, resumes: Path | None = None) -> None:
    """Print how to resume a failed run, if it has a checkpoint; same arguments as `how_to_go_on`."""
    if can_go_on(folder):
        with contextlib.suppress(OSError):
            print(how_to_go_on(folder, resumes), file=sys.stderr)


def how_to_go_on(folder: RunFolder, resumes: Path | None = None) -> str:
    """Return the message that tells how to resume a run.

    Parameters
    ----------
    folder
        The run folder.
    resumes
        Folder of the run's series to resume instead, or None.
    """
    command = f"hyrt run --resume {shell_word(resumes or folder.path)}"
    if resumes is None and not can_go_on(folder):
        return f"The run has no checkpoint yet. Start it again from step 0 with: {command}"
    return f"Resume with: {command}"


def can_go_on(folder: RunFolder) -> bool:
    """Return whether the run has a checkpoint."""
    try:
        return has_checkpoint(folder.checkpoints)
    except OSError:
        return False
