"""Compiled kernels as numba keeps them: where, and whether every file that it would read can be read."""

from __future__ import annotations

import os
import pickletools
from collections import deque
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hyrt import errors
from hyrt.doctor.machine.writable import why_not_writable
from hyrt.errors import describe

_PACKAGES = ("hyrt", "hyrt_devices", "hyrt_perfmodel")
# How a source that has kernels says that they are kept.
_KEPT = "cache=True"


def answer(item: str, say: Callable[..., None], **arguments: Any) -> None:
    """Say each `folder` (and the `problem` of writing there), `files`, `bytes`, and `damaged` ones and why.

    The item `used` asks numba itself. Its import of the kernels may end at a damaged file; `beside` then
    finds files that are not whole without importing any kernel, old ones among them that no run would read,
    and says the `places`.
    """
    # Indexes hold numba's types: without it nothing can be read back, and that is no damage of the files.
    import_module("numba.core.caching")
    if item == "beside":
        damaged = {str(file): why for file in _beside() if (why := _why_torn(file))}
        say(damaged=damaged, places=sorted({str(file.parent) for file in _beside()}))
        return
    damaged, files, folders = {}, set(), set()
    for function in _functions():
        cache = function._cache
        folder = Path(cache.cache_path)
        if folder not in folders:
            say(folder=str(folder), problem=why_not_writable(folder))
            folders.add(folder)
        files |= _check(cache, folder, damaged)
    say(files=len(files), bytes=sum(file.stat().st_size for file in files), damaged=damaged)


def _functions() -> Iterator[Any]:
    """Every compiled function of hyrt whose kernels numba keeps."""
    package = Path(errors.__file__).parent
    for source in sorted(package.rglob("*.py")):
        if source == Path(__file__) or _KEPT not in source.read_text(encoding="utf-8"):
            continue
        name = ".".join(source.relative_to(package.parent).with_suffix("").parts)
        for value in vars(import_module(name)).values():
            if getattr(getattr(value, "_cache", None), "cache_path", None) is not None:
                yield value


def _check(cache: Any, folder: Path, damaged: dict[str, str]) -> set[Path]:
    """Read a function's index and kernels, without the guard that compiles damaged ones again."""
    kept: Any = getattr(cache, "_cache_file", None)
    load, name = getattr(kept, "_load_index", None), getattr(kept, "_index_name", None)
    if load is None or name is None:  # A later numba keeps them in another way.
        return set()
    index = folder / name
    if not index.is_file():
        return set()
    if why := _why_torn(index):
        damaged[str(index)] = why
        return {index}
    kernels = {folder / name for name in load().values() if (folder / name).is_file()}
    for kernel in kernels:
        try:
            kept._load_data(kernel.name)
        except Exception as error:  # Damaged pickles raise anything.
            damaged[str(kernel)] = describe(error)
    return {index, *kernels}


def _beside() -> list[Path]:
    """Files of kernels beside hyrt's sources, and where the user wants them."""
    specs = map(find_spec, _PACKAGES)
    homes = [Path(home) for spec in specs if spec for home in spec.submodule_search_locations or ()]
    found = [file for home in homes for file in home.rglob("__pycache__/*.nb[ic]")]
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    return sorted([*found, *(Path(chosen).rglob("*.nb[ic]") if chosen else ())])


def _why_torn(file: Path) -> str:
    """Why a file cannot be whole, from its structure alone: reading it would import its kernels."""
    try:
        with file.open("rb") as stream:
            # An index is two pickles: numba's version, and what is indexed.
            for _ in range(1 + (file.suffix == ".nbi")):
                deque(pickletools.genops(stream), maxlen=0)
    except Exception as error:
        return describe(error)
    return ""
