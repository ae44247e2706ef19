"""From the words of `hyrt run` to a config."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from hyrt.config import Config, apply_overrides, build_config, load_settings
from hyrt.errors import ConfigError

_CHANGEABLE = ("train.epochs", "checkpoint", "runtime", "evaluate")


def sort_arguments(arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Tell the YAML file (no `=` in it) from the overrides, in any order.

    Raises
    ------
    ConfigError
        If there are two files.
    """
    overrides = [word for word in arguments if "=" in word]
    files = [word for word in arguments if "=" not in word]
    if len(files) > 1:
        raise ConfigError(
            f"{files[1]!r}: one settings file is wanted, {files[0]!r} is given too; overrides are key.path=value"
        )
    if files and not Path(files[0]).is_file():
        raise ConfigError(f"{files[0]}: no such settings file; overrides are key.path=value")
    return (Path(files[0]) if files else None), overrides


def option_overrides(**options: str | None) -> list[str]:
    """Overrides of the options that are given: keys with `__` for a point."""
    return [
        f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in options.items() if value is not None
    ]


def new_config(file: Path | None, overrides: Sequence[str]) -> Config:
    """The settings of a new run: defaults, then the file, then the overrides.

    Raises
    ------
    ConfigError
        Naming the wrong setting.
    """
    settings = {} if file is None else load_settings(file)
    return build_config(apply_overrides(settings, overrides))


def resumed_config(config: Config, file: Path | None, overrides: Sequence[str]) -> Config:
    """The settings of a run that goes on: only what leaves its steps as they are may change.

    Raises
    ------
    ConfigError
        Naming a setting that may not change.
    """
    if file is not None:
        raise ConfigError(f"{file}: a resumed run has its own settings: give overrides like train.epochs=10")
    for entry in overrides:
        key = entry.partition("=")[0]
        if not any(key == name or key.startswith(f"{name}.") for name in _CHANGEABLE):
            raise ConfigError(
                f"{key} cannot change when a run is resumed: only train.epochs, checkpoint.*, runtime.* and "
                f"evaluate.* can. Start a new run to change it"
            )
    return build_config(apply_overrides(config.model_dump(), overrides))


def located(config: Config) -> Config:
    """The same settings with a dataset's path made absolute, so that the run can go on from any folder."""
    path = Path(config.data.source).expanduser()
    if not path.exists():
        return config
    data = config.data.model_copy(update={"source": str(path.absolute())})
    return config.model_copy(update={"data": data})
