"""Diagnosis of run folders with damaged records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from hyrt.errors import DataError, describe, listed, one_line
from hyrt.report.records.run_record import RunRecord

Result = TypeVar("Result")

# Errors caused by unexpected JSON types, for example text instead of a number.
_RECORD_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError)
_FILES: Mapping[str, dict[str, Any]] = {
    "summary.json": {"summary": {}},
    "env.json": {"environment": {}},
    "metrics.jsonl": {"lines": ()},
    "config.yaml": {"settings": {}},
}


def told_of(runs: Sequence[RunRecord], tell: Callable[[Sequence[RunRecord]], Result]) -> Result:
    """Return `tell(runs)`.

    Raises
    ------
    DataError
        If the records are damaged; names the file without which `tell` succeeds.
    """
    try:
        return tell(runs)
    except _RECORD_ERRORS as error:
        reason = f"not what hyrt writes ({one_line(describe(error))})"
        for index, run in enumerate(runs):
            for name, empty in _FILES.items():
                others = [*runs[:index], replace(run, **empty), *runs[index + 1 :]]
                if _succeeds(others, tell):
                    raise DataError(
                        f"{run.path / name}: {reason}: restore an intact copy, or move it away"
                    ) from error
        folders = listed([str(run.path) for run in runs], "or")
        raise DataError(f"the records in {folders} are {reason}: restore intact copies") from error


def _succeeds(runs: Sequence[RunRecord], make_report: Callable[[Sequence[RunRecord]], object]) -> bool:
    try:
        make_report(runs)
    except _RECORD_ERRORS:
        return False
    return True
