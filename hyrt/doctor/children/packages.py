"""Probe of a package import."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def probe_package(item: str, report: Callable[..., None], **arguments: Any) -> None:
    """Report the package's location, then its version and import time."""
    spec = find_spec(item)
    if spec is not None:
        report(origin=spec.origin or ", ".join(spec.submodule_search_locations or ()))
    started = time.perf_counter()
    module = import_module(item)
    version = getattr(module, "__version__", None)
    report(version=version if isinstance(version, str) else None, import_s=time.perf_counter() - started)
