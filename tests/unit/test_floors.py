"""Imports point downwards only, and the lowest floors stay free of torch."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Longest prefix wins. What is not listed is the command line's floor, the top.
FLOORS = {
    "hyrt.errors": 0,
    "hyrt.cores": 0,
    "hyrt.kernel_cache": 0,
    "hyrt.process": 0,
    "hyrt.workers": 0,
    "hyrt.pool": 0,
    "hyrt_perfmodel": 0,
    "hyrt_hls": 0,
    "hyrt.graph": 1,
    "hyrt.sampling": 1,
    "hyrt.nn": 1,
    "hyrt.config": 2,
    "hyrt.configured_training": 2,
    "hyrt.device": 2,
    "hyrt.device_names": 2,
    "hyrt.device_rates": 2,
    "hyrt.registry": 2,
    "hyrt_devices": 3,
    "hyrt.runtime": 3,
    "hyrt.report": 4,
    "hyrt.testing": 4,
    "hyrt": 5,
}
HOMES = {
    "hyrt": ROOT,
    "hyrt_devices": ROOT / "devices",
    "hyrt_perfmodel": ROOT / "perfmodel",
    "hyrt_hls": ROOT / "hls",
}


def floor(module: str) -> int:
    return FLOORS[max((name for name in FLOORS if f"{module}.".startswith(f"{name}.")), key=len)]


def imports(path: Path) -> list[tuple[str, int]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return [(name, line) for name, line in found if name.split(".")[0] in HOMES]


FILES = [path for package, home in HOMES.items() for path in sorted((home / package).rglob("*.py"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    home = next(home for package, home in HOMES.items() if path.is_relative_to(home / package))
    module = ".".join(path.relative_to(home).with_suffix("").parts).removesuffix(".__init__")
    for name, line in imports(path):
        if name == "hyrt.__version__":
            continue
        assert floor(name) <= floor(module), f"{path}:{line}: {module} imports {name} from above"
        if floor(module) == 3 and module.startswith("hyrt_devices"):
            assert not name.startswith("hyrt.runtime"), f"{path}:{line}: a device imports the runtime"


def test_no_file_is_named_after_nothing() -> None:
    vague = {"utils", "helpers", "common", "base", "manager"}
    assert not [path for path in FILES if path.stem in vague]
