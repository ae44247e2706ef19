"""Check of the optional package that reads tables."""

from __future__ import annotations

import importlib.util

from hyrt.errors import DataError


def need_pyarrow() -> None:
    """Check that pyarrow is installed.

    Raises
    ------
    DataError
        If it is missing. The message has the command that installs it.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise DataError('hyrt data import needs pyarrow: pip install "hyrt[import]"')
