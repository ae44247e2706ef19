"""What a run trains: a model, its optimizer and the schedule of its learning rate."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hyrt.config import Config
from hyrt.errors import ConfigError, StageFailure, describe

Made = TypeVar("Made")


class Learner:
    """The master copy of the model with its optimizer and schedule.

    Parameters
    ----------
    config
        The settings, whose `train` says which optimizer and schedule.
    model
        The module to be trained.

    Raises
    ------
    ConfigError
        If the model has no parameters, or optimizer or schedule do not exist or refuse their options.
    """

    def __init__(self, config: Config, model: torch.nn.Module) -> None:
        self.model = model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ConfigError("the model has no parameters to train")
        self._train = config.train
        self.optimizer, self._schedule = build_optimizer(config, self.parameters)

    @property
    def lr(self) -> float:
        """The present learning rate, of the first group of parameters."""
        rate: float = self.optimizer.param_groups[0]["lr"]
        return rate

    def end_epoch(self, epoch: int, loss: float) -> None:
        """Step the schedule, if there is one.

        Raises
        ------
        StageFailure
            If the schedule fails, naming it and the epoch.
        """
        if self._schedule is None:
            return
        try:
            with warnings.catch_warnings():
                # A resumed process may begin with what follows an epoch's steps.
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                if isinstance(self._schedule, ReduceLROnPlateau):
                    self._schedule.step(loss)
                else:
                    self._schedule.step()
        except Exception as error:
            raise StageFailure(
                f"train.schedule={self._train.schedule!r} with {self._train.schedule_options} failed after "
                f"epoch {epoch}: {describe(error)}"
            ) from error

    def kept(self) -> dict[str, Any]:
        """The state of all three, for a checkpoint."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self._schedule.state_dict() if self._schedule is not None else None,
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from what `kept` gave; raises what torch raises where it does not fit."""
        self.model.load_state_dict(kept["model"])
        self.optimizer.load_state_dict(kept["optimizer"])
        if self._schedule is not None:
            self._schedule.load_state_dict(kept["schedule"])


def build_optimizer(
    config: Config, parameters: list[torch.nn.Parameter]
) -> tuple[torch.optim.Optimizer, LRScheduler | None]:
    """The configured torch.optim optimizer and schedule.

    Raises
    ------
    ConfigError
        If there is none of that name, or its options do not fit.
    """
    train = config.train
    maker = getattr(torch.optim, train.optimizer, None)
    if not (inspect.isclass(maker) and issubclass(maker, torch.optim.Optimizer)):
        usable = [
            name
            for name in _classes(torch.optim, torch.optim.Optimizer)
            if name != "SparseAdam" and not _needs_closure(getattr(torch.optim, name))
        ]
        hint = _nearest(train.optimizer, usable)
        raise ConfigError(f"train.optimizer={train.optimizer!r} is not in torch.optim{hint}")
    if maker is torch.optim.SparseAdam:
        raise ConfigError("train.optimizer='SparseAdam' takes sparse gradients only: use Adam")
    if _needs_closure(maker):
        raise ConfigError(
            f"train.optimizer={train.optimizer!r} evaluates the loss several times per step, which a "
            "pipeline of mini-batches cannot do: choose another, such as Adam"
        )
    options = {"lr": train.lr, **train.optimizer_options}
    if train.weight_decay:
        if "weight_decay" not in inspect.signature(maker).parameters:
            raise ConfigError(
                f"train.optimizer={train.optimizer} has no weight decay, but train.weight_decay is "
                f"{train.weight_decay:g}: give train.weight_decay=0"
            )
        options["weight_decay"] = train.weight_decay
    optimizer = _made(maker, parameters, options, "optimizer")
    if train.schedule is None:
        return optimizer, None
    schedule = getattr(torch.optim.lr_scheduler, train.schedule, None)
    if not (inspect.isclass(schedule) and issubclass(schedule, torch.optim.lr_scheduler.LRScheduler)):
        hint = _nearest(train.schedule, _classes(torch.optim.lr_scheduler, LRScheduler))
        raise ConfigError(f"train.schedule={train.schedule!r} is not in torch.optim.lr_scheduler{hint}")
    return optimizer, _made(schedule, optimizer, train.schedule_options, "schedule")


def _needs_closure(optimizer: type[torch.optim.Optimizer]) -> bool:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _classes(module: ModuleType, parent: type) -> list[str]:
    """Names of the classes in a module that derive from another one of it, which is left out."""
    return [
        name
        for name, thing in vars(module).items()
        if inspect.isclass(thing) and issubclass(thing, parent) and thing is not parent and name[0] != "_"
    ]


def _nearest(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f": did you mean {near[0]!r}?" if near else f": it has {', '.join(known)}"


def _made(maker: Callable[..., Made], of: object, options: Mapping[str, Any], setting: str) -> Made:
    """An optimizer or a schedule, with an error that names the setting if its options do not fit."""
    name = f"train.{setting}={maker.__name__}"
    _, *known = inspect.signature(maker).parameters.values()
    for each in known:
        if each.default is each.empty and each.name not in options:
            raise ConfigError(f"{name} needs train.{setting}_options: {each.name} is missing")
    for option in options:
        names = [each.name for each in known]
        if option not in names:
            raise ConfigError(f"{name} has no option {option!r}{_nearest(option, names)}")
    try:
        return maker(of, **options)
    except Exception as error:  # Torch's own checks raise of all kinds.
        given = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise ConfigError(f"{name} cannot be made with {given or 'no options'}: {error}") from None
