"""Which file of a run holds something else than hyrt writes, where a report cannot be made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from hyrt.errors import DataError, describe, listed, one_line
from hyrt.report.records.run_record import RunRecord

Told = TypeVar("Told")

# What reading text for a number, or a number for a mapping, ends in.
_WRONG = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError)
_FILES: Mapping[str, dict[str, Any]] = {
    "summary.json": {"summary": {}},
    "env.json": {"environment": {}},
    "metrics.jsonl": {"lines": ()},
    "config.yaml": {"settings": {}},
}


def told_of(runs: Sequence[RunRecord], tell: Callable[[Sequence[RunRecord]], Told]) -> Told:
    """What `tell` makes of the records of runs.

    Raises
    ------
    DataError
        If it cannot be made of them, naming the file without which it can.
    """
    try:
        return tell(runs)
    except _WRONG as error:
        why = f"not what hyrt writes ({one_line(describe(error))})"
        for place, run in enumerate(runs):
            for name, empty in _FILES.items():
                others = [*runs[:place], replace(run, **empty), *runs[place + 1 :]]
                if _is_told(others, tell):
                    raise DataError(
                        f"{run.path / name}: {why}: copy it again from where it is whole, or move it away"
                    ) from error
        folders = listed([str(run.path) for run in runs], "or")
        raise DataError(
            f"the records in {folders} are {why}: copy them again from where they are whole"
        ) from error


def _is_told(runs: Sequence[RunRecord], tell: Callable[[Sequence[RunRecord]], object]) -> bool:
    try:
        tell(runs)
    except _WRONG:
        return False
    return True
