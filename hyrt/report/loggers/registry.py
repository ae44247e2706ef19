"""Registry of loggers and the packages that they require."""

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
"""Package and class of each logger; the key is also the name of its extra."""


def check_loggers(names: Collection[str]) -> None:
    """Check that the packages of some loggers are installed.

    Raises
    ------
    ConfigError
        Names the first logger whose package is missing, and how to install it.
    """
    for name in names:
        package = _LOGGERS[name][0]
        try:
            is_installed = find_spec(package) is not None
        except ValueError:
            is_installed = False  # A module without an import spec.
        if not is_installed:
            raise ConfigError(f'loggers={name} needs {package}: pip install "hyrt[{name}]"')


def make_logger(name: str) -> Logger:
    """Create a logger by name; errors of its package propagate."""
    module, _, kind = _LOGGERS[name][1].partition(":")
    logger: Logger = getattr(importlib.import_module(f"hyrt.report.loggers.{module}"), kind)()
    return logger
