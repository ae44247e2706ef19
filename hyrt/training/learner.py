"""Training state: a model, its optimizer and its learning rate schedule."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any, TypeGuard, TypeVar

import torch
from hyrt_perfmodel.suggestions import nearest_name
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hyrt.config import Config
from hyrt.errors import ConfigError, StageError, describe_error
from hyrt.nn.hetero.inputs import SPARSE_UPDATE_RULES, EmbeddingOptimizer, NodeEmbedding, find_embeddings

Made = TypeVar("Made")

# Optimizer options that select an implementation, and do not change the algorithm.
_HOW = {"foreach", "fused", "capturable", "differentiable"}


# Maximum number of epochs for which a schedule is tested before a run. Each step takes microseconds.
_MAX_TRIED_EPOCHS = 10_000


class TrainingState:
    """Master copy of the model with its optimizer and learning rate schedule, as `train` configures them.

    Raises ConfigError if the model has no parameters, or if the optimizer or schedule does not exist or
    rejects its options.
    """

    def __init__(self, config: Config, model: torch.nn.Module) -> None:
        self.model = model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ConfigError("the model has no parameters to train: set requires_grad for at least one")
        for name, parameter in model.named_parameters():
            if isinstance(parameter, torch.nn.UninitializedParameter) or parameter.is_meta:
                raise ConfigError(
                    f"parameter {name!r} of {type(model).__name__} is uninitialized: create all layers "
                    "with explicit widths, on the CPU"
                )
        self._config, self._train = config, config.train
        self.optimizer, self._schedule = build_optimizer(config, self.parameters)
        tables = find_embeddings(model)
        self.tables = build_table_optimizer(config, tables) if tables else None
        """Optimizer of the model's embedding tables; None if the model has no tables."""

    def check_schedule(self, epochs: int) -> None:
        """Test the optimizer and its schedule over `epochs` epochs with a dummy parameter.

        Some options are not rejected before the first step, and a schedule may fail during the run. Raises
        ConfigError, which names the optimizer or schedule and the epoch.
        """
        train = self._train
        trial = torch.nn.Parameter(torch.zeros(2, 2))
        trial.grad = torch.zeros_like(trial)
        optimizer, schedule = build_optimizer(self._config, [trial])
        try:
            optimizer.step()
        except Exception as error:  # torch may raise an exception of any type.
            raise ConfigError(
                f"train.optimizer={train.optimizer} cannot make a step with "
                f"train.optimizer_options={train.optimizer_options}: {describe_error(error)}"
            ) from None
        if schedule is None:
            return
        for epoch in range(1, min(epochs, _MAX_TRIED_EPOCHS) + 1):
            try:
                _step_schedule(schedule, loss=1.0)
            except (TypeError, AttributeError) as error:
                raise ConfigError(
                    f"train.schedule={train.schedule} cannot use "
                    f"train.schedule_options={train.schedule_options} ({describe_error(error)}): use "
                    f"values of the types that torch.optim.lr_scheduler.{train.schedule} accepts"
                ) from None
            except Exception as error:
                raise ConfigError(
                    f"train.schedule={train.schedule} with "
                    f"train.schedule_options={train.schedule_options} fails after epoch {epoch} of "
                    f"{epochs} ({describe_error(error)}): set options for more than {epochs} steps (one "
                    "per epoch), or lower train.epochs"
                ) from None
            rate = float(optimizer.param_groups[0]["lr"])
            # A negative rate (beyond rounding) would increase the loss. No step uses the last rate.
            if epoch < epochs and not -1e-12 <= rate < math.inf:
                raise ConfigError(
                    f"train.schedule={train.schedule} with "
                    f"train.schedule_options={train.schedule_options} sets the learning rate to {rate:g} "
                    f"after epoch {epoch} of {epochs}: set options that keep it at 0 or above"
                )

    @property
    def lr(self) -> float:
        """Current learning rate of the first parameter group."""
        rate: float = self.optimizer.param_groups[0]["lr"]
        return rate

    def end_epoch(self, epoch: int, loss: float) -> None:
        """Step the schedule, if there is one. Raises StageError, with the epoch, if the schedule fails."""
        if self._schedule is None:
            return
        try:
            _step_schedule(self._schedule, loss)
        except Exception as error:
            raise StageError(
                f"train.schedule={self._train.schedule!r} with {self._train.schedule_options} failed after "
                f"epoch {epoch}: {describe_error(error)}"
            ) from error

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self._schedule.state_dict() if self._schedule is not None else None,
            "tables": None if self.tables is None else self.tables.state_dict(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `state`; raise torch's exception if it does not match."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self._schedule is not None:
            self._schedule.load_state_dict(state["schedule"])
        if self.tables is not None:
            self.tables.load_state_dict(state["tables"])


def _step_schedule(schedule: LRScheduler, loss: float) -> None:
    with warnings.catch_warnings():
        # After a resume, scheduler.step() may be called before any optimizer.step(). Ignore torch's warning.
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
        if isinstance(schedule, ReduceLROnPlateau):
            schedule.step(loss)
        else:
            schedule.step()


def build_optimizer(
    config: Config, parameters: list[torch.nn.Parameter]
) -> tuple[torch.optim.Optimizer, LRScheduler | None]:
    """Create the configured torch.optim optimizer and schedule.

    Raises ConfigError if the name is unknown or the options are invalid.
    """
    train = config.train
    maker = getattr(torch.optim, train.optimizer, None)
    if not _derives(maker, torch.optim.Optimizer):
        usable = [
            name
            for name in _classes(torch.optim, torch.optim.Optimizer)
            if name != "SparseAdam" and not _needs_closure(getattr(torch.optim, name))
        ]
        hint = _nearest(train.optimizer, usable)
        raise ConfigError(f"train.optimizer={train.optimizer!r} is not in torch.optim{hint}")
    if maker is torch.optim.SparseAdam:
        raise ConfigError("train.optimizer='SparseAdam' accepts only sparse gradients: use Adam")
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
                f"{train.weight_decay:g}: set train.weight_decay=0"
            )
        options["weight_decay"] = train.weight_decay
    known = inspect.signature(maker).parameters
    real = all(each.is_floating_point() for each in parameters)
    if "fused" in known and real and not _HOW.intersection(options):
        # The fused optimizer makes one pass over each parameter, not ten: a tenth of a step on a small graph.
        options["fused"] = True
    optimizer = _made(maker, parameters, options, "optimizer")
    if train.schedule is None:
        return optimizer, None
    schedule = getattr(torch.optim.lr_scheduler, train.schedule, None)
    if not _derives(schedule, LRScheduler):
        hint = _nearest(train.schedule, _classes(torch.optim.lr_scheduler, LRScheduler))
        raise ConfigError(f"train.schedule={train.schedule!r} is not in torch.optim.lr_scheduler{hint}")
    return optimizer, _made(schedule, optimizer, train.schedule_options, "schedule")


def build_table_optimizer(config: Config, tables: list[NodeEmbedding]) -> EmbeddingOptimizer:
    """Create the configured optimizer for embedding tables, in which a step changes few rows.

    Raises ConfigError if the optimizer has no rule for single rows, or an option would change all rows.
    """
    train = config.train
    rule = SPARSE_UPDATE_RULES.get(train.optimizer)
    if rule is None:
        raise ConfigError(
            f"train.optimizer={train.optimizer} is not supported for learned rows, which change only in "
            f"steps that read them: choose one of {', '.join(SPARSE_UPDATE_RULES)}"
        )
    moving = [name for name in ("momentum", "amsgrad", "maximize") if train.optimizer_options.get(name)]
    if moving:
        raise ConfigError(
            f"train.optimizer_options sets {moving[0]}, which is not supported for learned rows: remove "
            f"{moving[0]}"
        )
    known = inspect.signature(rule).parameters
    options = {name: value for name, value in train.optimizer_options.items() if name in known}
    return EmbeddingOptimizer(tables, lambda values: rule(values, **options))


def _needs_closure(optimizer: type[torch.optim.Optimizer]) -> bool:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _classes(module: ModuleType, parent: type) -> list[str]:
    """Return the names of all classes in a module that derive from `parent`, without `parent` itself."""
    return [name for name, thing in vars(module).items() if _derives(thing, parent) and name[0] != "_"]


def _derives(thing: object, parent: type[Made]) -> TypeGuard[type[Made]]:
    """Return whether an object is a proper subclass of `parent`."""
    return inspect.isclass(thing) and issubclass(thing, parent) and thing is not parent


def _nearest(name: str, known: Collection[str]) -> str:
    spelled = {each.lower(): each for each in known}
    near = nearest_name(name.lower(), spelled)
    return f": did you mean {spelled[near]!r}?" if near else f": choose one of {', '.join(known)}"


def _made(maker: Callable[..., Made], of: object, options: Mapping[str, Any], setting: str) -> Made:
    """Create an optimizer or a schedule. If its options are invalid, the error names the setting."""
    name = f"train.{setting}={maker.__name__}"
    _, *known = inspect.signature(maker).parameters.values()
    for each in known:
        if each.default is each.empty and each.name not in options:
            raise ConfigError(f"{name} needs an option: set train.{setting}_options.{each.name}")
    for option in options:
        names = [each.name for each in known]
        if option not in names:
            raise ConfigError(f"{name} has no option {option!r}{_nearest(option, names)}")
    try:
        return maker(of, **options)
    except Exception as error:  # torch may raise an exception of any type.
        options_text = ", ".join(f"{key}={value!r}" for key, value in options.items())
        defaults = {each.name: each.default for each in known if each.default is not each.empty}
        usual = ", ".join(f"{key}={defaults[key]!r}" for key in options if key in defaults)
        # torch's message may describe only an internal operation, such as unpacking a value.
        raise ConfigError(
            f"{name} cannot be created with {options_text or 'no options'}: {error}"
            + (f"; by default {usual}" if usual else "")
        ) from None
