"""From a nested mapping to the validated settings, with errors that name the key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hyrt_perfmodel.nearest_name import nearest_name

from hyrt.config.by_kind import LENIENT
from hyrt.config.explained import known_keys
from hyrt.config.settings import OWN_MODEL, Config
from hyrt.config.yaml_text import apply_overrides
from hyrt.errors import ConfigError

# What other programs call some settings.
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
    """The setting that a word most likely means, such as train.epochs of `num_epochs`; None if none is near.

    Parameters
    ----------
    name
        Perhaps with its sections; `_` joins its words.
    """
    known = known_keys(Config)
    leaves = [key for key in known if not any(other.startswith(f"{key}.") for other in known)]
    if name in leaves:
        return name
    # A section stands for its kind: `sampler` is sampler.kind.
    by_leaf = {key.removesuffix(".kind"): key for key in leaves if key.endswith(".kind")}
    for key in leaves:
        by_leaf.setdefault(key.rsplit(".", 1)[-1], key)
    name = name.rsplit(".", 1)[-1].lower()
    name = _OTHER_NAMES.get(name, name)
    if name not in by_leaf:
        # `num_epochs`, `hidden_dim`: a part of it is the name.
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
        Drop the keys of other kinds, which have no effect: for the settings of a run that was started, maybe
        by an earlier version.
    own_model
        Leave out the defaults of `model.kind`: for a module of the user's own.

    Raises
    ------
    ConfigError
        Naming the first wrong key, and the nearest known one where it is unknown.
    """
    context = LENIENT if lenient else OWN_MODEL if own_model else None
    return Config.model_validate(settings, context=context)


def changed_config(config: Config, overrides: Iterable[str], *, own_model: bool = False) -> Config:
    """The settings of a run that was started, with some changed.

    An earlier version may have started it with what this one refuses in a new run: that still holds.

    Parameters
    ----------
    config
        The settings that it was started with, read as `lenient`.
    overrides
        `key=value` for each change.
    own_model
        Whether its model is a module of the user's own.

    Raises
    ------
    ConfigError
        As `build_config` does.
    """
    settings = config.model_dump()
    try:
        build_config(settings, own_model=own_model)
    except ConfigError:
        return build_config(apply_overrides(settings, overrides), lenient=True)
    return build_config(apply_overrides(settings, overrides), own_model=own_model)
