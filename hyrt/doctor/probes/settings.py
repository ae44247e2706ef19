"""Probe of a run's settings, its dataset, and the resources that both need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

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
    """Report `kinds`, `config`, `data`, `sizes` and `needs`, or why some of these are `unknown` or `wrong`.

    `words` and `options` are those of `DoctorRequest`; `found` lists the devices of the machine.
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
    from hyrt.doctor.probes.dataset_sizes import SizesUnknownError, read_dataset_sizes, sizes_to_json

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
        from hyrt.doctor.probes.resource_needs import estimate_needs
        from hyrt.predict.dataset_sizes import SamplerSizesUnknownError
    except Exception as error:
        # Without torch the model cannot be built; the problem with torch itself is a separate finding.
        report(unknown=describe_error(error))
        return
    try:
        report(needs=estimate_needs(config, sizes, found))
    except SamplerSizesUnknownError:
        report(unknown="the sampler does not say how large its mini-batches are")
    except HyrtError as error:
        report(unknown=str(error))
