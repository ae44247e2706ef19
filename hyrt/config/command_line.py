"""Conversion of command-line arguments to settings."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from hyrt.config import Config, apply_overrides, build_config, load_settings
from hyrt.config.load import change_config, flatten_settings, parse_settings, quote_yaml
from hyrt.config.validation import RENAMED_SETTINGS
from hyrt.errors import ConfigError, SettingWarning, warn_user
from hyrt.graph.bundled import NAMES

_CHANGEABLE = (
    *("train.epochs", "checkpoint", "runtime", "fullgraph.host_memory", "balance", "evaluate"),
    *("distributed.network", "distributed.cache", "distributed.shares", "distributed.time_steps"),
    *("distributed.pre_gather", "distributed.shared_memory_features", "distributed.timeout_s", "data.source"),
    "loggers",
)


def split_arguments(arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Separate the settings file from the overrides, in any order. Raises ConfigError for two files.

    An argument without `=` is a file, and so is an existing path with a YAML suffix, such as
    `lr=0.1/run.yaml`.
    """
    files = [word for word in arguments if "=" not in word or _is_settings_file(word)]
    overrides = [_rename_override(word) for word in arguments if word not in files]
    if len(files) > 1:
        raise ConfigError(
            f"{files[0]!r} and {files[1]!r} are both settings files: use only one, and write "
            "other settings as key.path=value"
        )
    if files:
        _check_settings_file(files[0])
    return (Path(files[0]) if files else None), overrides


def _rename_override(entry: str) -> str:
    """Replace a former name of a setting by its present name, with a warning."""
    key, equals, value = entry.partition("=")
    if key not in RENAMED_SETTINGS:
        return entry
    renamed = f"{RENAMED_SETTINGS[key]}{equals}{value}"
    warn_user(f"{key} was renamed: use {renamed}", SettingWarning)
    return renamed


def option_overrides(**options: object) -> list[str]:
    """Return overrides for all options that are not None; `__` in a keyword stands for a dot."""
    return [
        f"{key.replace('__', '.')}={quote_yaml(value) if isinstance(value, str) else json.dumps(value)}"
        for key, value in options.items()
        if value is not None
    ]


def short_option_overrides(
    epochs: str | None,
    lr: str | None,
    hidden: str | None,
    layers: str | None,
    batch_size: str | None,
    seed: str | None,
) -> list[str]:
    """Return overrides for the short options of settings; values are parsed like values of settings."""
    settings = {
        "train.epochs": epochs,
        "train.lr": lr,
        "model.hidden": hidden,
        "model.layers": layers,
        "data.batch_size": batch_size,
        "seed": seed,
    }
    return [f"{key}={value}" for key, value in settings.items() if value is not None]


def full_graph_override(overrides: Sequence[str]) -> str:
    """Return the override for `--full-graph`. Raises ConfigError if the overrides set another sampler."""
    for entry in overrides:
        key, _, value = entry.partition("=")
        if key == "sampler.kind" and value != "full":
            raise ConfigError(
                f"--full-graph sets sampler.kind=full, which contradicts {entry}: remove one of them"
            )
    return "sampler.kind=full"


def new_config(file: Path | None, overrides: Sequence[str]) -> Config:
    """Create the settings of a new run: defaults, then the file, then the overrides."""
    settings = {} if file is None else load_settings(file)
    return build_config(apply_overrides(settings, overrides))


def resumed_config(
    config: Config, file: Path | None, overrides: Sequence[str], also: Sequence[str] = ()
) -> Config:
    """Create the settings of a resumed run, in which only settings that do not affect its steps may change.

    The settings in `also` may change too, such as the devices of a rank. Raises ConfigError for any other
    change, and for a settings file.
    """
    if file is not None:
        raise ConfigError(
            f"{file} cannot be used, because a resumed run keeps its settings: set changes "
            "such as train.epochs=10"
        )
    for entry in overrides:
        key = entry.partition("=")[0]
        # Accept settings without a change, so that the original command can be repeated.
        if not _is_changeable(key, also) and not _is_unchanged(config, entry):
            raise ConfigError(
                f"{key} cannot change when a run is resumed; only {', '.join(_CHANGEABLE)} can. Start a new "
                "run to change it"
            )
    return change_config(config, overrides)


def _is_unchanged(config: Config, entry: str) -> bool:
    """Return whether a `key=value` override leaves the settings unchanged."""
    try:
        changed = change_config(config, [entry])
    except ConfigError:
        return False
    return changed == config


def check_same_training(config: Config, trained: str) -> None:
    """Compare the settings of a resumed run with `trained`, all settings in its checkpoint as YAML.

    Raises ConfigError with both values for the first setting that must not differ, but does.
    """
    before = dict(
        flatten_settings(build_config(parse_settings(trained, "the checkpoint"), lenient=True).model_dump())
    )
    now = dict(flatten_settings(config.model_dump()))
    for key in {**before, **now}:
        if before.get(key) != now.get(key) and not _is_changeable(key):
            raise ConfigError(
                f"{key} is {json.dumps(now.get(key))} in config.yaml, but the checkpoint was trained "
                f"with {json.dumps(before.get(key))}: change it back, or start a new run"
            )


def _is_settings_file(word: str) -> bool:
    return word.endswith((".yaml", ".yml")) and os.path.isfile(word)


def _check_settings_file(word: str) -> None:
    path = Path(word)
    if path.is_dir() and (path / "config.yaml").is_file():
        raise ConfigError(
            f"{word} is the folder of a run, not a settings file: write --resume {word} to "
            f"continue it, or {path / 'config.yaml'} for a new run with its settings"
        )
    if _looks_like_data(word):
        raise ConfigError(f"{word} is a dataset, not a settings file: write --data {word}")
    if path.is_dir():
        raise ConfigError(f"{word} is a folder, not a settings file: write settings as key.path=value")
    # `hyrt run <(command)` and /dev/stdin are pipes, not regular files.
    if path.exists() and not (path.is_file() or path.is_fifo()):
        raise ConfigError(f"{word} is a special file: use a settings file")
    if not path.exists():
        raise ConfigError(f"{word}: no such settings file; to change a setting, write key.path=value")


def _looks_like_data(word: str) -> bool:
    path = Path(word)
    return (
        word.endswith(".npz")
        or word in NAMES
        or (path.is_dir() and (any(path.glob("*.npy")) or (path / "partition.json").is_file()))
        or bool(re.match(r"(synthetic:|ogbn-)", word))
    )


def _is_changeable(key: str, also: Sequence[str] = ()) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in (*_CHANGEABLE, *also))


def make_paths_absolute(config: Config) -> Config:
    """Make the paths of files in the settings absolute, so that the run can be resumed from any folder."""
    path = Path(os.path.expanduser(config.data.source))
    # An empty name is invalid, whereas `Path("")` is the current folder.
    if config.data.source and path.exists():
        data = config.data.model_copy(update={"source": str(path.absolute())})
        config = config.model_copy(update={"data": data})
    for key in ("split", "times"):
        path_text = getattr(config.links, key)
        if path_text is not None and path_text.endswith((".npz", ".npy")) and Path(path_text).exists():
            update = {key: str(Path(path_text).absolute())}
            config = config.model_copy(update={"links": config.links.model_copy(update=update)})
    network = config.distributed.network
    if network is not None and Path(network).exists():
        update = {"network": str(Path(network).absolute())}
        config = config.model_copy(update={"distributed": config.distributed.model_copy(update=update)})
    return config
