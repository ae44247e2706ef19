"""Validation of a nested mapping of settings, with errors that name the key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hyrt_perfmodel.nearest_name import nearest_name

from hyrt.config.by_kind import LENIENT
from hyrt.config.explained import known_keys
from hyrt.config.settings import OWN_MODEL, Config
from hyrt.config.yaml_text import apply_overrides
from hyrt.errors import ConfigError

# Names of settings in other programs.
_OTHER_NAMES = {
    "learning_rate": "lr",
    "wd": "weight_decay",
    "batch": "batch_size",
    "bs": "batch_size",
    "fanouts": "fanout",
    "num_neighbors": "fanout",
    "neighbors": "fanout",
    "width": "hidden",
}


def nearest_setting(name: str) -> str | None:
    """Return the setting that a name most likely means, such as train.epochs for `num_epochs`; None if none
    is near.

    Parameters
    ----------
    name
        Name with or without sections; its words are joined by `_`.
    """
    known = known_keys(Config)
    leaves = [key for key in known if not any(other.startswith(f"{key}.") for other in known)]
    if name in leaves:
        return name
    # A section stands for its kind: `sampler` means sampler.kind.
    by_leaf = {key.removesuffix(".kind"): key for key in leaves if key.endswith(".kind")}
    for key in leaves:
        by_leaf.setdefault(key.rsplit(".", 1)[-1], key)
    name = name.rsplit(".", 1)[-1].lower()
    name = _OTHER_NAMES.get(name, name)
    if name not in by_leaf:
        # In `num_epochs` or `hidden_dim`, one word is the name of the setting.
        part = next((part for part in name.split("_") if part in by_leaf), None)
        near = part or nearest_name(name, by_leaf, 0.7)
        return None if near is None else by_leaf[near]
    return by_leaf[name]


def build_config(settings: Mapping[str, Any], *, lenient: bool = False, own_model: bool = False) -> Config:
    """Validate a nested mapping of settings.

    Parameters
    ----------
    settings
        The settings that are not at their defaults.
    lenient
        Drop keys of other kinds, which have no effect: for the settings of an existing run, possibly from an
        earlier version.
    own_model
        Ignore the defaults of `model.kind`: for a user-defined module.

    Raises
    ------
    ConfigError
        Naming the first wrong key, and the nearest known key if it is unknown.
    """
    context = LENIENT if lenient else OWN_MODEL if own_model else None
    return Config.model_validate(settings, context=context)


def changed_config(config: Config, overrides: Iterable[str], *, own_model: bool = False) -> Config:
    """Apply changes to the settings of an existing run.

    Settings of an earlier version remain valid even if this version refuses them in a new run.

    Parameters
    ----------
    config
        Settings that the run was started with, built with `lenient`.
    overrides
        `key=value` for each change.
    own_model
        Whether its model is a user-defined module.

    Raises
    ------
    ConfigError
        As in `build_config`.
    """
    settings = config.model_dump()
    try:
        build_config(settings, own_model=own_model)
    except ConfigError:
        return build_config(apply_overrides(settings, overrides), lenient=True)
    return build_config(apply_overrides(settings, overrides), own_model=own_model)
