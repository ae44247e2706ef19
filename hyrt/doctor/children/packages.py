"""Importing a package, as a run does."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def answer(item: str, say: Callable[..., None], **arguments: Any) -> None:
    """Say where a package is, then its own version, and how long its import took."""
    spec = find_spec(item)
    if spec is not None:
        say(origin=spec.origin or ", ".join(spec.submodule_search_locations or ()))
    started = time.perf_counter()
    module = import_module(item)
    version = getattr(module, "__version__", None)
    say(version=version if isinstance(version, str) else None, import_s=time.perf_counter() - started)
