"""Whether a model returns what the objective takes, asked wherever the model is called.

Built-in models do. A module of the user's may not, and would else end in a message of torch's that names
neither the module nor the mini-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from hyrt.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class _ScoresCheck:
    """A forward hook. Copies of a model keep it, so it works in the replicas of devices, too."""

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
                f"{name} returned {_in_words(scores)}: return one floating-point tensor of scores, "
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
        # Replicas on devices tell the same listener.
        return self


def _in_words(scores: Any) -> str:
    if scores is None:
        return "nothing"
    if not isinstance(scores, torch.Tensor):
        return f"a {type(scores).__name__}"
    layout = "" if scores.layout == torch.strided else f" and layout {scores.layout}"
    return f"{scores.dtype} of shape {list(scores.shape)}{layout}"


def _check_gradient(name: str, model: torch.nn.Module, scores: torch.Tensor) -> None:
    """Compare where scores are, and what they come from, with the parameters.

    Raises
    ------
    UnsupportedModel
        If they are on another device, or no gradient leads back from them while one is wanted.
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
    """Compare the number of scores of a target with what the objective needs; None needs nothing.

    Raises
    ------
    UnsupportedModel
        If there are too few.
    """
    if num_scores is not None and width < num_scores:
        raise UnsupportedModel(
            f"{name} returned {width} scores for {num_scores} classes: return one score for each class"
        )


def check_scores(
    model: torch.nn.Module, num_scores: int | None, more: set[str] | None = None
) -> RemovableHandle:
    """Let a model raise UnsupportedModel from now on where it returns what the objective cannot take.

    Parameters
    ----------
    model
        Called with the blocks of a mini-batch first, the targets' last.
    num_scores
        How many scores the objective needs for each target; None for any number.
    more
        Is given a sentence where the model, or a copy of it, returns more than these; None for no interest.

    Returns
    -------
    Its `remove` ends the checks of `model`, but not those of copies.

    Raises
    ------
    UnsupportedModel
        At once, if the model describes itself to devices with kernels of their own and has too few scores.
    """
    described = getattr(model, "description", None)
    if described is not None:
        try:
            last = described().layers[-1].products[-1]
        except UnsupportedModel:
            pass  # No device with kernels of its own takes it.
        else:
            check_width(type(model).__name__, len(last.weight), num_scores)
    return model.register_forward_hook(_ScoresCheck(num_scores, more))
