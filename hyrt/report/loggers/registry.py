"""The loggers that there are, and the packages that they need."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from importlib.util import find_spec

from hyrt.errors import ConfigError
from hyrt.report.loggers.logger import Logger

_LOGGERS = {
    "tensorboard": ("tensorboardX", "tensorboard_logger:TensorboardLogger"),
    "mlflow": ("mlflow", "mlflow_logger:MlflowLogger"),
    "wandb": ("wandb", "wandb_logger:WandbLogger"),
}
"""The package and the class of each logger, which is also the name of its extra."""


def check_loggers(names: Collection[str]) -> None:
    """See that what some loggers need is installed.

    Raises
    ------
    ConfigError
        Naming the first one for which it is not, and what to install.
    """
    for name in names:
        package = _LOGGERS[name][0]
        try:
            found = find_spec(package) is not None
        except ValueError:
            found = False  # A module that says nothing of where it comes from.
        if not found:
            raise ConfigError(f'loggers={name} needs {package}: pip install "hyrt[{name}]"')


def make_logger(name: str) -> Logger:
    """A logger by name; raises what its package raises."""
    module, _, kind = _LOGGERS[name][1].partition(":")
    made: Logger = getattr(importlib.import_module(f"hyrt.report.loggers.{module}"), kind)()
    return made
