"""Probes without heavy imports: packages, numba's kernel cache, calibrations, and a run's settings.

They run in an isolated worker process.
"""

from __future__ import annotations

import os
import pickletools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hyrt import errors
from hyrt.doctor.host_checks import find_write_problem
from hyrt.errors import HyrtError, PluginConflictError, describe_error


def probe_run_settings(
    item: str,
    report: Callable[..., None],
    *,
    words: Sequence[str],
    options: Mapping[str, str | None],
    found: Sequence[Mapping[str, Any]],
    **arguments: Any,
) -> None:
    """Report `kinds`, `config`, `data`, `sizes` and `needs`, or why some of them are `unknown` or `wrong`.

    `words` and `options` are as in `DoctorRequest`; `found` lists the devices of the machine.
    """
    from hyrt.config.command_line import new_config, option_overrides, split_arguments

    try:
        file, overrides = split_arguments(words)
        config = new_config(file, [*option_overrides(**options), *overrides])
    except PluginConflictError as error:
        reason, _, remedy = str(error).rpartition(": ")
        report(wrong="settings", why=reason, remedy=remedy)
        return
    except HyrtError as error:
        report(wrong="settings", why=str(error))
        return
    kinds = {"sampler": config.sampler.kind, "model": config.model.kind}
    report(kinds={**kinds, "objective": config.train.objective})
    report(
        config={
            "file": None if file is None else str(file),
            "source": config.data.source,
            "devices": [request.name for request in config.device_requests],
            "threads": {
                "sample_threads": config.runtime.sample_threads,
                "load_threads": config.runtime.load_threads,
                "train_threads": config.runtime.train_threads,
            },
        }
    )
    from hyrt.doctor.dataset_sizes import SizesUnknownError, read_dataset_sizes, sizes_to_json

    try:
        sizes = read_dataset_sizes(config.data.source, config.data.split, config.data.normalize)
    except HyrtError as error:
        report(wrong="data", why=str(error))
        return
    except SizesUnknownError as error:
        report(unknown=str(error))
        return
    except OSError as error:
        report(wrong="data", why=f"{error.filename or Path(config.data.source)}: {error.strerror or error}")
        return
    if not sizes.targets:
        report(wrong="data", why=f"{config.data.source}: split {config.data.split} has no training vertices")
        return
    report(data=sizes.location, sizes=sizes_to_json(sizes))
    try:
        from hyrt.predict.dataset_sizes import SamplerSizesUnknownError
        from hyrt.predict.memory_needs import estimate_needs
    except Exception as error:
        # The model cannot be built without torch. The problem with torch itself is a separate finding.
        report(unknown=describe_error(error))
        return
    try:
        report(needs=estimate_needs(config, sizes, found))
    except SamplerSizesUnknownError:
        report(unknown="the sampler does not say how large its mini-batches are")
    except HyrtError as error:
        report(unknown=str(error))


def probe_package(item: str, report: Callable[..., None], **arguments: Any) -> None:
    """Report the location of a package, then its version and import time."""
    spec = find_spec(item)
    if spec is not None:
        report(origin=spec.origin or ", ".join(spec.submodule_search_locations or ()))
    started = time.perf_counter()
    module = import_module(item)
    version = getattr(module, "__version__", None)
    report(version=version if isinstance(version, str) else None, import_s=time.perf_counter() - started)


_PACKAGES = ("hyrt", "hyrt_devices", "hyrt_perfmodel")
# Text that marks source files with cached kernels.
_CACHED_MARK = "cache=True"


def probe_kernel_cache(item: str, report: Callable[..., None], **arguments: Any) -> None:
    """Report each `folder` (with a `problem` if it is not writable), `files`, `bytes`, and `damaged` files.

    Item `used` reads the cache through numba, which may crash on a damaged file. Item `structure` then finds
    truncated files (stale ones included) without importing kernels; `places` has their folders.
    """
    # Cache indexes contain numba types. If numba itself cannot be imported, the files are not at fault.
    import_module("numba.core.caching")
    if item == "structure":
        damaged = {str(file): problem for file in _kernel_files() if (problem := _structure_problem(file))}
        report(damaged=damaged, places=sorted({str(file.parent) for file in _kernel_files()}))
        return
    damaged, files, folders = {}, set(), set()
    for function in _cached_functions():
        cache = function._cache
        folder = Path(cache.cache_path)
        if folder not in folders:
            report(folder=str(folder), problem=find_write_problem(folder))
            folders.add(folder)
        files |= _check_function(cache, folder, damaged)
    report(files=len(files), bytes=sum(file.stat().st_size for file in files), damaged=damaged)


def _cached_functions() -> Iterator[Any]:
    """Iterate over the compiled functions of hyrt that have cached kernels."""
    package = Path(errors.__file__).parent
    for source in sorted(package.rglob("*.py")):
        if source == Path(__file__) or _CACHED_MARK not in source.read_text(encoding="utf-8"):
            continue
        name = ".".join(source.relative_to(package.parent).with_suffix("").parts)
        for value in vars(import_module(name)).values():
            if getattr(getattr(value, "_cache", None), "cache_path", None) is not None:
                yield value


def _check_function(cache: Any, folder: Path, damaged: dict[str, str]) -> set[Path]:
    """Read the index and kernels of a function without numba's fallback, which compiles them again."""
    cache_file: Any = getattr(cache, "_cache_file", None)
    load, name = getattr(cache_file, "_load_index", None), getattr(cache_file, "_index_name", None)
    if load is None or name is None:  # Another version of numba may store kernels differently.
        return set()
    index = folder / name
    if not index.is_file():
        return set()
    if problem := _structure_problem(index):
        damaged[str(index)] = problem
        return {index}
    kernels = {folder / name for name in load().values() if (folder / name).is_file()}
    for kernel in kernels:
        try:
            cache_file._load_data(kernel.name)
        except Exception as error:  # Damaged pickles may raise any exception.
            damaged[str(kernel)] = describe_error(error)
    return {index, *kernels}


def _kernel_files() -> list[Path]:
    """Return all kernel files in hyrt's source folders and in NUMBA_CACHE_DIR."""
    specs = map(find_spec, _PACKAGES)
    folders = [Path(folder) for spec in specs if spec for folder in spec.submodule_search_locations or ()]
    files = [file for folder in folders for file in folder.rglob("__pycache__/*.nb[ic]")]
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    return sorted([*files, *(Path(chosen).rglob("*.nb[ic]") if chosen else ())])


def _structure_problem(file: Path) -> str:
    """Return a problem of a file's pickle structure, or ""; loading the file would import kernels."""
    try:
        with file.open("rb") as stream:
            # An index consists of two pickles: the version of numba and the index itself.
            for _ in range(1 + (file.suffix == ".nbi")):
                deque(pickletools.genops(stream), maxlen=0)
    except Exception as error:
        return describe_error(error)
    return ""


def probe_calibration(item: str, report: Callable[..., None], **arguments: Any) -> None:
    """Report `calibrated`, `why` a calibration cannot be used, and the `devices` that were measured."""
    from hyrt.predict.calibrate.store import read_measured, usable_calibration

    calibration, reason = usable_calibration()
    measured = read_measured()
    devices = [] if measured is None else sorted(measured.machine.devices)
    report(calibrated=calibration is not None, why=reason, devices=devices)
