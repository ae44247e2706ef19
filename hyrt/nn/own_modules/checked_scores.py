"""Validation of model outputs against the objective, on every call of the model.

Built-in models are always valid. A user-defined module may not be, and would otherwise fail in torch with a
message that names neither the module nor the mini-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from hyrt.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class _ScoresCheck:
    """Forward hook that validates outputs. Copies of a model keep it, so it also runs in device replicas."""

    num_scores: int | None
    more: set[str] | None

    def __call__(self, model: torch.nn.Module, arguments: tuple[Any, ...], scores: Any) -> None:
        name, targets = type(model).__name__, arguments[0][-1].num_dst
        if (
            not isinstance(scores, torch.Tensor)
            or scores.ndim != 2
            or not scores.is_floating_point()
            or scores.layout != torch.strided
        ):
            raise UnsupportedModel(
                f"{name} returned {_describe_output(scores)}: return one floating-point tensor of scores, "
                "[targets, classes]"
            )
        _check_gradient(name, model, scores)
        if len(scores) != targets:
            raise UnsupportedModel(
                f"{name} returned {len(scores):,} rows for {targets:,} targets: keep the first block.num_dst "
                "rows of each block"
            )
        width = scores.shape[1]
        check_width(name, width, self.num_scores)
        if self.more is not None and self.num_scores is not None and width > self.num_scores:
            self.more.add(
                f"{name} returned {width} scores for {self.num_scores} classes, so it can predict classes "
                "that no vertex has: return one score for each class"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> _ScoresCheck:
        # Replicas on devices report to the same set.
        return self


def _describe_output(scores: Any) -> str:
    if scores is None:
        return "nothing"
    if not isinstance(scores, torch.Tensor):
        return f"a {type(scores).__name__}"
    layout = "" if scores.layout == torch.strided else f" and layout {scores.layout}"
    return f"{scores.dtype} of shape {list(scores.shape)}{layout}"


def _check_gradient(name: str, model: torch.nn.Module, scores: torch.Tensor) -> None:
    """Check that scores are on the parameters' device and, if gradients are enabled, differentiable.

    Raises
    ------
    UnsupportedModel
        If they are not.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        return
    if scores.device != parameters[0].device:
        raise UnsupportedModel(
            f"{name} returned scores on {scores.device}, and its parameters are on {parameters[0].device}: "
            "return them where the rows are"
        )
    if torch.is_grad_enabled() and not scores.requires_grad:
        raise UnsupportedModel(
            f"{name} returned scores that have no gradient: use no detach(), .data or "
            "torch.no_grad() between its parameters and its scores"
        )


def check_width(name: str, width: int, num_scores: int | None) -> None:
    """Check that there are at least `num_scores` scores per target; None accepts any number.

    Raises
    ------
    UnsupportedModel
        If there are fewer.
    """
    if num_scores is not None and width < num_scores:
        raise UnsupportedModel(
            f"{name} returned {width} scores for {num_scores} classes: return one score for each class"
        )


def check_scores(
    model: torch.nn.Module, num_scores: int | None, more: set[str] | None = None
) -> RemovableHandle:
    """Register a hook that raises UnsupportedModel if the model returns an invalid output for the objective.

    Parameters
    ----------
    model
        Model whose first argument is the blocks of a mini-batch, the targets' block last.
    num_scores
        Number of scores per target that the objective needs; None for any number.
    more
        Set to which a message is added if the model or a copy of it returns more scores; None to ignore.

    Returns
    -------
    Handle whose `remove` ends the checks of `model`, but not of copies.

    Raises
    ------
    UnsupportedModel
        Immediately, if the model has a description for kernel devices with too few scores.
    """
    get_description = getattr(model, "description", None)
    if get_description is not None:
        try:
            last = get_description().layers[-1].products[-1]
        except UnsupportedModel:
            pass  # Devices with their own kernels reject the model later.
        else:
            check_width(type(model).__name__, len(last.weight), num_scores)
    return model.register_forward_hook(_ScoresCheck(num_scores, more))
