"""Layers of packages: imports point downwards, packages do not import each other, folders stay small."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Layer of each package or module. The longest matching name decides.
LAYERS = {
    "hyrt_perfmodel": 0,
    "hyrt_hls": 0,
    "hyrt.errors": 0,
    "hyrt.checks": 0,
    "hyrt.formatting": 0,
    "hyrt.section": 0,
    "hyrt.runtime": 0,
    "hyrt.graph": 1,
    "hyrt.sampling": 1,
    "hyrt.objective": 1,
    "hyrt.nn": 1,
    "hyrt.config": 2,
    "hyrt.device": 2,
    "hyrt.telemetry": 2,
    "hyrt.fullgraph": 2,
    "hyrt_devices": 3,
    "hyrt.pipeline": 3,
    "hyrt.balance": 3,
    "hyrt.inference": 3,
    "hyrt.distributed": 3,
    "hyrt.training": 3,
    "hyrt.predict": 4,
    "hyrt.report": 4,
    "hyrt.testing": 4,
    "hyrt.doctor": 4,
    "hyrt.ops": 2,
    "hyrt.api": 5,
    "hyrt.cli": 5,
    "hyrt": 5,
}
HOMES = {
    "hyrt": ROOT,
    "hyrt_devices": ROOT / "devices",
    "hyrt_perfmodel": ROOT / "perfmodel",
    "hyrt_hls": ROOT / "hls",
}
FILES = [path for package, home in HOMES.items() for path in sorted((home / package).rglob("*.py"))]
MAX_MODULES = 25
# The FPGA device and its simulated twin share many small modules.
LARGER_FOLDERS = {"devices/hyrt_devices/fpga"}


@cache
def package_of(module: str) -> str:
    return max((name for name in LAYERS if f"{module}.".startswith(f"{name}.")), key=len)


def module_of(path: Path) -> str:
    home = next(home for package, home in HOMES.items() if path.is_relative_to(home / package))
    return ".".join(path.relative_to(home).with_suffix("").parts).removesuffix(".__init__")


@cache
def imports(path: Path) -> list[tuple[str, int]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return [
        (name, line) for name, line in found if name.split(".")[0] in HOMES and name != "hyrt.__version__"
    ]


def test_imports_point_down() -> None:
    for path in FILES:
        module = module_of(path)
        for name, line in imports(path):
            assert LAYERS[package_of(name)] <= LAYERS[package_of(module)], (
                f"{path}:{line}: {module} imports {name} from above"
            )


def test_packages_do_not_import_each_other() -> None:
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for path in FILES:
        here = package_of(module_of(path))
        for name, line in imports(path):
            if package_of(name) != here:
                found[here].setdefault(package_of(name), f"{path.relative_to(ROOT)}:{line}")
    for here, others in list(found.items()):
        # Follow all imports transitively: they must not lead back.
        reached, seen = list(others), set()
        while reached:
            other = reached.pop()
            assert other != here, f"{here} is imported by what it imports: {others}"
            if other not in seen:
                seen.add(other)
                reached += found.get(other, {})


def test_a_backend_imports_neither_the_runtime_nor_another_backend_from_above() -> None:
    for path in FILES:
        if module_of(path).startswith("hyrt_devices"):
            for name, line in imports(path):
                assert LAYERS[package_of(name)] < 3 or package_of(name) == "hyrt_devices", (
                    f"{path}:{line}: imports {name}"
                )


def test_every_package_has_a_layer() -> None:
    packages = {f"hyrt.{path.name}" for path in (ROOT / "hyrt").iterdir() if (path / "__init__.py").is_file()}
    assert packages <= LAYERS.keys()


def test_the_lowest_layer_imports_no_torch() -> None:
    for path in FILES:
        if LAYERS[package_of(module_of(path))] == 0:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
                assert not [name for name in names if name.split(".")[0] == "torch"], path


def test_module_names_are_specific() -> None:
    vague = {"utils", "helpers", "common", "base", "manager"}
    assert not [path for path in FILES if path.stem in vague]
    same_name = [path for path in FILES if path.with_suffix("").is_dir()]
    assert not same_name, "a module has the name of a folder next to it"


def test_a_class_name_is_used_once() -> None:
    places = defaultdict(list)
    for path in [*FILES, *sorted((ROOT / "tools").rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_folders_are_small() -> None:
    for folder in {path.parent for path in FILES}:
        modules = [path for path in folder.glob("*.py") if path.stem not in ("__init__", "__main__")]
        if str(folder.relative_to(ROOT)) not in LARGER_FOLDERS:
            assert len(modules) <= MAX_MODULES, folder


def test_every_package_has_a_docstring() -> None:
    folders = {path.parent for path in FILES}
    for folder in folders:
        text = (folder / "__init__.py").read_text(encoding="utf-8")
        assert ast.get_docstring(ast.parse(text)), f"{folder}/__init__.py has no docstring"


def test_modules_have_no_import_cycles() -> None:
    """Imports under TYPE_CHECKING count too: a reader follows them."""
    modules = {module_of(path) for path in FILES}

    def target(name: str) -> str:
        return name if name in modules else name.rpartition(".")[0]

    graph = {
        module_of(path): {target(name) for name, _ in imports(path)} - {module_of(path)} for path in FILES
    }
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, f"import cycle: {' -> '.join((*way[way.index(module) :], module))}"
        if module not in done:
            for other in sorted(graph.get(module, ())):
                visit(other, (*way, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())
