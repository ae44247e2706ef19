"""A run's settings, its dataset, and what both take: everything that reads them is imported here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hyrt.errors import HyrtError, PluginConflict, describe


def answer(
    item: str,
    say: Callable[..., None],
    *,
    words: Sequence[str],
    options: Mapping[str, str | None],
    found: Sequence[Mapping[str, Any]],
    **arguments: Any,
) -> None:
    """Say `config`, `data`, and `needs`; or `wrong` and what (`settings`, `data`), or `unknown` and why.

    Parameters are those of `ask_settings`: the words of `hyrt run`, overrides by key with `__` for a point,
    and the devices of the machine.
    """
    from hyrt.config.command_line import new_config, option_overrides, sort_arguments

    try:
        file, overrides = sort_arguments(words)
        config = new_config(file, [*option_overrides(**options), *overrides])
    except PluginConflict as error:
        why, _, remedy = str(error).rpartition(": ")
        say(wrong="settings", why=why, remedy=remedy)
        return
    except HyrtError as error:
        say(wrong="settings", why=str(error))
        return
    kinds = {"sampler": config.sampler.kind, "model": config.model.kind}
    say(kinds={**kinds, "objective": config.train.objective})
    say(
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
    from hyrt.doctor.children.dataset_sizes import SizesUnknown, dataset_sizes, to_json

    try:
        sizes = dataset_sizes(config.data.source, config.data.split, config.data.normalize)
    except HyrtError as error:
        say(wrong="data", why=str(error))
        return
    except SizesUnknown as error:
        say(unknown=str(error))
        return
    except OSError as error:
        say(wrong="data", why=f"{error.filename or Path(config.data.source)}: {error.strerror or error}")
        return
    if not sizes.targets:
        say(wrong="data", why=f"{config.data.source}: split {config.data.split} has no training vertices")
        return
    say(data=sizes.found, sizes=to_json(sizes))
    try:
        from hyrt.doctor.children.needs import needs
        from hyrt.predict.block_sizes import SamplerSizesUnknown
    except Exception as error:
        # Without torch there is no model to ask; what is wrong with it has a finding of its own.
        say(unknown=describe(error))
        return
    try:
        say(needs=needs(config, sizes, found))
    except SamplerSizesUnknown:
        say(unknown="the sampler does not say how large its mini-batches are")
    except HyrtError as error:
        say(unknown=str(error))
